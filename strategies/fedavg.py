"""What averaging means by a float array, its norm, and the tiles that arrays are looked at in.

McMahan et al. 2017, https://arxiv.org/abs/1602.05629, algorithm 1, in the form with deltas: their
sum comes out of the ring, server_rules.py is what the mean does to a model, and landing.py the mean
of whole models. The client half is plain local training (task.py).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from ..protocol.errors import BadUpdate

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

TILE = 1 << 15
"""Elements that are widened at once: 256 KiB of float64, which stays in the second-level cache."""


def is_float(array: NDArray[Any]) -> bool:
    """Return whether an array is averaged (float16, bfloat16, float32, float64) or a buffer."""
    return array.dtype.kind == "f" or array.dtype.name == "bfloat16"


def finite_norm(node: str, arrays: Mapping[str, NDArray[Any]]) -> float:
    """Return the L2 norm over all float arrays, in float64.

    Raises:
        BadUpdate: A value is NaN or infinite; the node and the array are named.
    """
    squares = 0.0
    for name, array in arrays.items():
        if not is_float(array):
            continue
        flat = array.reshape(-1)
        scratch = np.empty(min(TILE, flat.size), np.float64)
        for tile in tiles(flat.size):
            wide = scratch[: tile.stop - tile.start]
            # NaN and infinity survive the sum of squares: one look a tile is enough.
            with np.errstate(over="ignore", invalid="ignore"):  # a signalling NaN is told as one
                np.copyto(wide, flat[tile])
                square = float(wide @ wide)
            if not math.isfinite(square) and not np.isfinite(wide).all():
                got = wide[~np.isfinite(wide)][0]
                raise BadUpdate(node, f"array {name!r}", "finite values", got)
            squares += square
    return math.sqrt(squares)


def tiles(size: int) -> Iterator[slice]:
    """Cut `range(size)` into slices of at most `TILE`."""
    for start in range(0, size, TILE):
        yield slice(start, min(start + TILE, size))
