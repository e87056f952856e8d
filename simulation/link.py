"""The in-process link: sessions and coordinator exchange the encoded bytes of every message.

What a network would carry is carried: messages as bytes, vectors and models as frames. Only
the transport and its delays are missing. The order is first in, first out, so a run is
repeatable; when nothing is left to do, time jumps to the next deadline.

No deadline comes while there is something to do: devices work side by side, and here one after
another, so what a thousand of them need together is not the time of one.
"""

from __future__ import annotations

import math
import time
from collections import deque
from itertools import islice
from typing import TYPE_CHECKING

from .. import __version__
from ..clients.session import Fetch, Send, Upload
from ..protocol import messages_pb2 as pb
from ..protocol.errors import StateError
from ..protocol.frames import PAYLOAD, Kind, frames
from ..server.gate import HELD_S

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from .drops import Drop
    from ..clients.session import Action, Session
    from ..server.attempt import Attempt
    from ..server.coordinator import Coordinator


_SHORTLY = 1e-3


class Clock:
    """Monotonic seconds that can be moved forward, or stand still, but never go back."""

    def __init__(self) -> None:
        """Start at the machine's own time."""
        self._ahead = 0.0
        self._seen = -math.inf

    def now(self) -> float:
        """Return the seconds."""
        return time.monotonic() + self._ahead

    def before(self, when: float) -> float:
        """Return the seconds; they stand still shortly before `when`, unless it was seen to be."""
        now = self.now()
        if now >= when:
            still = max(self._seen, when - _SHORTLY)
            self._ahead -= now - still
            now = still
        self._seen = now
        return now

    def skip_to(self, when: float) -> None:
        """Let it be `when`, if that is still to come."""
        self._ahead += max(0.0, when - self.now())


