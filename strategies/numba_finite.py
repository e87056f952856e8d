"""Whether float32 values are finite, compiled: four times as fast as a sum of their squares."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numba
import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

_INFINITE = 0x7F800000
"""Bits of a float32's infinity: those of a NaN are more, those of a finite number are less."""


def finite(values: NDArray[np.float32]) -> bool:
    """Say whether no value is infinite or NaN; `values` lie side by side."""
    return bool(_FINITE(values.view(np.int32)))


def _finite(bits):  # type: ignore[no-untyped-def]
    most = np.int32(0)
    for i in range(len(bits)):
        most = max(most, np.int32(bits[i] & np.int32(0x7FFFFFFF)))
    return most < _INFINITE


_FINITE: Any = numba.njit("boolean(int32[::1])", nogil=True)(_finite)
