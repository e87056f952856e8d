"""The aggregation core as a world of one: the embedded default, numpy, in the caller's process.

A `World` owns slots; a `Sum` is one round's accumulator. A slot goes free -> filling -> folded ->
free. Nothing of an update touches the accumulator before the update is whole and checked, and each
node is folded at most once. When no slot is free, `Sum.slot` gives None: that is the back-pressure,
the ingest stops reading. Memory is the accumulator and the slots, flat in the number of clients.
The slots are given up when the sum is frozen, so that the server step finds room for its model; the
accumulator with the sum. Where a robust rule needs more than a sum, whole
messages go to a store instead (kept.py), and only their uint64 words are added up.

A message is `split` bytes of little-endian uint32 words and then uint64 words, both summed modulo
their word size (docs/protocol.md, section 8.2). Float models come in
Flower's messages only (strategies/landing.py). Not here: who may be folded (firewall.py), what the
sum means (protocol/layout.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import numpy as np

from .kept import Kept, Lease, Pool, Streamed
from .pages import zeros
from .run_model import Own
from .unmask import unmask
from .. import stepping
from ...protocol.codec import check_sum
from ...protocol.errors import PeerError, SettingsError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from .kept import Keeping, Slot, Store
    from .run_model import Block, Moving, RunModel
    from ..stepping import StepOrder

S = TypeVar("S")


class World:
    """Buffers for one sum after another; several sums may be open at a time."""

    def __init__(self, slots: int = 1, make: Callable[[int, str], Block] = Own) -> None:
        """Take `slots` slots a sum: uploads that may be in flight at once, 1 or more.

        `make` takes a size and a word for it, and gives memory for models: other processes can map
        what is not this one's own.
        """
        if slots < 1:
            raise SettingsError("core.slots", "1 or more", slots)
        self.slots = slots
        """Uploads of a sum that may be in flight at once."""
        self.make = make
        self._pool = Pool(make)

    def open(
        self, total_bytes: int, split: int, keeping: Keeping | None = None, first: int = 0
    ) -> Sum:
        """Start a sum of messages of `total_bytes`, the first `split` of them uint32 words.

        `keeping` says why the messages are not simply added up, where they are not; `first` is the
        number of the first word, where they are parts of messages (spread_world.py).

        Raises:
            SettingsError: The sizes fit no layout (multiples of 8 and 64 bytes).
        """
        check_sizes(total_bytes, split)
        if keeping is None:
            slots = self._slots(total_bytes)
            return Sum(self, split, zeros(total_bytes), slots, first=first)
        if keeping.streams:
            numbers = zeros(total_bytes - split)
            lists = Streamed(keeping, split, total_bytes * self.slots)
            return Sum(self, 0, numbers, self._slots(total_bytes), lists)
        return self.open_kept(total_bytes, split, keeping, Sum)

    def open_kept(
        self,
        total_bytes: int,
        split: int,
        keeping: Keeping,
        made: Callable[[World, int, memoryview, list[Slot], Kept], S],
    ) -> S:
        """Start a sum whose messages are kept; `made` makes it, as `Sum` does."""
        lease = Lease(self._pool, total_bytes, keeping.codec.members)
        slots: list[Slot] = [slot for _ in range(self.slots) if (slot := lease.get()) is not None]
        store = Kept(keeping, split, lease)
        return made(self, 0, zeros(total_bytes - split), slots, store)

    def rest(self) -> None:
        """Give up what is kept for the next sum: a run is over."""
        self._pool.close()

    def _slots(self, size: int) -> list[Slot]:
        return [zeros(size) for _ in range(self.slots)]


class Sum:
    """One sum over a ring, open until it is read."""

    def __init__(
        self,
        world: World,
        split: int,
        total: memoryview,
        slots: list[Slot],
        store: Store | None = None,
        first: int = 0,
    ) -> None:
        """Made by `World.open`: `total`, zeros, becomes the accumulator.

        With a `store` it is for the end of each message only, and the store takes the whole.
        """
        self._world = world
        self._split = split
        self._total = total
        self._first = first
        self._fresh = slots
        self._free: list[Slot] = []
        self._store = store
        self._filling: dict[str, Slot] = {}
        self._folded: dict[str, None] = {}
        self._frozen = False

    @property
    def survivors(self) -> tuple[str, ...]:
        """The nodes in the sum, in the order of arrival."""
        return tuple(self._folded)

    def slot(self, node: str) -> memoryview | None:
        """Return the slot that `node` fills, the same one until it is folded or discarded.

        Returns:
            A writable view of `total_bytes` bytes, or None when every slot is taken.

        Raises:
            PeerError: The node is in the sum already, or the sum is frozen.
        """
        self._refuse_late(node)
        if node not in self._filling:
            if not (slots := self._free or self._fresh):  # one that was used before a new one
                return None
            self._filling[node] = slots.pop()
        return memoryview(self._filling[node])

    def fold(self, node: str) -> None:
        """Add the slot of `node` to the sum and free it.

        Raises:
            PeerError: The node is in the sum already, holds no slot, or the sum is frozen.
        """
        self._refuse_late(node)
        if node not in self._filling:
            raise PeerError(node, "fold without a slot", "an upload", "nothing")
        slot = self._filling.pop(node)
        summed = memoryview(slot)[len(slot) - len(self._total) :]
        for dtype, start, stop in self._sections():
            total = np.frombuffer(self._total, dtype)[start:stop]
            np.add(total, np.frombuffer(summed, dtype)[start:stop], out=total)
        self._folded[node] = None
        free = slot if self._store is None else self._store.take(node, slot)
        if free is not None:
            self._free.append(free)

    def load(self, data: bytes | bytearray | memoryview, nodes: Sequence[str]) -> None:
        """Take the sum that an earlier process had folded from `nodes`, and freeze it.

        Raises:
            SettingsError: It has another size than this sum.
        """
        if len(data) != len(self._total):
            raise SettingsError("core.sum", f"{len(self._total)} bytes", len(data))
        self._total[:] = data
        self._folded = dict.fromkeys(nodes)
        self._freeze()

    def discard(self, node: str) -> None:
        """Free the slot of `node`, if it holds one; its bytes never reach the sum.

        Raises:
            PeerError: The node is in the sum: that cannot be undone.
        """
        if node in self._folded:
            raise PeerError(node, "cannot be taken out of the sum again")
        if node in self._filling:
            self._free.append(self._filling.pop(node))

    def unmask(self, streams: Sequence[tuple[bytes | bytearray, int]]) -> None:
        """Freeze the sum and add (+1) or subtract (-1) the ChaCha20 stream of each key."""
        self._freeze()
        unmask(self._total, self._split, streams, start=4 * self._first)

    @property
    def memory(self) -> dict[str, int]:
        """Bytes that this sum takes at the most, by name; its slots are given up at the freeze."""
        size = len(self._total)
        if self._store is not None:
            return {"accumulators": size, **self._store.memory}
        return {"accumulators": size, "slots": size * self._world.slots}

    def numbers(self) -> memoryview:
        """Freeze the sum and return its uint64 words, no copy; valid until `close`."""
        return self.result()[self._split :]

    def check(self, bound: int) -> None:
        """Freeze the sum and refuse one with a uint32 word beyond `bound`, as a signed number.

        Raises:
            VoidRound: Masks are left in it.
        """
        check_sum(self._words(), bound)

    def step(self, model: RunModel, order: StepOrder) -> bytes:
        """Freeze the sum and make the next model out of it; return its digest.

        The sum is kept: a step may be done again.

        Raises:
            VoidRound: A value would not be finite; the model in force is what it was.
            RoundFailed: Too few came for a robust rule, or it finds nothing to stand on.
            StateError: The moments cannot be restored.
        """
        words = self._words()
        mean = stepping.SumMean(words, 0, order) if self._store is None else self._store.mean()
        return model.step(order, mean)

    def move(self, model: Moving, order: StepOrder) -> bool:
        """Freeze the sum and move its words of the next model; whether it was done to the end.

        Raises:
            VoidRound: A value would not be finite.
        """
        words, first = self._words(), self._first
        moments = {name: model.moments[name].view for name in order.rule.moments}
        buffers = (model.current.view, model.made.view, moments)
        stepping.move(words, first, order, *buffers)
        return True

    def _words(self) -> NDArray[np.uint32]:
        self._freeze()
        return np.frombuffer(self._total, "<u4", self._split // 4)

    def result(self) -> memoryview:
        """Freeze the sum and return it, no copy; valid until `close`."""
        self._freeze()
        return self._total

    def close(self) -> None:
        """Zero the slots and give everything up; the result is gone with its last view."""
        self._free += self._filling.values()
        self._filling = {}
        self._freeze()
        if self._store is not None:
            self._store.close()
        self._total = memoryview(b"")

    def _freeze(self) -> None:
        """Let nothing in any more, and give the slots' memory up before the step needs its own.

        Zeroed first: no masked vector outlives its round.
        """
        self._frozen = True
        for slot in self._free:
            np.frombuffer(slot, np.uint8)[:] = 0
        self._free.clear()
        self._fresh.clear()

    def _sections(self) -> tuple[tuple[str, int, int], tuple[str, int, int]]:
        """Return dtype, first word and end word of the two sections."""
        size = len(self._total)
        return ("<u4", 0, self._split // 4), ("<u8", self._split // 8, size // 8)

    def _refuse_late(self, node: str) -> None:
        if node in self._folded:
            raise PeerError(node, "sent a second message for this sum")
        if self._frozen:
            raise PeerError(node, "came after the survivors were frozen")


def check_sizes(total_bytes: int, split: int) -> None:
    """Refuse sizes that no message has.

    Raises:
        SettingsError: They are no multiples of 8 and 64 bytes.
    """
    if total_bytes < 1 or total_bytes % 8 or split % 64 or not 0 <= split <= total_bytes:
        raise SettingsError(
            "core.message", "multiples of 8 and 64 bytes, split <= total", (total_bytes, split)
        )
