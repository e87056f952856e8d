"""How unevenly the work of a run was spread over its clients: by who was used, nothing else."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray


@dataclass(frozen=True, kw_only=True)
class Skew:
    """How unevenly the work was spread."""

    clients: int
    never: int
    least: int
    median: float
    mean: float
    most: int
    busiest: float
    """Share of all uses that the busiest tenth of the clients had."""
    gini: float
    """0: all as often; near 1: one client did everything."""


def counts(used: Mapping[str, int], registered: int | None) -> NDArray[np.int64]:
    """Return how often each client was used, ascending; those never used too, if known."""
    found = np.sort(np.fromiter(used.values(), np.int64, len(used)))
    never = max(0, (registered or 0) - found.size)
    return np.concatenate([np.zeros(never, np.int64), found])


def skew(ascending: NDArray[np.int64]) -> Skew:
    """Return how uneven counts are, at least one of which is above 0.

    Gini's coefficient of n ascending counts c_1..c_n with sum S:
    sum_i (2 i - n - 1) c_i / (n S), 0 for equal counts and (n - 1) / n where one has all.
    """
    n, total = ascending.size, int(ascending.sum())
    places = 2 * np.arange(1, n + 1, dtype=np.float64) - n - 1
    tenth = max(1, n // 10)
    return Skew(
        clients=n,
        never=int(np.count_nonzero(ascending == 0)),
        least=int(ascending[0]),
        median=float(np.median(ascending)),
        mean=total / n,
        most=int(ascending[-1]),
        busiest=float(ascending[-tenth:].sum() / total),
        gini=float(places @ ascending / (n * total)),
    )
