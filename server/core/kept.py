"""What a plain sum keeps of each message where a robust rule makes the mean.

    Kept         every message, in the slot that it came in: n messages, stated
    Streamed     the two lists of a trimmed mean and its sum: 2k + 2 words for each of section 32

A sum hands each whole message over in place of adding its first section up (world.py); the numbers
of its second section are added up as ever. Kept messages are put in the order of their nodes' ids,
so that a round has the same bits whoever came first. They are zeroed when the sum is closed.

Not here: what the rule does with rows (rows.py), who may use one (server/consistency.py).
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from .room import available
from .rows import KeptRows, TrimmedRows, enough
from ...protocol.errors import StateError
from ...strategies.numpy_tiles import NumpyTiles
from ...strategies.robust_rules import kernels
from ...strategies.trimmed_stream import TrimmedStream

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .run_model import Block
    from ..stepping import Mean
    from ...protocol.codec import Codec
    from ...strategies.robust_rules import Robust
    from ...strategies.trimmed_stream import Floats, Sum

    Slot = bytearray | memoryview


class Keeping(NamedTuple):
    """Why messages are kept."""

    robust: Robust
    codec: Codec
    """Of the roster, whose members are the most that come."""

    @property
    def streams(self) -> bool:
        """Whether messages are passed on one by one, and not kept."""
        return self.robust.streams(self.codec.members)


class Store(Protocol):
    """Where a sum's whole messages go."""

    @property
    def memory(self) -> dict[str, int]:
        """Bytes that the messages take at the most, by name, those under way among them."""

    def take(self, node: str, slot: Slot) -> Slot | None:
        """Take a whole message; return what may be filled in its slot's place, if anything."""

    def mean(self) -> Mean:
        """Return the rule's aggregate; nothing is taken any more, and it may be asked again.

        Raises:
            RoundFailed: Too few came, or the rule finds nothing to stand on.
        """

    def close(self) -> None:
        """Zero what is kept and give it up."""


class Pool:
    """Slots for messages that are kept, used again round after round; of one size at a time."""

    def __init__(self, make: Callable[[int, str], Block]) -> None:
        """Take memory by `make`, which is given a size and a word for it."""
        self._make, self._size = make, 0
        self._idle: list[Block] = []
        self._lock = threading.RLock()  # one run folds in a thread while another's sum is opened

    def get(self, size: int) -> Block:
        """Return a slot; the idle ones of another size are given up first."""
        with self._lock:
            if size != self._size:
                self.close()
                self._size = size
            return self._idle.pop() if self._idle else self._make(size, "row")

    def put(self, size: int, blocks: list[Block]) -> None:
        """Take slots back, zeroed."""
        for block in blocks:
            np.frombuffer(block.view, np.uint8)[:] = 0
        with self._lock:
            if size == self._size:
                self._idle += blocks
            else:
                _give_up(blocks)

    def close(self) -> None:
        """Give the idle slots up."""
        with self._lock:
            gone, self._idle = self._idle, []
        _give_up(gone)


class Lease:
    """The slots of one sum: as many as messages can come, made when they are asked for."""

    def __init__(self, pool: Pool, size: int, most: int) -> None:
        """Take none yet."""
        self._pool, self.size, self.most = pool, size, most
        self.blocks: list[Block] = []
        self._views: list[memoryview] = []

    def get(self) -> memoryview | None:
        """Return another slot, or None when there are enough for all."""
        if len(self.blocks) >= self.most:
            return None
        self.blocks.append(self._pool.get(self.size))
        self._views.append(self.blocks[-1].view[: self.size])
        return self._views[-1]

    def path(self, slot: Slot) -> str:
        """Return where others find a slot that was got here."""
        place = next(i for i, view in enumerate(self._views) if view is slot)
        return str(self.blocks[place].path)

    def end(self) -> None:
        """Zero all and give them back."""
        blocks, self.blocks, self._views = self.blocks, [], []
        self._pool.put(self.size, blocks)


