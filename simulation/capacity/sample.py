"""A distribution as weighted values: its quantiles, and how likely a value is not passed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    Reals = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """Values in ascending order, with the share of the whole up to each; `of` makes one."""

    values: Reals
    """Shape (n,), ascending; infinity stands for what never happens."""
    below: Reals
    """Shape (n,): the share of the whole that is not above the value; the last is 1."""

    @classmethod
    def of(cls, values: ArrayLike, weights: ArrayLike | None = None) -> Self:
        """Return the distribution of some values, each as likely as its weight says.

        Args:
            values: Shape (n,), at least one, none of them NaN.
            weights: Shape (n,), finite, 0 or more, not all 0; None: all alike.

        Raises:
            ValueError: There is no value, a NaN, or no weight.
        """
        flat = np.asarray(values, np.float64).reshape(-1)
        shares = np.ones(len(flat)) if weights is None else np.asarray(weights, np.float64)
        whole = float(shares.sum())
        if not len(flat) or np.isnan(flat).any() or not 0 < whole < np.inf or shares.min() < 0:
            raise ValueError(f"{len(flat)} values of weight {whole:g}: no distribution")
        order = np.argsort(flat, kind="stable")
        below = np.cumsum(shares[order]) / whole
        below[-1] = 1.0
        return cls(flat[order], below)

    def at(self, share: float) -> float:
        """Return the least value that is passed no more often than 1 - `share`, in (0, 1]."""
        return float(self.values[np.searchsorted(self.below, share * (1 - 1e-12))])

    def share(self, value: float) -> float:
        """Return how likely the value is not passed."""
        place = int(np.searchsorted(self.values, value, side="right"))
        return float(self.below[place - 1]) if place else 0.0

    @property
    def mean(self) -> float:
        """Return the mean; infinity where something never happens."""
        return float(self.values @ np.diff(self.below, prepend=0.0))
