"""How a federation's server is, gathered from whoever knows it: nothing here changes anything.

    issuer       nodes, what they said of themselves, tokens            issuer.sock, or its database
    SuperLink    which nodes are there                                   its Control API
    core service sessions, where rounds stand, calls turned away         core.sock (core_view.py)
    records      rounds of each node, and what went wrong with it last   runs/*/ledger.sqlite
    supervisor   since when each program runs                            up.json
    files        when certificates end

Whoever does not answer is said to be so, and what the others know is shown all the same.
"""

from __future__ import annotations

import sys
import time
from dataclasses import asdict, dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from cryptography import x509

from . import core_status
from .federation_files import ISSUING, ROOT, SERVERS
from .flower_programs import CORE, FRONT, ISSUER, SUPEREXEC, SUPERLINK
from .issuer_wire import ask, is_served
from .server_toml import ServerSettings
from .status_nodes import Facts, NodeView, node_view
from .status_records import Record, Records
from .. import __version__
from ..host import process_tree
from ..host.processes import read_state
from ..protocol.errors import UmbelError
from ..protocol.verification import UNREADABLE

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from .flower_control import NodeTimes


@dataclass(frozen=True, kw_only=True)
class ServerView:
    """One program of the server."""

    name: str
    alive: bool
    since: float
    """Seconds since 1970; 0 where it is not known."""


@dataclass(frozen=True, kw_only=True)
class CertificateView:
    """One certificate of the server."""

    name: str
    ends: float


@dataclass(frozen=True, kw_only=True)
class RunView:
    """One run that the core service serves."""

    run: str
    serverapp: bool
    round: int
    rounds: int
    attempt: int
    what: str
    """`train` or `evaluate`."""
    phase: str
    sessions: int
    finished: int


