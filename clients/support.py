"""What `umbel client support` gathers of a device: chosen parts, and nothing of its data.

    README.txt     what this is; who sends it should look at it first
    versions.json  umbel, Python, packages of a fixed list, the machine
    doctor.json    what `umbel client doctor` finds
    status.json    state, times and counts of agent and session, certificates' end
    policy.json    numbers and switches of the policy
    history.json   the newest rows of the record: runs, app hashes, codes, bytes, times

Not in it: keys, the reasons of refusals in full (they may have numbers of the device's data), lines
of a console or a log (the app's own code prints there), commands and paths of the policy.
"""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import doctor
from .history_file import read_history
from .policy import Policy
from .status import gathered
from .. import __version__
from ..host.bundle import Bundle
from ..host.doctor import run as examined
from ..host.known_secrets import Secrets
from ..host.reported import versions
from ..protocol.errors import UmbelError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

ROWS = 500
ROW = (
    *("kind", "at", "until", "times", "run", "round", "phase", "attempt", "app", "scheme"),
    *("members", "survivors", "bytes_up", "bytes_down", "outcome", "code", "key"),
)
STATUS = (
    *("at", "federation", "node", "gateway", "front", "doing", "since", "agent_alive"),
    *("session_alive", "certificates_end", "members_epoch", "members_end", "apps_waiting"),
    *("free_bytes", "today"),
)
AGENT = ("state", "restarts", "until", "error_at", "renewed", "began", "said")
SESSION = (
    *("state", "run", "up", "since", "round", "phase", "attempt", "members", "doing", "rounds"),
    *("bytes_up", "bytes_down", "began", "said"),
)
HARMLESS = re.compile(
    r"(.*/)?(device\.toml|policy\.toml|agent\.json|session\.json|index\.json|members\.list|paused"
    r"|journal|[^/]*\.(sqlite|sqlite-wal|sqlite-shm|lock|pem|pub))|apps/.*|logs/.*|tasks/.*|flwr/.*"
)
"""Files of a device's directory that are no secrets, whatever their mode."""
_README = """\
A report about a device of an Umbel federation, made by `umbel client support`.

It has the names of its federation and servers, versions, findings, codes, byte counts and times. It
has no key, no data, and nothing that an app has printed. Look at it before you send it.
"""


def gather(directory: Path, say: Callable[[str], None] = lambda _: None) -> Bundle:
    """Return the bundle of a device, not written yet.

    Args:
        directory: Of the device.
        say: Takes a line on the way.
    """
    secrets = Secrets()
    secrets.add_directory(directory, HARMLESS)
    bundle = Bundle(secrets, {str(directory): "$UMBEL_DEVICE", str(Path.home()): "~"})
    bundle.add_text("README.txt", _README)
    bundle.add_json("versions.json", versions(__version__))
    status = gathered(directory).described()
    said = {key: status[key] for key in STATUS}
    for name, keys in (("agent", AGENT), ("session", SESSION)):
        said[name] = status[name] and {key: status[name][key] for key in keys}
    bundle.add_json("status.json", said)
    bundle.add_json("policy.json", _told(lambda: _numbers(directory / "policy.toml")))
    bundle.add_json("history.json", _told(lambda: _rows(directory)))
    say("examining the device")
    found = examined(doctor.probes(directory))
    bundle.add_json(
        "doctor.json",
        [{"id": f.id, "severity": f.severity, "line": f.line, "fix": f.fix} for f in found],
    )
    return bundle


def _told(make: Callable[[], Any]) -> Any:
    """Return what is made, or why it cannot be."""
    try:
        return make()
    except UmbelError as error:
        return {"error": str(error)}


def _numbers(file: Path) -> Mapping[str, Any]:
    """Return the settings of the policy that are numbers or switches."""
    policy = Policy.load(file)
    values = {item.name: getattr(policy, item.name) for item in fields(policy)}
    return {key: value for key, value in values.items() if isinstance(value, int | float)}


def _rows(directory: Path) -> list[dict[str, Any]]:
    entries = read_history(directory, newest=ROWS)
    return [{key: getattr(entry, key) for key in ROW} for entry in entries]
