"""The aggregation core as a world of W ranks: the same sums as world.py, by W processes.

A message lands in a slot in shared memory, and every rank folds its own columns of it. `fold` marks
a slot full and returns. When no batch is open, the full slots become the next batch: each rank adds
them to its shard, from one accumulator into the other, and sets its commit word (shared_sum.py);
when all have, the slots are free again. Slots that fill meanwhile are the batch after. Freezing the
sum waits for the batches.

    free -> filling -> full -> in the open batch -> free

Each node enters once, by the list of those that were folded, and each rank adds each batch once, by
its commit word: whenever a rank is killed, and however often (supervisor.py), the bits are those
of world.py. The last section of the message, a few uint64 words, is added up here.

Memory: the slots that are used, two accumulators, nothing that grows with the number of clients.
Where there is no memory for another slot, those in use must do. Slots are zeroed when the sum is
frozen; both files are kept for the next sum of the size.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np

from . import ranked_rows, ranked_step
from .segments import remove
from .shared_sum import SharedSum
from .supervisor import Job, Supervisor
from .world import World, check_sizes
from ...protocol import masks
from ...protocol.errors import PeerError, SettingsError, StateError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .kept import Keeping
    from .run_model import Moving, RunModel
    from .segments import Segment, Shelf
    from .world import Sum
    from ..stepping import StepOrder


KEPT = 2
"""Sizes of sums whose memory is kept: a run has two, and one of them has no ranks."""


class RankedWorld:
    """Ranks, and the memory for one sum after another; several sums may be open at a time."""

    def __init__(
        self,
        ranks: int,
        slots: int,
        shelf: Shelf,
        say: Callable[[str, str], None],
        freed: Callable[[], None] | None = None,
    ) -> None:
        """Start the ranks.

        Args:
            ranks: How many processes.
            slots: Uploads of a sum that may be in flight at once; half of them may be a batch.
            shelf: Where shared memory is made.
            say: Takes a kind and a line for the log.
            freed: Called in another thread when slots are free again; without it `Sum.slot`
                itself waits for a slot that is about to be.

        Raises:
            SettingsError: No slot, or a number of ranks that is none.
            StateError: The ranks do not start.
        """
        self._small = World(slots, shelf.create)
        self.slots, self.shelf, self.freed = slots, shelf, freed
        self.supervisor = Supervisor(ranks, say)
        self._lock = threading.Lock()
        self._idle: dict[tuple[int, int], list[tuple[Segment, Segment]]] = {}
        self.make = shelf.create

    @property
    def ranks(self) -> int:
        """How many ranks there are."""
        return self.supervisor.ranks

    def open(
        self, total_bytes: int, split: int, keeping: Keeping | None = None, first: int = 0
    ) -> Sum | RankedSum:
        """Start a sum of messages of `total_bytes`, the first `split` of them uint32 words.

        `first` is the number of the first, where they are parts of messages (spread_world.py). One
        without such words is a few numbers, and is the world of one's; so is a trimmed mean, which
        streams.

        Raises:
            SettingsError: The sizes fit no layout (multiples of 8 and 64 bytes).
            StateError: There is no memory for it.
        """
        check_sizes(total_bytes, split)
        if keeping is not None and not keeping.streams:
            return ranked_rows.opened(self._small, self.supervisor, total_bytes, split, keeping)
        if not split or keeping is not None:
            return self._small.open(total_bytes, split, keeping)
        about = SharedSum(total_bytes, split, self.slots, self.ranks)
        with self._lock:
            idle = self._idle.get((total_bytes, split), [])
            while idle and not all(file.path.exists() for file in idle[-1]):
                remove(idle.pop())  # somebody has cleaned up: a new rank would not find it
            ring, pair = idle.pop() if idle else self._make(about)
        named = about._replace(ring=str(ring.path), pair=str(pair.path), first=first)
        return RankedSum(self, named, ring, pair)

    def _make(self, about: SharedSum) -> tuple[Segment, Segment]:
        ring = self.shelf.create(about.ring_bytes, "slots", about.stride)
        try:
            pair = self.shelf.create(about.pair_bytes, "sums")
        except StateError:
            remove([ring])
            raise
        return ring, pair

    def take_back(self, about: SharedSum, ring: Segment, pair: Segment) -> None:
        """Keep the memory of a closed sum for the next of its size; of other sizes the newest."""
        size = about.total, about.split
        with self._lock:
            kept = self._idle.pop(size, [])
            self._idle[size] = [*kept, (ring, pair)]
            old = list(self._idle)[:-KEPT]
            gone = [segment for key in old for files in self._idle.pop(key) for segment in files]
        remove(gone)

    def rest(self) -> None:
        """Give up what is kept for the next sum: a run is over."""
        self._small.rest()
        with self._lock:
            kept, self._idle = self._idle, {}
        remove([segment for pairs in kept.values() for pair in pairs for segment in pair])

    def close(self) -> None:
        """End the ranks and remove their memory; sums that are open are lost."""
        self.supervisor.close()
        self.shelf.close()


class RankedSum:
    """One sum over a ring that W ranks fold, open until it is read."""

    def __init__(self, world: RankedWorld, about: SharedSum, ring: Segment, pair: Segment) -> None:
        """Made by `RankedWorld.open`: the files become this sum's, and are zeroed."""
        self.world, self.about = world, about
        self._ring, self._pair = ring, pair
        self._free = list(range(about.slots))[::-1]
        self._filling: dict[str, int] = {}
        self._used: set[int] = set()
        self._full: list[int] = []
        self._folding: list[int] = []
        self._folded: dict[str, None] = {}
        self._batch = 0
        self._frozen = self._wiping = self._wiped = self._closed = False
        self._failed: Exception | None = None
        self._change = threading.Condition()
        about.commits(pair)[:] = 0
        _zero(about.accumulator(pair, 0))
        self._numbers = bytearray(about.total - about.split)

    @property
    def survivors(self) -> tuple[str, ...]:
        """The nodes in the sum, in the order of arrival."""
        return tuple(self._folded)

    @property
    def memory(self) -> dict[str, int]:
        """Bytes that the sum takes at the most, by name."""
        return {"accumulators": self.about.pair_bytes, "slots": self.about.ring_bytes}

    def slot(self, node: str) -> memoryview | None:
        """Return the slot that `node` fills, the same one until it is folded or discarded.

        Returns:
            A writable view of the message's bytes, or None when every slot is taken.

        Raises:
            PeerError: The node is in the sum already, or the sum is frozen.
        """
        with self._change:
            self._refuse_late(node)
            if node not in self._filling:
                if self.world.freed is None:
                    self._change.wait_for(lambda: self._free or not self._folding)
                place = self._taken_slot()
                if place is None:
                    return None
                self._filling[node] = place
                self._used.add(place)
            return self.about.slot(self._ring, self._filling[node])

    def fold(self, node: str) -> None:
        """Let the slot of `node` be added to the sum; it is free when every rank has.

        Raises:
            PeerError: The node is in the sum already, holds no slot, or the sum is frozen.
            StateError: The ranks could not be kept alive.
        """
        with self._change:
            self._refuse_late(node)
            if self._failed is not None:
                raise self._failed
            if node not in self._filling:
                raise PeerError(node, "fold without a slot", "an upload", "nothing")
            place = self._filling.pop(node)
            numbers = self.about.slot(self._ring, place)[self.about.split :]
            total = np.frombuffer(self._numbers, "<u8")
            np.add(total, np.frombuffer(numbers, "<u8"), out=total)
            self._folded[node] = None
            self._full.append(place)
            self._go_on()

    def load(self, data: bytes | bytearray | memoryview, nodes: Sequence[str]) -> None:
        """Take the sum that an earlier process had folded from `nodes`, and freeze it.

        Raises:
            SettingsError: It has another size than this sum.
        """
        if len(data) != self.about.total:
            raise SettingsError("core.sum", f"{self.about.total} bytes", len(data))
        self._freeze()
        self._total()[:] = data
        self._numbers[:] = data[self.about.split :]
        self._folded = dict.fromkeys(nodes)

    def discard(self, node: str) -> None:
        """Free the slot of `node`, if it holds one; its bytes never reach the sum.

        Raises:
            PeerError: The node is in the sum: that cannot be undone.
        """
        with self._change:
            if node in self._folded:
                raise PeerError(node, "cannot be taken out of the sum again")
            if node in self._filling:
                self._free.append(self._filling.pop(node))

    def unmask(self, streams: Sequence[tuple[bytes | bytearray, int]]) -> None:
        """Freeze the sum and add (+1) or subtract (-1) the ChaCha20 stream of each key."""
        self._freeze()
        masks.check(self.about.total, self.about.split, streams)
        if not streams:
            return
        keys = bytearray().join(key for key, _ in streams)
        self._batch += 1
        try:
            job = self._job("unmask", keys, signs=[sign for _, sign in streams])
            masks.apply(self._numbers, 0, streams, start=self.about.split)
            job.wait()
        finally:
            keys[:] = bytes(len(keys))

    def numbers(self) -> memoryview:
        """Freeze the sum and return its uint64 words, no copy; valid until `close`."""
        self._freeze()
        return memoryview(self._numbers)

    def check(self, bound: int) -> None:
        """Refuse a sum with a uint32 word that, as int32, lies beyond +-bound.

        Raises:
            VoidRound: Masks are left in it.
        """
        self._freeze()
        self._job("check", bound=bound).wait()

    def step(self, model: RunModel, order: StepOrder) -> bytes:
        """Freeze the sum and make the next model out of it; return its digest.

        The sum is kept: a step may be done again. So it is when a rank dies in it, with the
        moments as the checkpoint has them.

        Raises:
            VoidRound: A value would not be finite; the model in force is what it was.
            StateError: The moments cannot be restored, or the ranks not be kept alive.
        """
        self._freeze()
        return ranked_step.step(self.world.supervisor, model, order, self._named())

    def move(self, model: Moving, order: StepOrder) -> bool:
        """Freeze the sum and move its words of the next model; whether every rank lived so long.

        Raises:
            VoidRound: A value would not be finite.
            StateError: The ranks could not be kept alive.
        """
        self._freeze()
        return ranked_step.moved(self.world.supervisor, model, order, self._named())

    def result(self) -> memoryview:
        """Freeze the sum and return it, no copy; valid until `close`."""
        self._freeze()
        total = self._total()
        total[self.about.split :] = self._numbers
        return total

    def close(self) -> None:
        """Zero the slots and hand the memory back, as soon as no rank works on it."""
        with self._change:
            closed, self._closed = self._closed, True
            if not (closed or self._folding or self._wiping):
                self._give_back()

    def _taken_slot(self) -> int | None:
        """Return a free slot that there is memory for, one that was used before a new one."""
        if self._free:
            with suppress(StateError):  # the slots in use must do
                self._ring.take(self._free[-1] * self.about.stride, self.about.stride)
                return self._free.pop()
        return None

    # -- batches ----------------------------------------------------------------------------

    def _job(self, op: str, payload: bytes | bytearray = b"", **fields: Any) -> Job:
        head = {"op": op, **self._named(), **fields}
        return self.world.supervisor.submit(Job(self.about.ranks, head, payload))

    def _named(self) -> dict[str, Any]:
        """Return how ranks know the sum, and which of its accumulators counts."""
        return {"sum": self.about._asdict(), "batch": self._batch}

    def _go_on(self) -> None:
        """Make the full slots the next batch, unless one is open."""
        if self._full and not self._folding and self._failed is None and not self._closed:
            self._folding, self._full = self._full, []
            self._batch += 1
            head = {"op": "fold", **self._named(), "slots": self._folding}
            self.world.supervisor.submit(Job(self.about.ranks, head, done=self._committed))

    def _committed(self, job: Job) -> None:
        """Free the slots of a batch that every rank has committed. In the supervisor's thread."""
        with self._change:
            self._failed = self._failed or job.error
            self._free += self._folding
            self._folding = []
            self._go_on()
            if self._closed:
                self._give_back()
            self._change.notify_all()
        if self.world.freed is not None:
            self.world.freed()

    def _freeze(self) -> None:
        """Let nothing in any more, wait for the batches, and have the slots zeroed, once.

        Zeroed first: no masked vector outlives its round. The lock is free meanwhile: ranks may
        have another sum in hand, and the event loop discards uploads.
        """
        with self._change:
            self._frozen = True
            self._change.wait_for(lambda: not self._folding and not self._wiping)
            wiping = self._wiping = not self._wiped and self._failed is None
        try:
            if wiping:
                for place in self._used:
                    _zero(self.about.slot(self._ring, place)[self.about.split :])
                self._job("wipe", slots=sorted(self._used)).wait()  # each rank its columns
                self._wiped = True
        finally:
            with self._change:
                self._wiping = self._wiping and not wiping
                if wiping and self._closed:
                    self._give_back()
                self._change.notify_all()
        if self._failed is not None:
            raise self._failed

    def _wipe(self) -> None:
        """Zero them here: perhaps no rank lives."""
        if not self._wiped:
            self._wiped = True
            for place in self._used:
                _zero(self.about.slot(self._ring, place))
            _zero(self.about.accumulator(self._pair, self._batch + 1))

    def _give_back(self) -> None:
        self._frozen = True
        self._failed = self._failed or StateError("core.sum", "an open sum", "one that was closed")
        self._wipe()
        self.world.take_back(self.about, self._ring, self._pair)

    def _total(self) -> memoryview:
        return self.about.accumulator(self._pair, self._batch)

    def _refuse_late(self, node: str) -> None:
        if node in self._folded:
            raise PeerError(node, "sent a second message for this sum")
        if self._frozen:
            raise PeerError(node, "came after the survivors were frozen")


def _zero(view: memoryview) -> None:
    np.frombuffer(view, np.uint8)[:] = 0