class Kept:
    """The messages themselves."""

    def __init__(self, keeping: Keeping, split: int, lease: Lease) -> None:
        """Keep nothing yet; the slots are those of `lease`."""
        self._keeping, self._split, self._lease = keeping, split, lease
        self._messages: dict[str, Slot] = {}

    @property
    def memory(self) -> dict[str, int]:
        """A slot for each that may come."""
        return {"messages": self._lease.most * self._lease.size}

    def take(self, node: str, slot: Slot) -> Slot | None:
        """Keep a message with its slot."""
        self._messages[node] = slot
        return self._lease.get()

    @property
    def ordered(self) -> list[Slot]:
        """The messages, in the order of their nodes' ids."""
        return [self._messages[node] for node in sorted(self._messages)]

    @property
    def named(self) -> dict[str, Any]:
        """Where others find the messages, in that order, and the sizes."""
        paths = [self._lease.path(message) for message in self.ordered]
        return {"paths": paths, "nbytes": self._lease.size, "split": self._split}

    def rows(self) -> KeptRows:
        """Return the rows, nothing decided yet.

        Raises:
            TooFewMembers: Too few came.
        """
        return rows_of(self._keeping, self.ordered, self._split)

    def mean(self) -> KeptRows:
        """Return the aggregate of the rows, the inner products made where the rule needs them."""
        rows = self.rows()
        if rows.parts:
            rows.decide([rows.products(part) for part in rows.parts])
        return rows

    def close(self) -> None:
        """Zero the messages, and all slots with them."""
        self._messages = {}
        self._lease.end()


class Streamed:
    """A trimmed mean of messages that are not kept."""

    def __init__(self, keeping: Keeping, split: int, slots: int) -> None:
        """Allocate the lists; the messages come in so many bytes of slots.

        Raises:
            StateError: There is no memory for them.
        """
        self._split, self._slots = split, slots
        rows, why = keeping.robust.kept(keeping.codec.members)
        if rows * split > (free := available()):
            expected = f"{rows * split >> 20} MiB of memory ({why})"
            raise StateError("robust", expected, f"{free >> 20} MiB", "lower cohort or robust-cut")
        self._rows = TrimmedRows(*keeping, split // 4, _Passes())

    @property
    def memory(self) -> dict[str, int]:
        """The lists, and the slots."""
        return {"lists": self._rows.nbytes, "slots": self._slots}

    def take(self, _node: str, slot: Slot) -> Slot:
        """Pass a message through the lists; its slot is free again."""
        words = np.frombuffer(slot, "<u4", self._split // 4)
        self._rows.add(words, weight_of(slot, self._split))
        return slot

    def mean(self) -> TrimmedRows:
        """Return the trimmed mean of those that came."""
        self._rows.freeze()
        return self._rows

    def close(self) -> None:
        """Do nothing: single values are gone, and the lists go with this."""


_COMPILED = threading.Event()


class _Passes:
    """The passes of a trimmed mean: numpy's, until the compiled ones are ready.

    They are compiled in a thread, once a process: while uploads wait, a round's time runs. Both
    leave the same bits.
    """

    def __init__(self) -> None:
        """Begin to compile, unless it was done, or cannot be."""
        self._slow, self._fast = NumpyTiles(1), kernels(1)[0]
        if self._fast.name != self._slow.name and not _COMPILED.is_set():
            threading.Thread(target=_compile, daemon=True).start()

    def insert(self, rows: Floats, seen: int, state: tuple[Floats, Floats, Sum]) -> None:
        """Pass rows through the state, as the tiles' own."""
        (self._fast if _COMPILED.is_set() else self._slow).insert(rows, seen, state)


def _compile() -> None:
    TrimmedStream(1, 1, kernels(1)[0], np.float64).update(np.zeros(1, np.float32))
    _COMPILED.set()


def rows_of(keeping: Keeping, messages: Sequence[Slot], split: int) -> KeptRows:
    """Return the rows of whole messages, by the fastest kernels that are installed.

    Raises:
        TooFewMembers: There are too few of them.
    """
    enough(keeping.robust, len(messages))
    words = [np.frombuffer(message, "<u4", split // 4) for message in messages]
    weights = [weight_of(message, split) for message in messages]
    return KeptRows(*keeping, words, weights, kernels(len(messages))[0])


def weight_of(message: Slot, split: int) -> int:
    """Return the weight in a message whose section 64 the firewall has passed."""
    return int(np.frombuffer(message, "<u8", 1, split + 8)[0])


def _give_up(blocks: list[Block]) -> None:
    for block in blocks:
        block.unlink()
        block.close()
