"""The fold of whole models compiled for this machine's processor: the extra `[fast]`, numba.

A batch of up to `ROWS` float32 models enters the float64 sum in one pass over memory, 4 + 16/8
bytes a value, where numpy widens them into a buffer first. The product of a float32 and a weight
below 2^29 is exact; products are added in the rows' order, where BLAS has its own. So the bits of
the sum are numpy's where they do not depend on the order (landing.py), and else may differ as they
do between two orders of arrival.

Compiled when this module is imported (compiled.py), about a second.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numba
import numpy as np

from .numba_finite import finite

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

__all__ = ["ROWS", "divide", "finite", "fold"]

ROWS = 8
"""Rows of a pass."""


def fold(total: NDArray[Any], rows: NDArray[Any], weights: NDArray[Any], *, begins: bool) -> None:
    """Add `rows` times `weights` to `total`.

    Args:
        total: The sum, float64, shape (m,).
        rows: Models, float32, shape (1..ROWS, m), each row's elements adjacent.
        weights: One for each row, float64.
        begins: Whether the sum begins: what `total` holds is written over.
    """
    spare = ROWS - len(rows)  # the first row again, which is in the cache, and counts nothing
    begin_or_add = _BEGIN if begins else _ADD
    begin_or_add(total, *rows, *[rows[0]] * spare, np.append(weights, np.zeros(spare)))


def divide(total: NDArray[Any], weight: float, mean: NDArray[Any]) -> None:
    """Write `total` / `weight` into `mean`, float32, each quotient rounded once."""
    _DIVIDE(total, weight, mean)


def _begin(y, a, b, c, d, e, f, g, h, w):  # type: ignore[no-untyped-def]  # noqa: PLR0913, PLR0917
    for i in range(len(y)):
        low = w[0] * a[i] + w[1] * b[i] + w[2] * c[i] + w[3] * d[i]
        y[i] = low + w[4] * e[i] + w[5] * f[i] + w[6] * g[i] + w[7] * h[i]


def _add(y, a, b, c, d, e, f, g, h, w):  # type: ignore[no-untyped-def]  # noqa: PLR0913, PLR0917
    for i in range(len(y)):
        low = w[0] * a[i] + w[1] * b[i] + w[2] * c[i] + w[3] * d[i]
        y[i] += low + w[4] * e[i] + w[5] * f[i] + w[6] * g[i] + w[7] * h[i]


def _divide(total, weight, mean):  # type: ignore[no-untyped-def]
    for i in range(len(mean)):
        mean[i] = total[i] / weight


def _compiled(function: Callable[..., Any], *kinds: Any) -> Any:
    return numba.njit(numba.void(*kinds), nogil=True, error_model="numpy")(function)


_WIDE, _NARROW, _NUMBER = numba.float64[::1], numba.float32[::1], numba.float64
_FOLDS = _WIDE, *[_NARROW] * ROWS, _WIDE
_BEGIN, _ADD = _compiled(_begin, *_FOLDS), _compiled(_add, *_FOLDS)
_DIVIDE = _compiled(_divide, _WIDE, _NUMBER, _NARROW)
