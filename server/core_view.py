"""What a core service shows its operator: runs, sessions, and what became of each node's calls.

Asked by the command `status` on `core.sock`, on a connection of its own, which changes nothing.
Kept in memory, since the service began: of each node how often it joined, its bytes, when it was
heard, and how the last call that was turned away ended. No message, key or vector.

Where a round stands is read off what the ServerApp sends its members: `Start` names round and
attempt, and what comes after it says which exchange goes on.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from google.protobuf.message import DecodeError

from ..protocol import messages_pb2 as pb

if TYPE_CHECKING:
    from .core_service import Core
    from .endings import Turned
    from .served import Served

MOST_NODES = 5000
PLAIN = "plain"
STANDS = {
    "start": "inviting", "roster": "sharing", "inbox": "summing", "survivors": "voting",
    "votes": "unmasking", "close": "between rounds",
}  # fmt: skip
"""The phase of a round in which such a message was the last: those of docs/operations.md, 8."""
_BODY = pb.ToClient.DESCRIPTOR.oneofs_by_name["body"]
_FIELDS = {field.number: field.name for field in _BODY.fields}
_CTX = bytes((0x0A, 32))
"""How the field `ctx`, 32 bytes, begins on the wire."""


@dataclass(slots=True)
class Seen:
    """What is known of one node's calls."""

    joined: int = 0
    """How often a session of it began."""
    up: int = 0
    down: int = 0
    """Bytes of messages, vectors and models."""
    heard: int = 0
    """When it was heard last, seconds since 1970; 0 for never."""
    ending: str = ""
    """How the last call that was turned away ended (endings.py), and when, and the log's line."""
    turned: int = 0
    line: str = ""


class Watch:
    """The nodes that called since the service began."""

    def __init__(self) -> None:
        """Know nobody."""
        self.nodes: dict[str, Seen] = {}

    def of(self, node: str, now: float) -> Seen:
        """Return a node's row, which it has from now on; it was just heard."""
        if node not in self.nodes and len(self.nodes) >= MOST_NODES:
            return Seen()
        found = self.nodes.setdefault(node, Seen())
        found.heard = int(now)
        return found

    def turned(self, error: Turned, now: float) -> None:
        """Note that a call was turned away; whose it was is not always known."""
        if len(error.peer) == len("00" * 16):
            found = self.of(error.peer, now)
            found.ending, found.turned, found.line = error.ending.name, int(now), str(error)


def kind_of(message: bytes | bytearray) -> str:
    """Return which body a ToClient of our own encoder has; "" for none."""
    at = len(_CTX) + 32 if message[: len(_CTX)] == _CTX else 0
    return _FIELDS.get(message[at] >> 3, "") if len(message) > at else ""


def view(core: Core) -> bytes:
    """Return everything, as JSON."""
    began = core.steady().timestamp() - core.since
    found = {
        "began": int(began),
        "runs": {run: _run(core, run, served) for run, served in core.served.items()},
        "nodes": {node: asdict(seen) for node, seen in core.watch.nodes.items()},
    }
    return json.dumps(found).encode()


def _run(core: Core, run: str, served: Served) -> dict[str, Any]:
    now = core.clock()
    sessions = [
        {
            "node": session.node,
            "connected": session.stream is not None,
            "leaving": session.leaving,
            "silent_s": _past(now - session.heard),
        }
        for session in core.sessions.of(run)
    ]
    return {
        "serverapp": served.outlet is not None,
        "up": served.up,
        "down": served.down,
        "sessions": sessions,
        **_stands(served),
    }


def _stands(served: Served) -> dict[str, Any]:
    """Return round, attempt and phase; nothing before the first round."""
    try:
        start = pb.ToClient.FromString(served.start).start
    except DecodeError:
        return {}
    if not start.run:
        return {}
    phase = STANDS.get(served.stands, "")
    if phase == STANDS["roster"] and start.scheme == PLAIN:
        phase = STANDS["inbox"]  # a plain round has no shares
    what = pb.Phase.Name(start.phase).removeprefix("PHASE_").lower()
    return {"round": start.round, "attempt": start.attempt, "what": what, "phase": phase}


def _past(seconds: float) -> float | None:
    return round(max(seconds, 0.0), 1) if math.isfinite(seconds) else None
