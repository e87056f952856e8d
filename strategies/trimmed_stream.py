"""The exact trimmed mean of updates that arrive one after the other, in 2k + 1 vectors.

    bottom   the k smallest so far, ascending
    top      the k largest of what fell out of bottom, descending
    middle   the sum of what fell out of both              mean = middle / (n - 2k)

A value that falls out of both lists has k below and k above it whatever comes later, so it
belongs to the mean. Nothing is ever subtracted: a hostile 1e30 rests in `top` and cannot wipe out
the digits of a sum. Memory does not depend on the number of clients. The passes are `insert` of
the tiles. The rule is Yin et al. 2018, https://arxiv.org/abs/1803.01498, with k for their share.
With a sum in float64, and updates on a grid that it adds without rounding, the result has the
same bits in any order of arrival.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np

from .selection_network import check_cut
from ..protocol.errors import RoundFailed, SettingsError

if TYPE_CHECKING:
    from numpy.typing import DTypeLike, NDArray

    Floats = NDArray[np.float32]
    Sum = NDArray[np.float32] | NDArray[np.float64]


class Passes(Protocol):
    """What it needs of the kernels."""

    def insert(self, rows: Floats, seen: int, state: tuple[Floats, Floats, Sum]) -> None:
        """Pass `rows` through the state, `seen` of them having passed before."""


class TrimmedStream:
    """The state of one shard; memory is 2k + 1 rows, or 2k + 2 with a sum in float64."""

    def __init__(
        self, shard: int, cut: int, kernels: Passes, dtype: DTypeLike = np.float32
    ) -> None:
        """Allocate for columns `shard` of which the `cut` smallest and largest are to be dropped.

        Args:
            shard: Columns.
            cut: k.
            kernels: The passes.
            dtype: Of the sum: float32 or float64.

        Raises:
            SettingsError: `cut` is negative.
        """
        if cut < 0:
            raise SettingsError("trimmed mean", "a cut of 0 or more", cut)
        self._kernels = kernels
        self._lists = np.empty((2, cut, shard), np.float32)
        self._middle: Sum = np.empty(shard, dtype)
        self.reset()

    def reset(self) -> None:
        """Begin a new round in the same memory, with the first cut."""
        self._bottom, self._top = self._lists
        self._bottom.fill(np.inf)
        self._top.fill(-np.inf)
        self._middle.fill(0.0)
        self._seen = 0

    @property
    def cut(self) -> int:
        """How many fall away at either end, k."""
        return len(self._bottom)

    @property
    def seen(self) -> int:
        """How many updates came, n."""
        return self._seen

    @property
    def nbytes(self) -> int:
        """Bytes of the state."""
        return self._lists.nbytes + self._middle.nbytes

    def update(self, rows: Floats) -> None:
        """Take one update (shard,) or several (m, shard); several at once move the state once."""
        rows = rows.reshape(1, -1) if rows.ndim == 1 else rows
        self._kernels.insert(rows, self._seen, (self._bottom, self._top, self._middle))
        self._seen += len(rows)

    def shrink(self, cut: int) -> None:
        """Drop fewer at either end from now on: fewer clients came than were asked.

        What no longer is to be dropped joins the sum; the result is as if `cut` had held from
        the beginning.

        Raises:
            SettingsError: `cut` is negative or above the present one.
            RoundFailed: Fewer than 2 `cut` updates came.
        """
        if not 0 <= cut <= self.cut:
            raise SettingsError("trimmed mean", f"a cut of 0 to {self.cut}", cut)
        if self._seen < 2 * cut:
            raise RoundFailed(
                f"trimmed mean: {self._seen} updates came, and {2 * cut} are to be dropped"
            )
        low = min(self.cut, self._seen)
        high = min(self.cut, self._seen - low)
        ends = [*self._bottom[:low], *self._top[:high][::-1]]  # ascending, the middle between
        with np.errstate(over="ignore", invalid="ignore"):
            for level in ends[cut : len(ends) - cut]:
                np.add(self._middle, level, out=self._middle)
        for place in range(high, cut):  # so few came that the largest rest among the smallest
            self._top[place] = ends[-1 - place]
        self._bottom, self._top = self._bottom[:cut], self._top[:cut]

    def result(self, out: Floats) -> None:
        """Write the mean; the state stays as it is and may take more updates.

        Raises:
            SettingsError: 2k or fewer updates came.
        """
        check_cut(self._seen, self.cut)
        count = self._middle.dtype.type(self._seen - 2 * self.cut)
        np.divide(self._middle, count, out=out, casting="same_kind")
