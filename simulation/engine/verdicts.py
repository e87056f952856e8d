"""Judging one client's update, and adding it in fixed point.

The only arithmetic of a sum (work.py) in numpy; a tier that adds in another language, or on a GPU,
does the same operations and gives the same bits:

    term = rint(delta * (scale * 2^exponent))      one float64 product, to nearest, ties to even

with scale = weight * factor in float64. A multiplication by a power of two is exact, so this is
the rounding of scale * delta alone. What would overflow, or is no number, must be found before the
conversion: beyond int64 it is undefined in C and INT64_MIN on x86, and would spoil the sum
silently. Nothing here is longer than a tile beside the update itself.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .work import Verdict

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

TILE = 1 << 14
"""Values at a time: 128 KiB of float64 and as much of int64 stay in a core's L2."""


class Bounds(NamedTuple):
    """What an update may be at most."""

    largest: float = math.inf
    """Of the magnitude of a value; infinite where nothing is added up."""
    max_norm: float | None = None


def judge(update: Iterable[NDArray[Any]], bounds: Bounds) -> Verdict:
    """Return what an update is: counted, or the first reason in the order of `Verdict` why not.

    Args:
        update: Its arrays, float32 or float64, of any shape.
        bounds: Of the round.
    """
    peak = squares = 0.0
    with np.errstate(over="ignore", invalid="ignore"):
        for tile in tiles(update):
            top = float(np.maximum(tile.max(), -tile.min()))  # NaN stays NaN
            if not math.isfinite(top):
                return Verdict.NOT_FINITE
            peak = max(peak, top)
            if bounds.max_norm is not None:
                squares += float(np.square(tile, dtype=np.float64).sum())
    if bounds.max_norm is not None and math.sqrt(squares) > bounds.max_norm:
        return Verdict.TOO_LONG
    return Verdict.COUNTED if peak <= bounds.largest else Verdict.TOO_LARGE


def add(
    total: NDArray[np.int64], update: Iterable[NDArray[Any]], scale: float, exponent: int
) -> None:
    """Add one update that counts to the sum, in place.

    Args:
        total: Shape (values,), C order.
        update: Its arrays, in the flat order of the sum.
        scale: The client's weight, below 2^53, times its factor.
        exponent: Of the sum.
    """
    scale, start = math.ldexp(scale, exponent), 0
    product, term = np.empty(TILE, np.float64), np.empty(TILE, np.int64)
    for tile in tiles(update):
        size = len(tile)
        np.multiply(tile, scale, out=product[:size], dtype=np.float64)
        np.rint(product[:size], out=term[:size], casting="unsafe")
        total[start : start + size] += term[:size]
        start += size


def tiles(update: Iterable[NDArray[Any]]) -> Iterator[NDArray[Any]]:
    """Yield flat pieces of the arrays, one after another, each of 1 to `TILE` values."""
    for array in update:
        flat = array.reshape(-1)
        for start in range(0, flat.size, TILE):
            yield flat[start : start + TILE]
