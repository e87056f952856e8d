"""What a cohort's updates come to under a robust rule, where a simulation has all of them as rows.

The rows are the updates themselves, not the ring's codes of them (core/rows.py): nothing was
encoded for a journey that nobody makes. They lie in one buffer that may be mapped from a file, and
the rule reads it tile by tile (strategies/wide_tiles.py): memory is the buffer, some tiles, and n^2
numbers for the rules that look at distances. Rows are in the cohort's order.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from .core.rows import enough
from .reduced import Flat
from ..protocol.errors import StateError
from ..strategies.robust_rules import RULES, aggregate
from ..strategies.wide_tiles import WideTiles

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..protocol.layout import MessageLayout
    from ..strategies.robust_rules import Robust

SORTED = "robust rules run on sorted columns"
"""What a log says of the kernels."""


@dataclass(frozen=True, slots=True)
class RobustRows:
    """One row of each client that counts (reduced.py, Aggregate)."""

    robust: Robust
    rows: NDArray[Any] = field(repr=False)
    """Shape (clients, values), float32 or float64: the averaged arrays of the manifest, each flat,
    one after another."""
    weights: NDArray[np.int64] = field(repr=False)
    threads: int = 1

    @property
    def weight(self) -> int:
        """Sum of the weights that are in it."""
        return int(self.weights.sum())

    def mean(self, layout: MessageLayout) -> FlatMean:
        """Return what the rule makes of the rows.

        Raises:
            TooFewMembers: There are too few rows for what the rule promises.
            RoundFailed: It finds nothing to stand on.
            StateError: A row has another length than the model's averaged arrays.
        """
        enough(self.robust, len(self.rows))
        out = np.empty(self.rows.shape[1], np.float32)
        aggregate(self.robust, self.rows, out, WideTiles(self.threads), weights=self.weights)
        return FlatMean(out, layout)


class FlatMean:
    """An update without gaps between its arrays (stepping.py, Mean)."""

    def __init__(self, values: NDArray[np.float32], layout: MessageLayout) -> None:
        """Take the update.

        Raises:
            StateError: It has another length than the model's averaged arrays.
        """
        self._values, self._flat = values, Flat(layout)
        if values.shape != (self._flat.size,):
            expected = f"{self._flat.size} values a row"
            raise StateError("robust rows", expected, values.shape, "a fault of their tier")

    def decode(self, start: int, stop: int, out: NDArray[Any]) -> None:
        """Write the update of these words of one array."""
        np.copyto(out, self._values[self._flat.part(start, stop)], casting="unsafe")


def room_for(robust: Robust, clients: int, values: int, itemsize: int) -> int:
    """Return the bytes that a round of so many rows takes: the rows, and what the rule needs."""
    products = 8 * clients**2 if RULES[robust.rule].inner_products else 0
    return clients * values * itemsize + products
