"""What every world of the aggregation core can do: the one of one process, and those of ranks.

    free -> filling -> folded -> free        a slot
    open -> frozen -> closed                 a sum; nothing enters a frozen one

world.py is the embedded one, ranked_world.py that of ranks. Both give the same bits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .kept import Keeping
    from .run_model import Block, RunModel
    from ..stepping import StepOrder


class AnySum(Protocol):
    """One sum, open until it is read."""

    @property
    def survivors(self) -> tuple[str, ...]:
        """The nodes in the sum, in the order of arrival."""

    def slot(self, node: str) -> memoryview | None:
        """Return the slot that `node` fills, or None when every slot is taken."""

    def fold(self, node: str) -> None:
        """Add the slot of `node` to the sum, once; the slot is free soon."""

    def discard(self, node: str) -> None:
        """Free the slot of `node`; its bytes never reach the sum."""

    def load(self, data: bytes | bytearray | memoryview, nodes: Sequence[str]) -> None:
        """Take the sum that an earlier process had folded from `nodes`, and freeze it."""

    def unmask(self, streams: Sequence[tuple[bytes | bytearray, int]]) -> None:
        """Freeze the sum and add (+1) or subtract (-1) the ChaCha20 stream of each key."""

    @property
    def memory(self) -> dict[str, int]:
        """Bytes that the sum takes at the most, by name."""

    def numbers(self) -> memoryview:
        """Freeze the sum and return its uint64 words, no copy; valid until `close`."""

    def check(self, bound: int) -> None:
        """Freeze the sum and refuse one with a uint32 word beyond `bound`, as a signed number."""

    def step(self, model: RunModel, order: StepOrder) -> bytes:
        """Freeze the sum and make the next model out of it; return its digest."""

    def result(self) -> memoryview:
        """Freeze the sum and return it, no copy; valid until `close`."""

    def close(self) -> None:
        """Zero the slots and give the memory back; the result is gone."""


class AnyWorld(Protocol):
    """Memory for one sum after another; several sums may be open at a time."""

    @property
    def slots(self) -> int:
        """Uploads of a sum that may be in flight at once."""

    @property
    def make(self) -> Callable[[int, str], Block]:
        """Takes a size and a word for it, and gives zeroed memory that the step can work on."""

    def open(self, total_bytes: int, split: int, keeping: Keeping | None = None) -> AnySum:
        """Start a sum of messages of `total_bytes`, the first `split` of them uint32 words.

        `keeping` says why the messages are not simply added up, where they are not.
        """

    def rest(self) -> None:
        """Give up what is kept for the next sum: a run is over."""
