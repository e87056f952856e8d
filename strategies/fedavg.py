"""Federated averaging: the streaming weighted mean, and the norm of what enters it.

    mean = sum_k w_k * delta_k / sum_k w_k          over the survivors k of a round

McMahan et al. 2017, https://arxiv.org/abs/1602.05629, algorithm 1, in the form with deltas. In a
secure run the mean comes out of the ring and `FloatSum` is not used. The client half of FedAvg is
plain local training (task.py); server_rules.py is what a mean does to a model.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from ..protocol.errors import BadUpdate, PeerError, RoundFailed

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


class FloatSum:
    """The running weighted mean of named float arrays, one client at a time.

    Accumulators are float64 whatever the dtype: the error of a sum then does not grow with the
    number of clients (float32 loses up to n * 2^-24), raw weights up to 2^20 cost no digit, and
    the order of arrival changes the float32 result by rounding of the last bit only. The price is
    8 bytes a parameter. Where memory counts more (the aggregation core) torch_fedavg.py folds
    into float32. Memory is the accumulators and one tile, whatever the number of clients.
    """

    def __init__(self, like: Mapping[str, NDArray[Any]]) -> None:
        """Prepare for arrays of the names, shapes and dtypes of `like`; buffers are left out."""
        self._dtypes = {name: array.dtype for name, array in like.items() if is_float(array)}
        self._sums = {name: np.zeros(like[name].shape, np.float64) for name in self._dtypes}
        self._scratch = np.empty(TILE, np.float64)
        self._nodes: dict[str, None] = {}
        self._weight = 0.0

    @property
    def survivors(self) -> tuple[str, ...]:
        """The nodes in the sum, in the order of arrival."""
        return tuple(self._nodes)

    @property
    def weight(self) -> float:
        """The sum of their weights."""
        return self._weight

    def add(self, node: str, arrays: Mapping[str, NDArray[Any]], weight: float) -> None:
        """Add `weight * arrays`; the caller has checked both (server/firewall.py).

        Raises:
            PeerError: The node is in the sum already.
        """
        if node in self._nodes:
            raise PeerError(node, "sent a second update for this round")
        for name, total in self._sums.items():
            flat, values = total.reshape(-1), arrays[name].reshape(-1)
            for tile in tiles(flat.size):
                product = self._scratch[: tile.stop - tile.start]
                np.copyto(product, values[tile])
                product *= weight
                flat[tile] += product
        self._nodes[node] = None
        self._weight += float(weight)

    def mean(self) -> dict[str, NDArray[Any]]:
        """Return the weighted mean, each array in its own dtype.

        Raises:
            RoundFailed: No client is in the sum.
        """
        if not self._nodes:
            raise RoundFailed("no update reached the sum of this round")
        return {
            name: np.asarray(total / self._weight).astype(self._dtypes[name])
            for name, total in self._sums.items()
        }


def tiles(size: int) -> Iterator[slice]:
    """Cut `range(size)` into slices of at most `TILE`."""
    for start in range(0, size, TILE):
        yield slice(start, min(start + TILE, size))
