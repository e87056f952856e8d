"""Split labelled examples over clients: evenly, or with label skew drawn from a Dirichlet.

Names and meaning follow flwr-datasets: `IidPartitioner`, and `DirichletPartitioner` with
`self_balancing=False`. For every class, shares p ~ Dirichlet(alpha, ..., alpha) over the partitions
are drawn and the class's examples are cut at the running sum of p; the whole draw is repeated until
every partition has `min_partition_size` examples. Hsu et al. 2019, https://arxiv.org/abs/1909.06335.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from .task import order, stream
from ..protocol.errors import SettingsError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Rows = NDArray[np.intp]

TRIES = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class IidPartitioner:
    """Every client gets a random part of the same size, give or take one."""

    num_partitions: int
    seed: int = 42

    def partitions(self, labels: NDArray[Any]) -> list[Rows]:
        """Return the rows of each partition; every row is in exactly one."""
        _fits(self.num_partitions, 1, len(labels))
        rows = order(stream(self.seed, "partition iid"), len(labels))
        return [np.sort(part) for part in np.array_split(rows, self.num_partitions)]


@dataclass(frozen=True, slots=True, kw_only=True)
class DirichletPartitioner:
    """Every class is spread over the clients by its own draw from a symmetric Dirichlet."""

    num_partitions: int
    alpha: float
    min_partition_size: int = 10
    seed: int = 42

    def partitions(self, labels: NDArray[Any]) -> list[Rows]:
        """Return the rows of each partition; every row is in exactly one.

        Args:
            labels: Shape (examples,), the classes.

        Raises:
            SettingsError: The sizes cannot be met, or no draw in a thousand met them.
        """
        _fits(self.num_partitions, self.min_partition_size, len(labels))
        if not 0 < self.alpha < float("inf"):
            raise SettingsError("DirichletPartitioner.alpha", "a number above 0", self.alpha)
        bits = stream(self.seed, "partition dirichlet")
        generator = np.random.Generator(bits)
        classes = [np.flatnonzero(labels == label) for label in np.unique(labels)]
        shuffled = [rows[order(bits, len(rows))] for rows in classes]
        for _ in range(TRIES):
            parts = self._draw(shuffled, generator)
            if min(map(len, parts)) >= self.min_partition_size:
                return [np.sort(part) for part in parts]
        raise SettingsError(
            "DirichletPartitioner",
            f"{self.num_partitions} partitions of at least {self.min_partition_size}",
            f"none in {TRIES} draws",
            "raise alpha, or lower min_partition_size or num_partitions",
        )

    def _draw(self, classes: list[Rows], generator: np.random.Generator) -> list[Rows]:
        """Return one draw of all partitions."""
        parts: list[list[Rows]] = [[] for _ in range(self.num_partitions)]
        for rows in classes:
            shares = generator.dirichlet(np.full(self.num_partitions, self.alpha))
            cuts = (np.cumsum(shares)[:-1] * len(rows)).astype(np.intp)
            for part, piece in zip(parts, np.split(rows, cuts), strict=True):
                part.append(piece)
        return [np.concatenate(part) for part in parts]


def _fits(partitions: int, least: int, examples: int) -> None:
    """Raise unless there are examples enough."""
    if partitions < 1 or partitions * least > examples:
        raise SettingsError(
            "num_partitions", f"1 to {examples // max(least, 1)} of {examples} examples", partitions
        )
