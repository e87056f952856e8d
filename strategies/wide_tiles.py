"""The kernels of the robust rules for thousands of rows: sorted columns, and memory of a few tiles.

The selection network of n values grows as n log^2 n comparators, each over a whole tile, and the
buffers of numpy_tiles.py as n tiles of 64 KiB. Of 10,000 rows a column is better sorted: a tile is
so many columns of all rows as fit `TILE_BYTES`, turned so that a column lies together. Inner
products are made block by block of rows, once for each pair.

What comes out is as in numpy_tiles.py, the median bit for bit; where values are added up the order
is another, by size or in float64, and does not depend on the threads. Rows may be float64: a tile
of them is rounded to float32, in which the rules work.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np

from .numpy_tiles import INFINITY, NumpyTiles, window_mean
from ..protocol.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    Floats = NDArray[np.float32]
    Matrix = NDArray[np.float64]

TILE_BYTES = 32 << 20
"""Of one tile in float32; a thread has two."""
BLOCK = 1024
"""Rows whose products with as many others are made at once: 4 MiB."""
_LINE = 16


class WideTiles(NumpyTiles):
    """Kernels for any number of rows."""

    name = "sorting"

    def __init__(self, threads: int = 1) -> None:
        """Work in so many threads, 1 or more; the result does not depend on it."""
        super().__init__(1)
        self._threads = threads

    def median(self, rows: Floats, out: Floats) -> None:
        """Write the median of every column."""
        low, high = (len(rows) - 1) // 2, len(rows) // 2

        def middle(columns: Floats, part: Floats) -> None:
            columns.partition((low, high), axis=1)
            if low == high:
                part[:] = columns[:, low]
            else:
                np.divide(columns[:, low] + columns[:, high], np.float32(2), out=part)

        self._columns(rows, out, middle)

    def trimmed(self, rows: Floats, cut: int, out: Floats) -> None:
        """Write the mean of every column without its `cut` smallest and largest values.

        Raises:
            SettingsError: Nothing would be left.
        """
        left = len(rows) - 2 * cut
        if cut < 0 or left < 1:
            raise SettingsError("trimmed mean", f"a cut below half of {len(rows)} rows", cut)

        def inner(columns: Floats, part: Floats) -> None:
            columns.sort(axis=1)
            part[:] = columns[:, cut : cut + left].sum(axis=1, dtype=np.float64) / left

        self._columns(rows, out, inner)

    def nearest(self, rows: Floats, picks: Sequence[int], keep: int, out: Floats) -> None:
        """Write the mean of the `keep` values nearest to the median of the picked rows.

        Raises:
            SettingsError: `keep` is not 1 to the number of picks.
        """
        if not 1 <= keep <= len(picks):
            raise SettingsError("bulyan", f"1 to {len(picks)} values to keep", keep)
        chosen = list(picks)

        def window(columns: Floats, part: Floats) -> None:
            part[:] = window_mean(np.sort(columns[:, chosen].T, axis=0), keep)

        self._columns(rows, out, window)

    def gram(self, rows: Floats, centre: Floats | None, total: Matrix) -> None:
        """Add this shard's inner products of the centred rows to `total`, float64 (n, n).

        Args:
            rows: Shape (n, shard).
            centre: c, shape (shard,); None where rows are deltas.
            total: Symmetric; changed in place.
        """
        self.check(rows, total if centre is None else centre)
        blocks = [slice(low, low + BLOCK) for low in range(0, len(rows), BLOCK)]
        with np.errstate(over="ignore", invalid="ignore"):
            for tile in _cuts(rows):
                part = np.array(rows[:, tile], np.float32, order="C")
                if centre is not None:
                    part -= centre[tile]
                for place, block in enumerate(blocks):
                    for other in blocks[place:]:
                        total[block, other] += part[block] @ part[other].T
            for place, block in enumerate(blocks):
                for other in blocks[place + 1 :]:
                    total[other, block] = total[block, other].T

    def combine(
        self, rows: Floats, coefficients: Matrix, centre: Floats | None, out: Floats
    ) -> None:
        """Write (1 - sum(a)) c + sum_i a_i x_i, added in float64; c = 0 without a centre."""
        self.check(rows, out)
        total = np.zeros(rows.shape[1])
        if centre is not None:
            total += (1.0 - coefficients.sum()) * centre
        for place in np.flatnonzero(coefficients):
            total += coefficients[place] * rows[place].astype(np.float64)
        out[:] = total

    def check(self, rows: Floats, beside: Floats | Matrix) -> None:
        """Check the shapes.

        Raises:
            SettingsError: `rows` is no float matrix of contiguous rows, or `beside` has another
                length.
        """
        fits = rows.dtype.kind == "f" and len(rows.shape[1:]) == 1 and len(rows) > 0
        if not fits or (rows.shape[1] > 1 and rows.strides[1] != rows.itemsize):
            got = f"{rows.dtype} {rows.shape}, strides {rows.strides}"
            raise SettingsError("robust rule", "float rows, each contiguous", got)
        length = rows.shape[1] if beside.ndim == 1 else len(rows)
        if len(beside) != length:
            raise SettingsError("robust rule", f"{length} values beside the rows", len(beside))

    def _columns(self, rows: Floats, out: Floats, work: Callable[[Floats, Floats], None]) -> None:
        """Have `work` write each tile of `out` from its columns, each a row of what it is given."""
        self.check(rows, out)

        def one(tile: slice) -> None:
            with np.errstate(over="ignore", invalid="ignore"):
                part = np.array(rows[:, tile], np.float32, order="C")
                np.fmin(part, INFINITY, out=part)
                work(np.ascontiguousarray(part.T), out[tile])

        with ThreadPoolExecutor(self._threads) as pool:
            for _ in pool.map(one, _cuts(rows)):
                pass


def _cuts(rows: Floats) -> Iterator[slice]:
    """Cut columns into tiles of at most `TILE_BYTES`."""
    width = max(1, TILE_BYTES // (4 * len(rows)) // _LINE) * _LINE
    for low in range(0, rows.shape[1], width):
        yield slice(low, min(low + width, rows.shape[1]))
