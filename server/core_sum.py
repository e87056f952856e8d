"""The open sum of a run in the core service: who may upload, and what has become of whom.

Between the upload calls of the gateway and an `Ingest`. A node is *expected* once the ServerApp
has accepted its header, with the SHA-256 that the node signed. Then it is granted a slot, sends
its frames, and is *whole*, which the ServerApp learns when the hash agrees; it is folded only
when the ServerApp says so. A node that sends wrong bytes is *bad*: the ServerApp learns why, its
slot is free at once, and nothing of it is taken any more.

The hash is taken while the frames come (running_hash.py), so that the last one brings no pause.
"""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, TypeVar

from .endings import Ending, Turned
from .ingest import Ingest, Shape
from .running_hash import RunningHash
from ..protocol.errors import BadUpdate, Malformed, PeerError, VoidRound

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from .core.run_model import RunModel
    from .core.worlds import AnyWorld
    from .stepping import StepOrder

T = TypeVar("T")
STALLED = "its upload stalled while others waited for the slot"


class CoreSum:
    """One sum, from `sum` to `close_sum`."""

    def __init__(
        self,
        world: AnyWorld,
        ctx: bytes,
        shape: Shape,
        check: Callable[[str, memoryview], None] | None,
        tell: Callable[..., None],
    ) -> None:
        """Open it.

        Args:
            world: Where the slots are.
            ctx: What the vectors are bound to.
            shape: Sizes of one message, and patience.
            check: Refuses an unmasked vector (BadUpdate); None where masks are on.
            tell: Takes `whole`, `bad` and `progress`, as events for the ServerApp.
        """
        self.ctx, self.shape = ctx, shape
        self.frozen = self._closed = self._busy = False
        self._ingest = Ingest(world, ctx, shape, check or (lambda _node, _slot: None))
        self._tell = tell
        self._expected: dict[str, bytes] = {}
        self._hashes: dict[str, RunningHash] = {}
        self._whole: set[str] = set()
        self._gone: set[str] = set()
        self._told_until = -math.inf

    @property
    def due(self) -> float:
        """When a slot that others wait for has rested too long."""
        return self._ingest.patient_until

    def expect(self, node: str, y_hash: bytes) -> None:
        """Let a node upload the vector with this SHA-256."""
        self._expected.setdefault(node, y_hash)

    def expects(self, node: str) -> bool:
        """Say whether a node may upload as soon as it has a slot."""
        return node in self._expected

    def grant(self, node: str, now: float) -> int | None:
        """Return the offset from which a node is to send; None for not yet.

        Raises:
            Turned: Nothing is wanted of it any more.
        """
        if node in self._whole or node in self._ingest.folded:
            return self.shape.total
        if node in self._gone or self.frozen:
            raise Turned(Ending.NOT_WANTED, node, "uploads what is not wanted any more")
        return self._ingest.wants(node, now) if node in self._expected else None

    def give_up(self, node: str) -> None:
        """Note that a node waits no longer for a slot."""
        self._ingest.unwait(node)

    def frame(self, node: str, data: bytes, now: float) -> bool:
        """Take a frame and say whether nothing more is needed of the node.

        Raises:
            Turned: The frame is wrong, or the node is not wanted any more.
        """
        granted = self.grant(node, now)
        if granted == self.shape.total:
            return True
        if granted is None:
            raise Turned(Ending.MALFORMED, node, "sent frames without having been given a slot")
        try:
            whole = self._ingest.accept(node, data, now)
            self._hash(node, now)
            if whole:
                self._settle(node)
        except PeerError as error:
            # Other bytes than before, or than were signed, are no slip. The firewall's numbers are
            # one client's, and go neither into a ledger nor into a log.
            self._bad(node, error.record, attack=not isinstance(error, Malformed | BadUpdate))
            what = error.record.removeprefix(f"{node}: ")
            raise Turned(Ending.MALFORMED, node, what) from error
        return whole

    def _hash(self, node: str, now: float) -> None:
        """Take what is new in the slot into the node's hash."""
        received = self._ingest.wants(node, now) or 0
        running = self._hashes.setdefault(node, RunningHash())
        running.update(self._ingest.slot(node)[running.length : received])

    def _settle(self, node: str) -> None:
        """Compare a whole vector with what its node signed, and say that it is here."""
        if self._hashes.pop(node).digest() != self._expected[node]:
            raise PeerError(node, "the update does not hash to what was signed")
        self._ingest.check(node)
        self._whole.add(node)
        self._tell("whole", node=node, ctx=self.ctx.hex())

    def fold(self, node: str) -> None:
        """Add a whole vector to the sum.

        Raises:
            PeerError: It is not whole.
        """
        if node not in self._whole:
            raise PeerError(node, "is not whole, and cannot be folded")
        self._ingest.fold(node)
        self._whole.discard(node)

    def discard(self, node: str) -> None:
        """Forget a node; nothing of it is taken any more, and what is folded stays."""
        self._gone.add(node)
        self._whole.discard(node)
        if node in self._hashes:
            self._hashes.pop(node).wait()
        self._ingest.discard(node)

    def tick(self, now: float) -> None:
        """Take the slots back that have rested too long."""
        for node in self._ingest.stalled(now):
            self._bad(node, f"{node}: {STALLED}", attack=False)

    def say_progress(self, now: float) -> None:
        """Tell the ServerApp while an upload keeps pace, so that it waits for it."""
        until = self._ingest.alive_until
        if until > max(now, self._told_until):
            self._told_until = until
            self._tell("progress", ctx=self.ctx.hex(), left=round(until - now, 3))

    def unmask(self, streams: Sequence[tuple[bytes | bytearray, int]]) -> None:
        """Freeze the sum and take the streams off it."""
        self.frozen = True
        self._ingest.unmask(streams)

    def wrong(self, bound: int) -> str:
        """Freeze the sum and say what is wrong with its codes if any is beyond `bound`."""
        self.frozen = True
        try:
            self._ingest.sum.check(bound)
        except VoidRound as error:
            return str(error)
        return ""

    def numbers(self) -> memoryview:
        """Freeze the sum and return its uint64 words; valid until `close`."""
        self.frozen = True
        return self._ingest.sum.numbers()

    def step(self, model: RunModel, order: StepOrder) -> bytes:
        """Freeze the sum and make the next model out of it; return its digest."""
        self.frozen = True
        return self._ingest.sum.step(model, order)

    @property
    def memory(self) -> dict[str, int]:
        """Bytes that the sum takes, by name."""
        return self._ingest.sum.memory

    def save(self, path: Path) -> bytes:
        """Freeze the sum and write it to a new file; return its SHA-256."""
        self.frozen = True
        return self._ingest.save(path)

    def load(self, path: Path, digest: bytes, nodes: Sequence[str]) -> None:
        """Freeze the sum as an earlier core service saved it."""
        self.frozen = True
        self._ingest.load(path, digest, nodes)

    async def in_thread(self, work: Callable[..., T], *arguments: object) -> T:
        """Do arithmetic on the buffers beside the event loop; a `close` meanwhile waits for it."""
        self._busy = True
        try:
            return await asyncio.to_thread(work, *arguments)
        finally:
            self._busy = False
            if self._closed:
                self._ingest.close()

    def close(self) -> None:
        """Zero the slots and give the buffers back, as soon as no thread works on them."""
        self.frozen = self._closed = True
        for running in self._hashes.values():
            running.wait()
        if not self._busy:
            self._ingest.close()

    def _bad(self, node: str, why: str, *, attack: bool) -> None:
        self.discard(node)
        why = why.removeprefix(f"{node}: ")
        self._tell("bad", node=node, ctx=self.ctx.hex(), why=why, attack=attack)
