"""Judging many updates at once and adding them, where they lie: verdicts.py on stacks of tensors.

The operations are the same, so the sum has the same bits: float64 products, rounded to nearest with
ties to even, added as integers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from .work import Verdict

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from .verdicts import Bounds

BLOCK = {"cpu": 1 << 15, "cuda": 1 << 24}
"""Values at a time: on a CPU 256 KiB of float64, which stay in the cache; on a GPU 128 MiB."""


def judge(updates: Sequence[torch.Tensor], clients: int, bounds: Bounds) -> NDArray[np.uint8]:
    """Return the verdict of each client.

    Args:
        updates: For each array a tensor of shape (clients, values).
        clients: How many there are.
        bounds: Of the round.
    """
    peaks, squares = np.zeros(clients), np.zeros(clients)
    for update in updates:
        if update.shape[1]:
            tops = torch.maximum(update.amax(dim=1), -update.amin(dim=1))  # NaN stays NaN
            peaks = np.maximum(peaks, tops.double().cpu().numpy())
        if bounds.max_norm is not None:
            squares += _squares(update)
    found = np.full(clients, Verdict.COUNTED, np.uint8)
    with np.errstate(invalid="ignore"):
        found[peaks > bounds.largest] = Verdict.TOO_LARGE
        if bounds.max_norm is not None:
            found[np.sqrt(squares) > bounds.max_norm] = Verdict.TOO_LONG
    found[~np.isfinite(peaks)] = Verdict.NOT_FINITE
    return found


def add(
    total: torch.Tensor,
    updates: Sequence[torch.Tensor],
    scales: NDArray[np.float64],
    exponent: int,
) -> None:
    """Add the updates to the sum, in place; a client with scale 0 is left out, whatever it has."""
    counted = torch.from_numpy(scales > 0).to(total.device)
    factors = torch.from_numpy(np.ldexp(scales, exponent)).to(total.device)
    start = 0
    for update in updates:
        width = _width(update)
        for low in range(0, update.shape[1], width):
            piece = update[:, low : low + width].double() * factors[:, None]
            terms = torch.where(counted[:, None], piece, 0.0).round_().to(torch.int64)
            total[start + low : start + low + piece.shape[1]] += terms.sum(dim=0)
        start += update.shape[1]


def _width(update: torch.Tensor) -> int:
    """Return how many values of each client are taken at a time."""
    return max(1, BLOCK.get(update.device.type, BLOCK["cpu"]) // max(1, len(update)))


def _squares(update: torch.Tensor) -> NDArray[np.float64]:
    """Return the squared norm of each row, in float64."""
    width = _width(update)
    found = torch.zeros(len(update), dtype=torch.float64, device=update.device)
    for low in range(0, update.shape[1], width):
        found += update[:, low : low + width].double().square().sum(dim=1)
    squares: NDArray[np.float64] = found.cpu().numpy()
    return squares
