"""What the core service holds for one run: the way to its ServerApp, its open sum, its model.

Plain state; core_service.py says what devices may do with it, core_commands.py what the ServerApp.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple, Protocol

from .core_view import STANDS, kind_of
from .endings import Ending, Turned

if TYPE_CHECKING:
    import asyncio

    from .core.run_model import RunModel
    from .core_sum import CoreSum
    from .streams import Session

PAST = 16
"""Contexts of closed sums that are remembered, so that late uploads are turned away at once."""


def not_open(node: str) -> Turned:
    """Return the end of an upload for a sum that is closed, or never was."""
    return Turned(Ending.NOT_WANTED, node, "uploads for a sum that is not open")


class Outlet(Protocol):
    """The way to a ServerApp."""

    waiting: int
    """Bytes that it has not read yet."""

    def send(self, op: str, payload: bytes | memoryview, fields: dict[str, object]) -> None:
        """Queue an event."""

    async def room(self) -> None:
        """Return when `waiting` is low again, or nobody reads any more."""

    async def flushed(self) -> None:
        """Return when everything has left, or nobody reads any more."""

    def close(self) -> None:
        """End the connection."""


class Served:
    """What the core holds for one run."""

    def __init__(self, key: bytes) -> None:
        """Hold nothing but the ticket key."""
        self.key = key
        self.outlet: Outlet | None = None
        self.sum: CoreSum | None = None
        self.model: RunModel | None = None
        self.told: dict[str, int] = {}
        """What memory the log says that the run takes."""
        self.up = self.down = 0
        self.past: deque[bytes] = deque(maxlen=PAST)
        self.start, self.stands = b"", ""
        """The newest `Start` that was sent, and the kind of the last message (core_view.py)."""
        self.waiting: dict[str, tuple[bytes, asyncio.Future[int]]] = {}
        self.uploads: dict[str, Upload] = {}

    def posted(self, message: bytes) -> None:
        """Note where the round stands, by what its members are sent."""
        kind = kind_of(message)
        if kind in STANDS:
            self.stands = kind
            self.start = message if kind == "start" else self.start

    def put(self, model: RunModel | None) -> None:
        """Put a model in force, in place of the one before."""
        before, self.model = self.model, model
        if before is not None:
            before.close()

    def published(self, digest: bytes) -> memoryview | None:
        """Return the model of this digest if it is the one in force: no other may be fetched."""
        in_force = self.model is not None and self.model.digest == digest
        return self.model.packed if self.model is not None and in_force else None

    def memory(self) -> dict[str, int]:
        """Return the bytes that the run's vectors and models take at the most, by name."""
        found = self.sum.memory if self.sum is not None else {}
        return found | (self.model.memory if self.model is not None else {})

    def pump(self, now: float) -> None:
        """Grant slots to those who wait, in the order of asking."""
        for node, (ctx, granted) in list(self.waiting.items()):
            if granted.done():
                continue
            if self.sum is None or self.sum.ctx != ctx:
                if ctx in self.past:
                    granted.set_exception(not_open(node))
                continue
            try:
                offset = self.sum.grant(node, now)
            except Turned as error:
                granted.set_exception(error)
                continue
            if offset is not None:
                granted.set_result(offset)
            elif self.sum.expects(node):
                return  # no slot for the first in line, hence for nobody


class Upload:
    """One upload call of a node."""

    def __init__(self, served: Served, session: Session, into: CoreSum, offset: int) -> None:
        """Start at `offset`, where the slot is filled."""
        self.served, self.session, self.into, self.offset = served, session, into, offset
        self.received = offset


class Download(NamedTuple):
    """One fetch of a node."""

    served: Served
    session: Session
    digest: bytes
    model: memoryview
    offset: int
