"""Float and ring folds compiled for this machine's processor: the extra `[fast]`, numba.

Eight rows enter the accumulator in one pass over memory, 4 + 8/8 = 5 bytes a value, in plain loops
that numba turns into vector code: for the ring when this module is imported, for floats at their
first call (about a second, once a process; nothing is written to the disk). A row's product is
rounded before it is added, and rows are added in their order, so that a column's bits depend on
nothing but its rows: any batches and any shards are equal.
They differ from torch's in the last place, which fuses both roundings.

The first pass into another accumulator takes seven rows: with eight the compiler would have more
pairs of arrays to tell apart than it is willing to, and would write no vector code.

Not here: checks (torch_folds.fits), and who calls what (torch_kernels.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numba
import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

ROWS = 8
"""Rows of a pass."""


def fold(
    total: NDArray[Any],
    rows: NDArray[Any],
    weights: NDArray[Any],
    other: NDArray[Any] | None = None,
) -> None:
    """Add `rows` times `weights` to `total`, or write that sum into `other`.

    Args:
        total: Accumulator, float32 or float64, shape (m,).
        rows: Updates of the same dtype, shape (k, m), each row's elements adjacent.
        weights: One for each row, the same dtype.
        other: The other accumulator of a pair; None folds in place.
    """
    target, first = _first(total, rows, other)
    if first:
        _FOLD_INTO(total, target, *rows[:first], weights[:first])
    for low in range(first, len(rows) - ROWS + 1, ROWS):
        _FOLD(target, *rows[low : low + ROWS], weights[low : low + ROWS])
        first = low + ROWS
    for row, weight in zip(rows[first:], weights[first:], strict=True):
        _FOLD_ONE(target, row, weight)


def fold_ring(total: NDArray[Any], rows: NDArray[Any], other: NDArray[Any] | None = None) -> None:
    """Add integer `rows` to `total` modulo 2^32 or 2^64, or write that sum into `other`.

    Args:
        total: Accumulator, int32 or int64, shape (m,).
        rows: Messages of the same dtype, shape (k, m), each row's elements adjacent.
        other: The other accumulator of a pair; None folds in place.
    """
    target, first = _first(total, rows, other)
    if first:
        _RING_INTO(total, target, *rows[:first])
    for low in range(first, len(rows) - ROWS + 1, ROWS):
        _RING(target, *rows[low : low + ROWS])
        first = low + ROWS
    for row in rows[first:]:
        np.add(target, row, out=target)


def _first(
    total: NDArray[Any], rows: NDArray[Any], other: NDArray[Any] | None
) -> tuple[NDArray[Any], int]:
    """Return where the sum goes, and how many rows the first pass from `total` takes there."""
    if other is None:
        return total, 0
    if len(rows) < ROWS - 1:
        np.copyto(other, total)
        return other, 0
    return other, ROWS - 1


def _fold(  # type: ignore[no-untyped-def]  # noqa: PLR0913, PLR0917
    total, a, b, c, d, e, f, g, h, w
):
    p, q, r, s, t, u, v, x = w[0], w[1], w[2], w[3], w[4], w[5], w[6], w[7]
    for j in range(total.size):
        one = total[j] + p * a[j] + q * b[j] + r * c[j] + s * d[j]
        total[j] = one + t * e[j] + u * f[j] + v * g[j] + x * h[j]


def _fold_into(  # type: ignore[no-untyped-def]  # noqa: PLR0913, PLR0917
    total, other, a, b, c, d, e, f, g, w
):
    p, q, r, s, t, u, v = w[0], w[1], w[2], w[3], w[4], w[5], w[6]
    for j in range(total.size):
        one = total[j] + p * a[j] + q * b[j] + r * c[j] + s * d[j]
        other[j] = one + t * e[j] + u * f[j] + v * g[j]


def _fold_one(total, a, weight):  # type: ignore[no-untyped-def]
    for j in range(total.size):
        total[j] += weight * a[j]


def _ring(total, a, b, c, d, e, f, g, h):  # type: ignore[no-untyped-def]  # noqa: PLR0913, PLR0917
    for j in range(total.size):
        total[j] += a[j] + b[j] + c[j] + d[j] + e[j] + f[j] + g[j] + h[j]


def _ring_into(  # type: ignore[no-untyped-def]  # noqa: PLR0913, PLR0917
    total, other, a, b, c, d, e, f, g
):
    for j in range(total.size):
        other[j] = total[j] + a[j] + b[j] + c[j] + d[j] + e[j] + f[j] + g[j]


def _compiled(function: Any, arrays: int) -> Any:
    """Compile a ring fold of so many arrays now, for both kinds of words."""
    kinds = (numba.int32[::1], numba.int64[::1])
    return numba.njit([numba.void(*[kind] * arrays) for kind in kinds], nogil=True)(function)


_njit: Any = numba.njit(nogil=True)
_FOLD, _FOLD_INTO, _FOLD_ONE = map(_njit, (_fold, _fold_into, _fold_one))
_RING, _RING_INTO = _compiled(_ring, ROWS + 1), _compiled(_ring_into, ROWS + 1)
