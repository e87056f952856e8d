"""Federated averaging over one flat vector in torch: the fold in batches, and the server step.

    acc <- acc + X^T w        X: K updates as rows, w: their weights, torch.addmv in place
    mean = acc / sum(w)

A batch of K = 8 moves 4 + 8/K = 5 bytes an element instead of the 12 of one update at a time, and
needs no copy: X^T is a view. Rows of bfloat16 or float16 are widened tile by
tile, never whole (2.2). The accumulator is float32, float64 for float64 rows. The pure rule that
this equals is fedavg.py, with server_rules.py.
"""

from __future__ import annotations

import torch

from ..protocol.errors import RoundFailed, SettingsError, VoidRound

BATCH = 8
TILE = 1 << 16
"""Columns that are widened at once: 2 MiB at K = 8, which stays in the second-level cache."""


class TorchSum:
    """The running weighted mean of flat vectors; memory is K rows, an accumulator and a tile."""

    def __init__(
        self, numel: int, *, batch: int = BATCH, dtype: torch.dtype = torch.float32
    ) -> None:
        """Allocate once for vectors of `numel` values of a float dtype, `batch` rows at a time.

        Raises:
            SettingsError: `batch` is below 1 or the dtype is no float.
        """
        if batch < 1 or not dtype.is_floating_point:
            raise SettingsError("torch sum", "a batch of 1 or more of floats", (batch, dtype))
        wide = torch.float64 if dtype == torch.float64 else torch.float32
        self._rows = torch.zeros(batch, numel, dtype=dtype)
        self._total = torch.zeros(numel, dtype=wide)
        self._tile = None if dtype == wide else torch.zeros(batch, min(TILE, numel), dtype=wide)
        self._pending: list[float] = []
        self._weight = 0.0

    def slot(self) -> torch.Tensor:
        """Return the row that the next update is written into, shape `(numel,)`."""
        return self._rows[len(self._pending)]

    def fold(self, weight: float) -> None:
        """Take the row as a checked update of this weight; a full batch enters the sum."""
        self._pending.append(weight)
        self._weight += weight
        if len(self._pending) == len(self._rows):
            self._flush()

    def mean(self) -> torch.Tensor:
        """Return the weighted mean in the accumulator's dtype, a new tensor.

        Raises:
            RoundFailed: No update was folded.
        """
        self._flush()
        if self._weight == 0.0:
            raise RoundFailed("no update reached the sum of this round")
        return self._total / self._weight

    def _flush(self) -> None:
        """Add the open batch, the last of a round may be smaller than K."""
        count = len(self._pending)
        if count == 0:
            return
        weights = torch.tensor(self._pending, dtype=self._total.dtype)
        rows, total = self._rows[:count], self._total
        if self._tile is None:
            torch.addmv(total, rows.t(), weights, out=total)
        else:
            for start in range(0, total.numel(), TILE):
                part = total[start : start + TILE]
                wide = self._tile[:count, : part.numel()]
                wide.copy_(rows[:, start : start + TILE])
                torch.addmv(part, wide.t(), weights, out=part)
        self._pending.clear()


def step(
    model: torch.Tensor, mean_delta: torch.Tensor, server_learning_rate: float = 1.0
) -> torch.Tensor:
    """Return `model + server_learning_rate * mean_delta` in the model's dtype, a new tensor.

    Raises:
        VoidRound: A value of the result is not finite.
    """
    moved = torch.add(model, mean_delta, alpha=server_learning_rate).to(model.dtype)
    if not bool(torch.isfinite(moved).all()):
        raise VoidRound(
            "server step: the model would hold a value that is not finite; it is unchanged; "
            "lower the learning rates"
        )
    return moved
