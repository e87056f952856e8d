"""The server rules' tiles compiled for this machine's processor: the extra `[fast]`, numba.

One pass over a tile of float32 in place of the ten and more of server_rules.py, with its operations
in its order, in float64 and rounded once: the same bits. No multiplication is fused with the
addition that follows it. Compiled when this module is imported (one or two seconds); nothing is
written to the disk.

Not here: checks of shapes and numbers, tiles of other dtypes (server_rules.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numba
import numpy as np

from .numba_finite import finite

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    Tile = NDArray[np.float32]

__all__ = ["adagrad", "adam", "finite", "momentum", "yogi"]


def adam(x: Tile, d: Tile, y: Tile, own: Sequence[Tile], numbers: Sequence[float]) -> None:
    """FedAdam and FedAdamW; numbers: beta_1, beta_2, factor, tau, what x shrinks by."""
    _ADAM(x, d, y, *own, *numbers)


def yogi(x: Tile, d: Tile, y: Tile, own: Sequence[Tile], numbers: Sequence[float]) -> None:
    """FedYogi; numbers: beta_1, beta_2, eta, tau."""
    _YOGI(x, d, y, *own, *numbers)


def adagrad(x: Tile, d: Tile, y: Tile, own: Sequence[Tile], numbers: Sequence[float]) -> None:
    """FedAdagrad; numbers: eta, tau."""
    _ADAGRAD(x, d, y, *own, *numbers)


def momentum(x: Tile, d: Tile, y: Tile, own: Sequence[Tile], numbers: Sequence[float]) -> None:
    """FedAvgM; numbers: learning rate, momentum."""
    _MOMENTUM(x, d, y, *own, *numbers)


def _adam(x, d, y, m, v, b1, b2, factor, tau, shrink):  # type: ignore[no-untyped-def]  # noqa: PLR0913, PLR0917
    for i in range(len(x)):
        delta = np.float64(d[i])
        first = np.float64(m[i]) * b1 + (1.0 - b1) * delta
        second = np.float64(v[i]) * b2 + (1.0 - b2) * (delta * delta)
        y[i] = np.float64(x[i]) * shrink + factor * first / (np.sqrt(second) + tau)
        m[i] = first
        v[i] = second


def _yogi(x, d, y, m, v, b1, b2, eta, tau):  # type: ignore[no-untyped-def]  # noqa: PLR0913, PLR0917
    for i in range(len(x)):
        delta = np.float64(d[i])
        first = np.float64(m[i]) * b1 + (1.0 - b1) * delta
        square = delta * delta
        apart = np.float64(v[i]) - square
        sign = 1.0 if apart > 0.0 else (-1.0 if apart < 0.0 else apart)  # NaN stays one
        second = np.float64(v[i]) - square * ((1.0 - b2) * sign)
        y[i] = np.float64(x[i]) + eta * first / (np.sqrt(second) + tau)
        m[i] = first
        v[i] = second


def _adagrad(x, d, y, v, eta, tau):  # type: ignore[no-untyped-def]
    for i in range(len(x)):
        delta = np.float64(d[i])
        second = np.float64(v[i]) + delta * delta
        y[i] = np.float64(x[i]) + delta * eta / (np.sqrt(second) + tau)
        v[i] = second


def _momentum(x, d, y, b, rate, mu):  # type: ignore[no-untyped-def]
    for i in range(len(x)):
        kept = np.float64(b[i]) * mu + np.float64(d[i])
        y[i] = np.float64(x[i]) + kept * rate
        b[i] = kept


def _compiled(function: Callable[..., Any], tiles: int, numbers: int) -> Any:
    """Compile for so many tiles, the first two of which are only read, and so many numbers."""
    tile, read = numba.float32[::1], numba.types.Array(numba.float32, 1, "C", readonly=True)
    kinds = [read] * 2 + [tile] * (tiles - 2) + [numba.float64] * numbers
    return numba.njit(numba.void(*kinds), nogil=True, error_model="numpy")(function)


_ADAM, _YOGI = _compiled(_adam, 5, 5), _compiled(_yogi, 5, 4)
_ADAGRAD, _MOMENTUM = _compiled(_adagrad, 4, 2), _compiled(_momentum, 4, 2)