@dataclass(frozen=True, kw_only=True)
class Status:
    """All of it."""

    federation: str
    folder: str
    at: float
    umbel: str
    servers: tuple[ServerView, ...]
    certificates: tuple[CertificateView, ...]
    runs: tuple[RunView, ...]
    tokens: tuple[Mapping[str, Any], ...]
    """Those that are open: name, site, when they expire."""
    nodes: tuple[NodeView, ...]
    unknown: tuple[str, ...]
    """What could not be learned, a line each."""

    def as_json(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        return asdict(self)


class Observer:
    """Looks at one federation's server, again and again."""

    def __init__(self, folder: Path, home: Path) -> None:
        """Read its settings.

        Raises:
            SettingsError: They are none.
        """
        self.folder = folder
        self.settings = ServerSettings.read(folder)
        self._records = Records(home, self.settings.name)
        self._versions = {
            "umbel": __version__,
            "flwr": version("flwr"),
            "python": sys.version.split()[0],
        }

    def look(self) -> Status:
        """Return how it is now."""
        unknown: list[str] = []
        now = time.time()
        flower = self._flower(unknown)
        rows, tokens = self._issuer(unknown)
        records = self._records.read()
        core = self._core(unknown)  # last: where a round stands changes fastest
        facts = _facts(now, core or {}, flower, records)
        facts.versions = {name: self._versions[name] for name in ("umbel", "flwr")}
        return Status(
            federation=self.settings.name,
            folder=str(self.folder),
            at=now,
            umbel=__version__,
            servers=self._servers(core, up=flower is not None, unknown=unknown),
            certificates=_certificates(self.folder, unknown),
            runs=_runs(core or {}, records),
            tokens=tuple(token for token in tokens if token["state"] == "open"),
            nodes=tuple(node_view(row, facts) for row in rows),
            unknown=tuple(unknown),
        )

    def _core(self, unknown: list[str]) -> dict[str, Any] | None:
        try:
            return core_status.ask(self.folder)
        except UmbelError as error:
            unknown.append(f"core service: {error}")
            return {}

    def _flower(self, unknown: list[str]) -> dict[int, NodeTimes] | None:
        """Return the SuperLink's nodes by its ids; None where it does not answer."""
        from .flower_control import Control, answers  # noqa: PLC0415 - flwr waits until needed

        address, ca = self.settings.superlink, self.folder / ROOT
        try:
            if not answers(address, ca, "/health"):
                return None
            with Control(address, ca) as control:
                return {found.node_id: found for found in control.times().values()}
        except (OSError, UmbelError) as error:
            unknown.append(f"SuperLink: {error}")
            return None

    def _issuer(self, unknown: list[str]) -> tuple[list[Any], list[Any]]:
        try:
            return ask(self.folder, "nodes"), ask(self.folder, "tokens")
        except UmbelError as error:
            unknown.append(f"issuer: {error}")
            return [], []

    def _servers(
        self, core: dict[str, Any] | None, *, up: bool, unknown: list[str]
    ) -> tuple[ServerView, ...]:
        """Return each program: whether it answers, and since when it runs."""
        from .flower_control import answers  # noqa: PLC0415 - flwr waits until needed

        since = _since(self.folder, unknown)
        port = self.settings.listen_front.rpartition(":")[2]
        front = answers(f"127.0.0.1:{port}", self.folder / ROOT, "/healthz")
        alive = {
            ISSUER: is_served(self.folder),
            CORE: core is not None,
            SUPERLINK: up,
            FRONT: front,
            SUPEREXEC: SUPEREXEC in since,
        }
        since.setdefault(CORE, float((core or {}).get("began", 0)))
        return tuple(
            ServerView(name=name, alive=lives, since=since.get(name, 0.0) if lives else 0.0)
            for name, lives in alive.items()
        )


def _since(folder: Path, unknown: list[str]) -> dict[str, float]:
    """Return since when each program runs that a supervisor of this folder started."""
    try:
        state = read_state(folder)
    except UmbelError as error:
        unknown.append(f"supervisor: {error}")
        return {}
    found = {}
    for item in (state or {}).get("programs", ()):
        process = process_tree.recorded(item["pid"], item["started"], (state or {})["mark"])
        if process is not None and process_tree.alive(process):
            found[str(item["program"]["name"])] = float(item["started"])
    return found


def _certificates(folder: Path, unknown: list[str]) -> tuple[CertificateView, ...]:
    found = []
    for name in (ROOT, ISSUING, *(f"{server}.pem" for server in SERVERS)):
        try:
            chain = x509.load_pem_x509_certificates((folder / name).read_bytes())
        except (OSError, *UNREADABLE) as error:
            unknown.append(f"{name}: {type(error).__name__}")
            continue
        of_it = chain if name == ISSUING else chain[:1]  # after a leaf comes its CA
        found += [
            CertificateView(name=name, ends=one.not_valid_after_utc.timestamp()) for one in of_it
        ]
    return tuple(found)


def _facts(
    now: float, core: Mapping[str, Any], flower: Mapping[int, NodeTimes] | None,
    records: list[Record],
) -> Facts:  # fmt: skip
    facts = Facts(now=now, flower=flower, calls=core.get("nodes", {}))
    runs = core.get("runs", {})
    facts.running = frozenset(run for run, about in runs.items() if about.get("serverapp"))
    for run, about in runs.items():
        for session in about.get("sessions", ()):
            if not session.get("leaving"):
                facts.sessions[session["node"]] = run, bool(session.get("connected"))
    rounds: dict[str, int] = {}
    refusals: dict[str, tuple[str, float, str]] = {}
    for record in records:
        for node, count in record.rounds.items():
            rounds[node] = rounds.get(node, 0) + count
        for node, wrong in record.wrong.items():
            refusals[node] = max(refusals.get(node, wrong), wrong, key=lambda item: item[1])
    facts.rounds, facts.refusals = rounds, refusals
    return facts


def _runs(core: Mapping[str, Any], records: list[Record]) -> tuple[RunView, ...]:
    of = {record.name: record for record in records}
    return tuple(
        RunView(
            run=run,
            serverapp=bool(about.get("serverapp")),
            round=int(about.get("round", 0)),
            rounds=of[run].wanted if run in of else 0,
            attempt=int(about.get("attempt", 0)),
            what=str(about.get("what", "")),
            phase=str(about.get("phase", "")),
            sessions=sum(not s.get("leaving") for s in about.get("sessions", ())),
            finished=of[run].finished if run in of else 0,
        )
        for run, about in core.get("runs", {}).items()
    )
