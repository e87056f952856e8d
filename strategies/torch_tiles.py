"""The robust rules' kernels on torch tensors of any device, in eager operations.

What numpy_tiles.py says holds here too: rows (n, shard) float32 that may lie apart, `out` a vector,
NaN the largest of all, buffers made once. It is what the GPU kernel is compared with
(triton_median.py) and what runs where there is neither that nor a compiler. On a CPU numba_tiles.py
is faster, and numpy_tiles.py about as fast.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from . import selection_network as networks
from ..protocol.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .selection_network import Network

TILE = 1 << 14
"""Columns at once; more on a GPU, where a call costs the same for any width."""
GPU_TILE = 1 << 20
GRAM_TILE = 1 << 13


class TorchTiles:
    """Buffers for up to `clients` rows on one device: 2 * clients + 2 tiles."""

    name = "torch"

    def __init__(self, clients: int, device: torch.device | str = "cpu") -> None:
        """Allocate once.

        Raises:
            SettingsError: `clients` is below 1.
        """
        if clients < 1:
            raise SettingsError("robust rule", "1 or more clients", clients)
        self._tile = TILE if torch.device(device).type == "cpu" else GPU_TILE
        self._buffer = torch.empty(clients + 1, self._tile, device=device)
        self._centred = torch.empty(clients * GRAM_TILE, device=device)
        self._product = torch.empty(clients * clients, device=device)

    def median(self, rows: torch.Tensor, out: torch.Tensor) -> None:
        """Write the median of every column."""
        clients = len(rows)
        self._select(networks.median(clients), rows, 2 - clients % 2, out)

    def trimmed(self, rows: torch.Tensor, cut: int, out: torch.Tensor) -> None:
        """Write the mean of every column without its `cut` smallest and largest values.

        Raises:
            SettingsError: Nothing would be left.
        """
        clients = len(rows)
        self._select(networks.trimmed(clients, cut), rows, clients - 2 * cut, out)

    def nearest(
        self, rows: torch.Tensor, picks: Sequence[int], keep: int, out: torch.Tensor
    ) -> None:
        """Write the mean of the `keep` values nearest to the median of the picked rows.

        Raises:
            SettingsError: `keep` is not 1 to the number of picks.
        """
        self.check(rows, out)
        if not 1 <= keep <= len(picks):
            raise SettingsError("bulyan", f"1 to {len(picks)} values to keep", keep)
        for low in range(0, len(out), self._tile):
            tile = self._load(rows, low)[list(picks)]
            out[low : low + self._tile] = _window_mean(tile.sort(dim=0).values, keep)

    def gram(self, rows: torch.Tensor, centre: torch.Tensor | None, total: torch.Tensor) -> None:
        """Add this shard's inner products of the centred rows to `total`, float64 (n, n)."""
        clients, shard = rows.shape
        self.check(rows, rows[0] if centre is None else centre)
        product = self._product[: clients * clients].view(clients, clients)
        for low in range(0, shard, GRAM_TILE):
            part = rows[:, low : low + GRAM_TILE]
            if centre is not None:
                room = self._centred[: part.numel()].view(part.shape)
                part = torch.sub(part, centre[low : low + GRAM_TILE], out=room)
            torch.mm(part, part.t(), out=product)
            total.add_(product)

    def combine(
        self,
        rows: torch.Tensor,
        coefficients: torch.Tensor,
        centre: torch.Tensor | None,
        out: torch.Tensor,
    ) -> None:
        """Write (1 - sum(a)) c + sum_i a_i x_i, where a is float64; c = 0 without a centre."""
        self.check(rows, out)
        factors = [float(factor) for factor in coefficients]
        rest = 1.0 - sum(factors)
        if centre is None:
            out.zero_()
        else:
            torch.mul(centre, rest, out=out)
        for low in range(0, len(out), self._tile):
            part = out[low : low + self._tile]
            for row, factor in zip(rows, factors, strict=True):
                if factor:
                    part.add_(row[low : low + self._tile], alpha=factor)

    def check(self, rows: torch.Tensor, beside: torch.Tensor) -> None:
        """Check the shapes.

        Raises:
            SettingsError: `rows` is no float32 matrix, has more clients than there are buffers
                for, or `beside` has another length.
        """
        room = len(self._buffer) - 1
        matrix = rows.dtype == torch.float32 and len(rows.shape[1:]) == 1
        if not matrix or not 1 <= len(rows) <= room or rows.shape[1:] != beside.shape:
            raise SettingsError(
                "robust rule",
                f"float32 rows of 1 to {room} clients and a vector as long",
                f"{rows.dtype} {tuple(rows.shape)} and {tuple(beside.shape)}",
            )

    def _load(self, rows: torch.Tensor, low: int) -> torch.Tensor:
        part = rows[:, low : low + self._tile]
        tile = self._buffer[: len(rows), : part.shape[1]]
        return torch.nan_to_num(
            part, nan=float("inf"), posinf=float("inf"), neginf=-float("inf"), out=tile
        )

    def _select(
        self, network: Network, rows: torch.Tensor, divisor: int, out: torch.Tensor
    ) -> None:
        """Write (sum of the network's outputs) / divisor."""
        self.check(rows, out)
        for low in range(0, len(out), self._tile):
            tile = self._load(rows, low)
            wires = list(tile)
            _run(network, wires, self._buffer[len(rows), : tile.shape[1]])
            total, *others = [wires[place] for place in network.outputs]
            for other in others:
                total.add_(other)
            torch.div(total, divisor, out=out[low : low + self._tile])


def _run(network: Network, wires: list[torch.Tensor], spare: torch.Tensor) -> None:
    """Run a network over whole rows; names change places instead of values."""
    for low, high, keep_low, keep_high in network.comparators:
        if keep_low and keep_high:
            torch.minimum(wires[low], wires[high], out=spare)
            torch.maximum(wires[low], wires[high], out=wires[high])
            wires[low], spare = spare, wires[low]
        elif keep_low:
            torch.minimum(wires[low], wires[high], out=wires[low])
        else:
            torch.maximum(wires[low], wires[high], out=wires[high])


def _window_mean(values: torch.Tensor, keep: int) -> torch.Tensor:
    """Return the mean of the `keep` values of each sorted column that are nearest its median."""
    chosen = len(values)
    middle = (values[(chosen - 1) // 2] + values[chosen // 2]) * 0.5
    first = torch.zeros(1, values.shape[1], dtype=torch.int64, device=values.device)
    for width in range(chosen, keep, -1):
        low = values.gather(0, first)
        high = values.gather(0, first + (width - 1))
        first += (middle - low > high - middle).to(torch.int64)
    total = values.gather(0, first)
    for place in range(1, keep):
        total = total + values.gather(0, first + place)
    return total[0] / keep