class Link:
    """Every client of one federation, and the way to its server."""

    def __init__(self, drops: Sequence[Drop] = (), clock: Clock | None = None) -> None:
        """Carry nothing yet; `drops` are losses to play."""
        self.clock = clock or Clock()
        self.tap: Callable[[str, str, bytes], None] = lambda _way, _node, _data: None
        """Sees everything that passes: way (`up`, `down`), node, bytes."""
        self.trained = 0
        """How many clients have finished the open attempt's training."""
        self.watch: Callable[[Link], None] = lambda _link: None
        """Called before every step."""
        self._drops = tuple(drops)
        self._queue: deque[tuple[str, bytes]] = deque()
        self._sessions: dict[str, Session] = {}
        self._index: dict[str, int] = {}
        self._uploads: dict[str, Upload] = {}
        self._lost: set[str] = set()
        self._coordinator: Coordinator | None = None
        self._open: Attempt | None = None

    def post(self, node: str, data: bytes) -> None:
        """Take a message of the server for a node."""
        self._queue.append((node, data))

    def connect(self, coordinator: Coordinator, sessions: Iterable[tuple[bytes, Session]]) -> None:
        """Join every session with its certificate, in this order."""
        self._coordinator = coordinator
        for index, (certificate, session) in enumerate(sessions):
            node = coordinator.join(certificate, self.clock.now(), __version__)
            self._sessions[node] = session
            self._index[node] = index

    @property
    def server(self) -> Coordinator:
        """The coordinator behind this link."""
        if self._coordinator is None:
            raise StateError("link", "a coordinator", "none", "connect it first")
        return self._coordinator

    def run(self) -> None:
        """Carry messages until the run is over."""
        self.server.begin(self.clock.now())
        while not self.server.done:
            self.step()
        while self._queue:
            self._deliver(*self._queue.popleft())

    def step(self) -> None:
        """Deliver one message, or all the frames that are wanted, or let a deadline come."""
        attempt = self.server.attempt
        if attempt is not self._open:
            self._open, self.trained = attempt, 0
        self.watch(self)
        if self._queue:
            self._deliver(*self._queue.popleft())
        elif not self._pump():
            if attempt is not None:
                self.clock.skip_to(attempt.due)
            else:  # a person is to decide whether the run goes on
                time.sleep(HELD_S)
            self.server.tick(self.clock.now())

    def _now(self) -> float:
        """Return the time at which something is done: before any deadline."""
        attempt = self.server.attempt
        return self.clock.now() if attempt is None else self.clock.before(attempt.due)

    @property
    def training(self) -> list[int]:
        """Who trains in the open attempt, by index, in the order of their turns."""
        if (attempt := self.server.attempt) is None:
            return []
        lost, number = self._lost, self.server.round
        here = (node for node in attempt.plan.cohort if node not in lost)
        return [self._index[node] for node in here if not self._due(node, "start", number)]

    def name(self, node: str) -> str:
        """Return what a person calls this node."""
        return f"client {self._index[node]}"

    # -- down -------------------------------------------------------------------------------

    def _deliver(self, node: str, data: bytes) -> None:
        session = self._sessions.get(node)
        if session is None or node in self._lost:
            return
        self.tap("down", node, data)
        body = pb.ToClient.FromString(data).WhichOneof("body") or ""
        if self._loses(node, body, self.server.round):
            return
        if body in {"start", "close", "goodbye"}:
            self._uploads.pop(node, None)
        self._do(node, session.receive(data))

    def _do(self, node: str, actions: Iterable[Action]) -> None:
        for action in actions:
            if node in self._lost:
                return
            if isinstance(action, Send):
                self._send(node, action.data)
            elif isinstance(action, Upload):
                self._uploads[node] = action
            else:
                self._fetch(node, action)

    def _fetch(self, node: str, wanted: Fetch) -> None:
        """Send the published model in frames."""
        session, server = self._sessions[node], self.server
        for frame in frames(Kind.MODEL, wanted.digest, server.published):
            server.bytes_down += len(frame)
            self._do(node, session.frame(frame))

    # -- up ---------------------------------------------------------------------------------

    def _send(self, node: str, data: bytes) -> None:
        self.tap("up", node, data)
        number = self.server.round  # which this message may end
        body = pb.ToServer.FromString(data).WhichOneof("body") or ""
        self.trained += body in {"keys", "ready"}
        self.server.message(node, data, self._now())
        # A vector counts as `masked` when its last frame has passed, not its header.
        self._loses(node, {"ready": "keys", "masked": ""}.get(body, body), number)

    def _pump(self) -> bool:
        """Send the frames of every vector that the server has room for."""
        moved = False
        for node in list(self._uploads):
            offset = self.server.wants(node)
            if offset is not None:
                self._upload(node, self._uploads.pop(node), offset)
                moved = True
        return moved

    def _upload(self, node: str, upload: Upload, offset: int) -> None:
        number = self.server.round  # which the last frame may end
        parts = frames(Kind.UPLOAD, upload.subject, upload.buffer, offset)
        if self._due(node, "upload", number):
            whole = -(-(len(upload.buffer) - offset) // PAYLOAD)
            parts = islice(parts, whole // 2)
        for frame in parts:
            self.tap("up", node, frame)
            self.server.frame(node, frame, self._now())
        if not self._loses(node, "upload", number):
            self._sessions[node].delivered()
            self._loses(node, "masked", number)

    # -- losses -----------------------------------------------------------------------------

    def _due(self, node: str, boundary: str, number: int) -> list[Drop]:
        """Return the losses that this node meets at this boundary of round `number`."""
        index = self._index[node]
        return [
            drop
            for drop in self._drops
            if drop.boundary == boundary and drop.round == number and index in drop.clients
        ]

    def _loses(self, node: str, boundary: str, number: int) -> bool:
        """Lose the node for good if it is to be lost at this boundary."""
        due = self._due(node, boundary, number)
        if node in self._lost or not due:
            return node in self._lost
        self._lost.add(node)
        self._uploads.pop(node, None)
        if not all(drop.silent for drop in due):
            self.server.leave(node, self._now())
        return True
