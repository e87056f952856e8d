"""Where one sum of several ranks lies in shared memory: the ring of slots and the accumulators.

    ring file    slot 0 | slot 1 | ...                each one message, from a whole page on
    pair file    commit words | accumulator 0 | accumulator 1

A rank's *commit word* is the number of the last batch it has finished for this sum, 8 bytes in a
line of cache of its own. Batch b reads accumulator (b - 1) mod 2 and writes accumulator b mod 2,
every word of the rank's shard; then the word is set to b, one store. So whoever reads word b knows
which accumulator counts, and a batch that a rank was killed in is done again from the other one.
Taking masks off is a batch like a fold. All ranks are at the same batch when none is open.

Only the first section of a message, uint32 words, is the ranks'. The second is a few numbers, and
the supervisor adds them itself (ranked_world.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from .shards import shards

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .segments import Segment

PAGE = 4096
_LINE = 64


class SharedSum(NamedTuple):
    """The sizes and files of a sum; as a dict it travels in a frame."""

    total: int
    """Bytes of a message."""
    split: int
    """Bytes of its first section, a multiple of 64."""
    slots: int
    ranks: int
    ring: str = ""
    pair: str = ""
    first: int = 0
    """The number of its first word, where it is of parts of messages."""

    @property
    def stride(self) -> int:
        """Bytes from one slot, or accumulator, to the next."""
        return -(-self.total // PAGE) * PAGE

    @property
    def ring_bytes(self) -> int:
        """Bytes of the file of slots."""
        return self.slots * self.stride

    @property
    def pair_bytes(self) -> int:
        """Bytes of the file of accumulators."""
        return self._first + 2 * self.stride

    @property
    def _first(self) -> int:
        return -(-self.ranks * _LINE // PAGE) * PAGE

    def slot(self, ring: Segment, place: int) -> memoryview:
        """Return the bytes of a slot."""
        start = place * self.stride
        return ring.view[start : start + self.total]

    def rows(self, ring: Segment, rank: int) -> NDArray[Any]:
        """Return a rank's columns of every slot, int32, (slots, words of the shard)."""
        low, high = self.shard(rank)
        return ring.array("<i4").reshape(self.slots, -1)[:, low:high]

    def accumulator(self, pair: Segment, batch: int) -> memoryview:
        """Return the bytes of what batch `batch` has written: a message."""
        start = self._first + (batch & 1) * self.stride
        return pair.view[start : start + self.total]

    def mine(self, pair: Segment, batch: int, rank: int) -> NDArray[Any]:
        """Return a rank's shard of that accumulator, int32."""
        low, high = self.shard(rank)
        start = self._first + (batch & 1) * self.stride
        return pair.array("<i4", start + 4 * low, start + 4 * high)

    def commits(self, pair: Segment) -> NDArray[Any]:
        """Return the commit words, one a rank."""
        return pair.array("<u8", 0, self.ranks * _LINE)[:: _LINE // 8]

    def shard(self, rank: int) -> tuple[int, int]:
        """Return the first and the end word of a rank's shard."""
        return shards(self.split // 4, self.ranks)[rank]

    def numbered(self, rank: int) -> tuple[int, int]:
        """Return the same by the numbers that the words have in a whole message."""
        low, high = self.shard(rank)
        return self.first + low, self.first + high
