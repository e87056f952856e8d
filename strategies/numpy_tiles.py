"""The kernels of the robust rules in numpy: nothing to install, and what the others equal.

Rows are the updates of n clients, a float32 array (n, shard): a view of n slots of a ring, so
rows may lie apart, while the values of one row are contiguous. Results are written into `out`,
float32 (shard,). All work goes tile by tile through buffers that are made once.

    median     per coordinate the middle value, or half the sum of the middle two; = np.median
    trimmed    per coordinate the mean without the k smallest and k largest
    insert     the same, updates in any number of batches (trimmed_stream.py holds the state)
    nearest    per coordinate the mean of the `keep` values nearest to the median: Bulyan's end
    gram       inner products of all rows, for gram.py
    combine    (1 - sum(a)) c + sum_i a_i x_i

A coordinate's result depends on that column only, so shards may be cut anywhere. NaN counts as
+inf where values are ordered: a client that sends it is the largest, and falls out like any other
extreme value; infinities are ordered like numbers. Equal values are interchangeable.
`combine` does not read a row whose coefficient is 0. numba_tiles.py is the compiled form,
torch_tiles.py the one for tensors of any device.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from . import selection_network as networks
from .fedavg import tiles
from ..protocol.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from .selection_network import Network

    Floats = NDArray[np.float32]
    Matrix = NDArray[np.float64]
    Sum = NDArray[np.float32] | NDArray[np.float64]

TILE = 1 << 14
"""Columns at once where values are ordered: 64 KiB a row, so that a call costs little beside."""
GRAM_TILE = 1 << 13
"""Columns of one matrix product in float32; the products are added in float64."""
INFINITY = np.float32(np.inf)


class NumpyTiles:
    """Buffers for up to `clients` rows: 1.5 * clients + 1 tiles of 64 KiB, whatever the shard."""

    name = "numpy"

    def __init__(self, clients: int) -> None:
        """Allocate once.

        Raises:
            SettingsError: `clients` is below 1.
        """
        if clients < 1:
            raise SettingsError("robust rule", "1 or more clients", clients)
        self._buffer = np.empty((clients + 1, TILE), np.float32)
        self._centred = np.empty(clients * GRAM_TILE, np.float32)
        self._product = np.empty(clients * clients, np.float32)

    def median(self, rows: Floats, out: Floats) -> None:
        """Write the median of every column."""
        clients = len(rows)
        self._select(networks.median(clients), rows, 2 - clients % 2, out)

    def trimmed(self, rows: Floats, cut: int, out: Floats) -> None:
        """Write the mean of every column without its `cut` smallest and largest values.

        Raises:
            SettingsError: Nothing would be left.
        """
        clients = len(rows)
        self._select(networks.trimmed(clients, cut), rows, clients - 2 * cut, out)

    def _select(self, network: Network, rows: Floats, divisor: int, out: Floats) -> None:
        """Write (sum of the network's outputs) / divisor."""
        self.check(rows, out)
        for tile in _cuts(rows.shape[1], TILE):
            wires = self._load(rows, tile)
            spare = self._buffer[len(rows), : tile.stop - tile.start]
            _run(network, wires, spare)
            total, *others = [wires[place] for place in network.outputs]
            with np.errstate(over="ignore", invalid="ignore"):
                for other in others:
                    np.add(total, other, out=total)
                np.divide(total, np.float32(divisor), out=out[tile])

    def nearest(self, rows: Floats, picks: Sequence[int], keep: int, out: Floats) -> None:
        """Write the mean of the `keep` values nearest to the median of the picked rows.

        Of the sorted values of a column the farther end is dropped until `keep` are left; where
        both are as far, the larger one goes.

        Raises:
            SettingsError: `keep` is not 1 to the number of picks.
        """
        self.check(rows, out)
        chosen = len(picks)
        if not 1 <= keep <= chosen:
            raise SettingsError("bulyan", f"1 to {chosen} values to keep", keep)
        for tile in _cuts(rows.shape[1], TILE):
            width = tile.stop - tile.start
            for place, pick in enumerate(picks):
                np.fmin(rows[pick, tile], INFINITY, out=self._buffer[place, :width])
            values = self._buffer[:chosen, :width]
            values.sort(axis=0)
            with np.errstate(over="ignore", invalid="ignore"):
                out[tile] = window_mean(values, keep)

    def insert(self, rows: Floats, seen: int, state: tuple[Floats, Floats, Sum]) -> None:
        """Pass rows through a streaming trimmed mean: see trimmed_stream.py.

        Args:
            rows: The next updates.
            seen: How many came before them.
            state: The k smallest ascending, the k largest descending, the sum of the others.
        """
        bottom, top, middle = state
        self.check(rows, middle)
        cut = len(bottom)
        for tile in _cuts(rows.shape[1], TILE):
            value, spare = self._buffer[:2, : tile.stop - tile.start]
            for place, row in enumerate(rows, seen):
                np.fmin(row[tile], INFINITY, out=value)
                for level in bottom[: min(cut, place + 1), tile]:
                    np.maximum(level, value, out=spare)
                    np.minimum(level, value, out=level)
                    value, spare = spare, value
                for level in top[: max(0, min(cut, place - cut + 1)), tile]:
                    np.minimum(level, value, out=spare)
                    np.maximum(level, value, out=level)
                    value, spare = spare, value
                if place >= 2 * cut:
                    with np.errstate(over="ignore", invalid="ignore"):
                        np.add(middle[tile], value, out=middle[tile])

    def gram(self, rows: Floats, centre: Floats | None, total: Matrix) -> None:
        """Add this shard's inner products of the centred rows to `total`, float64 (n, n).

        The product of a tile is float32; its terms are few and of one size, so that a distance
        is good to 1e-6 of itself, the tested bound, where `centre` takes away what rows share.

        Args:
            rows: Shape (n, shard).
            centre: c, shape (shard,); None where rows are deltas.
            total: Changed in place.
        """
        clients, shard = rows.shape
        self.check(rows, total if centre is None else centre)
        product = self._product[: clients * clients].reshape(clients, clients)
        with np.errstate(over="ignore", invalid="ignore"):
            for tile in _cuts(shard, GRAM_TILE):
                part = rows[:, tile]
                if centre is not None:
                    width = tile.stop - tile.start
                    room = self._centred[: clients * width].reshape(clients, width)
                    part = np.subtract(part, centre[tile], out=room)
                np.matmul(part, part.T, out=product)
                np.add(total, product, out=total)

    def combine(
        self, rows: Floats, coefficients: Matrix, centre: Floats | None, out: Floats
    ) -> None:
        """Write (1 - sum(a)) c + sum_i a_i x_i; c = 0 where there is no centre."""
        self.check(rows, out)
        chosen = np.flatnonzero(coefficients)
        rest = np.float32(1.0 - coefficients.sum())
        for tile in tiles(rows.shape[1]):
            part = out[tile]
            if centre is None or not rest:
                part.fill(0.0)
            else:
                np.multiply(centre[tile], rest, out=part)
            for narrow in _cuts(part.size, TILE):
                product = self._buffer[0, : narrow.stop - narrow.start]
                for place in chosen:
                    factor = np.float32(coefficients[place])
                    np.multiply(rows[place, tile][narrow], factor, out=product)
                    np.add(part[narrow], product, out=part[narrow])

    def check(self, rows: Floats, beside: Floats | Matrix) -> None:
        """Check the shapes before a kernel that would believe them.

        Raises:
            SettingsError: `rows` is no float32 matrix of contiguous rows, has more clients than
                there are buffers for, or `beside` has another length.
        """
        room = len(self._buffer) - 1
        fits = rows.dtype == np.float32 and len(rows.shape[1:]) == 1 and 1 <= len(rows) <= room
        if not fits or (rows.shape[1] > 1 and rows.strides[1] != rows.itemsize):
            raise SettingsError(
                "robust rule",
                f"float32 rows of 1 to {room} clients, each contiguous",
                f"{rows.dtype} {rows.shape}, strides {rows.strides}",
            )
        length = rows.shape[1] if beside.ndim == 1 else len(rows)
        if len(beside) != length:
            raise SettingsError("robust rule", f"{length} values beside the rows", len(beside))

    def _load(self, rows: Floats, tile: slice) -> list[Floats]:
        """Copy a tile of all rows, NaN as +inf, and return its rows."""
        wires = self._buffer[: len(rows), : tile.stop - tile.start]
        np.fmin(rows[:, tile], INFINITY, out=wires)
        return list(wires)


def _run(network: Network, wires: list[Floats], spare: Floats) -> None:
    """Run a network over whole rows; names change places instead of values."""
    for low, high, keep_low, keep_high in network.comparators:
        if keep_low and keep_high:
            np.minimum(wires[low], wires[high], out=spare)
            np.maximum(wires[low], wires[high], out=wires[high])
            wires[low], spare = spare, wires[low]
        elif keep_low:
            np.minimum(wires[low], wires[high], out=wires[low])
        else:
            np.maximum(wires[low], wires[high], out=wires[high])


def window_mean(values: Floats, keep: int) -> Floats:
    """Return the mean of the `keep` values of each sorted column that are nearest its median."""
    chosen = len(values)
    middle = (values[(chosen - 1) // 2] + values[chosen // 2]) * np.float32(0.5)
    first = np.zeros((1, values.shape[1]), np.intp)
    for width in range(chosen, keep, -1):
        low = np.take_along_axis(values, first, axis=0)
        high = np.take_along_axis(values, first + (width - 1), axis=0)
        first += middle - low > high - middle
    total = np.zeros(values.shape[1], np.float32)
    for place in range(keep):
        total += np.take_along_axis(values, first + place, axis=0)[0]
    return np.asarray(total / np.float32(keep))


def _cuts(size: int, width: int) -> list[slice]:
    return [slice(low, min(low + width, size)) for low in range(0, size, width)]
