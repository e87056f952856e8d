"""What `umbel server support` gathers: chosen parts, none of them a copy of a whole file but logs.

    README.txt        what this is; who sends it should look at it first
    versions.json     umbel, Python, packages of a fixed list, the machine
    doctor.json       what `umbel server doctor` finds
    status.json       what `umbel server status` says
    server.toml       the settings, written anew from what was read
    files.json        names, sizes, modes and times of the federation's files, no content
    runs/ID.json      of the newest runs: settings of a fixed list, outcomes, codes, bytes, times
    logs/NAME.log     the ends of the logs of our own programs

Not in it: keys, tokens, tickets, databases, models, metrics, app bundles and their configuration;
what a ServerApp or an app's own code printed (`serverapp.log`, `superexec.log`, devices' logs).
"""

from __future__ import annotations

import re
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import doctor
from .client_times import KIND as CLIENTS
from .ledger import NODE_DETAIL, Ledger
from .run_directory import list_runs
from .server_toml import ServerSettings
from .settings import FLOWER_RUN, OF_FEDERATION
from .status import Observer
from .. import __version__
from ..host.bundle import Bundle
from ..host.doctor import run as examined
from ..host.known_secrets import Secrets
from ..host.reported import versions
from ..protocol.errors import StateError, UmbelError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

LOGS = ("core", "front", "issuer", "superlink", "keeper")
SETTINGS = ("rounds", "scheme", "seed", "params", "strategy", "server-test")
"""Keys of a run's recorded configuration that say nothing of an app's own."""
RUNS, ROUNDS, EVENTS = 5, 500, 2000
"""How many there are of each, the newest."""
MOST_FILES = 2000
HARMLESS = re.compile(
    r"(.*/)?(server\.toml|device\.toml|policy\.toml|nodes\.json|core\.json|up\.json|agent\.json"
    r"|session\.json|members\.list|paused|journal|[^/]*\.(sqlite|sqlite-wal|sqlite-shm|lock|pem))"
    r"|logs/.*|flower/.*"
)
"""Files of a federation's directory that are no secrets, whatever their mode."""
_README = """\
A report about the server of an Umbel federation, made by `umbel server support`.

It has names of nodes, sites, hosts and addresses, versions, settings of runs, codes, byte counts
and times. It has no key, token, model, metric or update. Look at it before you send it.
"""


def gather(folder: Path, home: Path, say: Callable[[str], None] = lambda _: None) -> Bundle:
    """Return the bundle of a federation, not written yet.

    Args:
        folder: Of the federation.
        home: Umbel's, where the runs are.
        say: Takes a line on the way.

    Raises:
        SettingsError: It is no federation's directory.
    """
    settings = ServerSettings.read(folder)
    secrets = Secrets()
    secrets.add_directory(folder, HARMLESS)
    bundle = Bundle(secrets, {str(home): "$UMBEL_HOME", str(Path.home()): "~"})
    bundle.add_text("README.txt", _README)
    bundle.add_json("versions.json", versions(__version__))
    bundle.add_text("server.toml", settings.dumps())
    bundle.add_json("files.json", list(_files(folder)))
    for name in LOGS:
        bundle.add_log(f"logs/{name}.log", folder / "logs" / f"{name}.log")
    for run, record in _runs(home, settings.name):
        bundle.add_json(f"runs/{run}.json", record)
    say("asking the programs how they are")
    bundle.add_json("status.json", _status(folder, home))
    say("examining the server")
    found = examined(doctor.probes(folder))
    bundle.add_json(
        "doctor.json",
        [{"id": f.id, "severity": f.severity, "line": f.line, "fix": f.fix} for f in found],
    )
    return bundle


def _status(folder: Path, home: Path) -> dict[str, Any]:
    try:
        return Observer(folder, home).look().as_json()
    except UmbelError as error:
        return {"error": str(error)}


def _files(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield what the files are called, and how large and how old they are."""
    for number, path in enumerate(sorted(folder.rglob("*"))):
        if number == MOST_FILES:
            return
        try:
            about = path.lstat()
        except OSError:
            continue
        yield {
            "path": path.relative_to(folder).as_posix(),
            "mode": stat.filemode(about.st_mode),
            "bytes": about.st_size,
            "changed": int(about.st_mtime),
        }


def _runs(home: Path, federation: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the newest runs of this federation."""
    found: list[tuple[str, str, dict[str, Any]]] = []
    for run in list_runs(home):
        try:
            with Ledger(home / "runs" / run / "ledger.sqlite", read_only=True) as ledger:
                begun = ledger.begun()
                config: Mapping[str, Any] = {} if begun is None else begun.config
                ours = config.get(OF_FEDERATION, federation) == federation
                if begun is None or FLOWER_RUN not in config or not ours:
                    continue
                found.append((begun.created, run, _record(ledger, begun.created, config)))
        except StateError as error:
            found.append(("", run, {"error": str(error)}))
    for _, run, record in sorted(found, key=lambda item: item[:2], reverse=True)[:RUNS]:
        yield run, record


def _record(ledger: Ledger, created: str, config: Mapping[str, Any]) -> dict[str, Any]:
    rounds = [
        {
            **{key: getattr(r, key) for key in ("round", "attempt", "phase", "outcome", "cause")},
            "members": len(r.roster),
            "survivors": len(r.survivors),
            "seconds": dict(r.seconds),
            "bytes": [r.bytes_up, r.bytes_down],
        }
        for r in ledger.rounds()[-ROUNDS:]
    ]
    events = [
        {
            **{key: getattr(e, key) for key in ("at", "kind", "round", "attempt", "node", "code")},
            "detail": {key: value for key, value in e.detail.items() if key in NODE_DETAIL},
        }
        for e in [e for e in ledger.events() if e.kind != CLIENTS][-EVENTS:]
    ]
    settings = {key: config[key] for key in SETTINGS if key in config}
    return {"created": created, "settings": settings, "rounds": rounds, "events": events}
