"""Splits by class: which clients know which classes, and how well.

    DirichletPartitioner         each class is spread by its own draw from a Dirichlet
    InnerDirichletPartitioner    each client's classes are a draw from a Dirichlet; sizes are given
    PathologicalPartitioner      each client has a number of classes

Hsu et al. 2019, https://arxiv.org/abs/1909.06335 (Dirichlet); Acar et al. 2021,
https://arxiv.org/abs/2111.04263 (inner Dirichlet); Li et al. 2021,
https://arxiv.org/abs/2102.02079 (a number of classes).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from .partition_sizes import fits, sizes_that_fit
from .task import order, stream
from ..protocol.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Rows = NDArray[np.intp]

TRIES = 1000
MODES = ("random", "first-deterministic", "deterministic")


@dataclass(frozen=True, slots=True, kw_only=True)
class DirichletPartitioner:
    """For every class, shares p ~ Dirichlet(alpha) over the clients are drawn.

    The class's rows are cut at the running sum of p; the whole draw is repeated until every
    partition has `min_partition_size`.
    """

    num_partitions: int
    alpha: float | Sequence[float]
    """One number for all clients, or one for each."""
    min_partition_size: int = 10
    self_balancing: bool = False
    """Whether a client that has more than the average already gets nothing of the next class, as in
    Yurochkin et al. 2019, https://arxiv.org/abs/1905.12022."""
    seed: int = 42

    def partitions(self, labels: NDArray[Any]) -> list[Rows]:
        """Return the rows of each partition; every row is in exactly one.

        Args:
            labels: Shape (examples,), the classes.

        Raises:
            SettingsError: The sizes cannot be met, or no draw in a thousand met them.
        """
        fits(self.num_partitions, self.min_partition_size, len(labels))
        alpha = _alpha("DirichletPartitioner", self.alpha, self.num_partitions)
        bits = stream(self.seed, "partition dirichlet")
        generator = np.random.Generator(bits)
        shuffled = [rows[order(bits, len(rows))] for rows in classes_of(labels)]
        for _ in range(TRIES):
            parts = self._draw(shuffled, alpha, generator)
            if min(map(len, parts)) >= self.min_partition_size:
                return [np.sort(part) for part in parts]
        raise SettingsError(
            "DirichletPartitioner",
            f"{self.num_partitions} partitions of at least {self.min_partition_size}",
            f"none in {TRIES} draws",
            "raise alpha, or lower min_partition_size or num_partitions",
        )

    def _draw(
        self, classes: list[Rows], alpha: NDArray[np.float64], generator: np.random.Generator
    ) -> list[Rows]:
        """Return one draw of all partitions."""
        parts: list[list[Rows]] = [[] for _ in range(self.num_partitions)]
        sizes = np.zeros(self.num_partitions)
        average = sum(map(len, classes)) / self.num_partitions
        for rows in classes:
            shares = generator.dirichlet(alpha)
            ends = _among(sizes <= average, shares) if self.self_balancing else np.cumsum(shares)
            cuts = (ends[:-1] * len(rows)).astype(np.intp)
            for index, piece in enumerate(np.split(rows, cuts)):
                parts[index].append(piece)
                sizes[index] += len(piece)
        return [np.concatenate(part) for part in parts]


@dataclass(frozen=True, slots=True, kw_only=True)
class InnerDirichletPartitioner:
    """Each client draws its own shares of the classes; its size is given.

    Rows are dealt one by one: to a client that is not full, each as likely, from a class by the
    client's shares among the classes of which rows are left. A client whose classes are all used up
    takes from the others as much as is left of each.
    """

    partition_sizes: Sequence[int]
    alpha: float | Sequence[float]
    """One number for all classes, or one for each, classes sorted."""
    seed: int = 42

    def partitions(self, labels: NDArray[Any]) -> list[Rows]:
        """Return the rows of each partition; none is in two.

        Raises:
            SettingsError: The sizes are more than there is, or alpha is no such number.
        """
        sizes = sizes_that_fit(self.partition_sizes, len(labels))
        classes = classes_of(labels)
        alpha = _alpha("InnerDirichletPartitioner", self.alpha, len(classes))
        bits = stream(self.seed, "partition inner dirichlet")
        generator = np.random.Generator(bits)
        shares = generator.dirichlet(alpha, len(sizes))
        shuffled = [rows[order(bits, len(rows))] for rows in classes]
        left = np.array([len(rows) for rows in classes])
        parts: list[list[np.intp]] = [[] for _ in sizes]
        hungry = list(range(len(sizes)))
        for which, what in generator.random((int(sizes.sum()), 2)).tolist():
            place = int(which * len(hungry))
            client = hungry[place]
            kind = _picked(shares[client], left, what)
            left[kind] -= 1
            parts[client].append(shuffled[kind][left[kind]])
            if len(parts[client]) == sizes[client]:
                hungry[place] = hungry[-1]
                hungry.pop()
        return [np.sort(np.array(part, np.intp)) for part in parts]


@dataclass(frozen=True, slots=True, kw_only=True)
class PathologicalPartitioner:
    """Every client has `num_classes_per_partition` classes; a class is shared out evenly.

    Classes that no client has are nobody's.
    """

    num_partitions: int
    num_classes_per_partition: int
    class_assignment_mode: str = "random"
    """`deterministic`: client i has the classes i, i + 1, ... in a circle; `first-deterministic`:
    class i and others at random, the paper's; `random`: all at random."""
    seed: int = 42

    def partitions(self, labels: NDArray[Any]) -> list[Rows]:
        """Return the rows of each partition; none is in two.

        Raises:
            SettingsError: There are too few classes, or too few rows of one for its clients.
        """
        fits(self.num_partitions, 1, len(labels))
        classes = classes_of(labels)
        if self.class_assignment_mode not in MODES:
            where = "PathologicalPartitioner.class_assignment_mode"
            raise SettingsError(where, " or ".join(MODES), self.class_assignment_mode)
        if not 1 <= self.num_classes_per_partition <= len(classes):
            raise SettingsError(
                "num_classes_per_partition", f"1 to {len(classes)}", self.num_classes_per_partition
            )
        bits = stream(self.seed, "partition pathological")
        has = np.zeros((self.num_partitions, len(classes)), bool)
        for client in range(self.num_partitions):
            has[client, self._chosen(client, len(classes), bits)] = True
        parts: list[list[Rows]] = [[] for _ in has]
        for kind, rows in enumerate(classes):
            holders = np.flatnonzero(has[:, kind])
            if len(holders) > len(rows):
                raise SettingsError(
                    "PathologicalPartitioner",
                    f"at most {len(rows)} partitions with class {kind} of the sorted ones",
                    len(holders),
                    "lower num_partitions or num_classes_per_partition",
                )
            pieces = np.array_split(rows[order(bits, len(rows))], max(1, len(holders)))
            for client, piece in zip(holders.tolist(), pieces, strict=False):
                parts[client].append(piece)
        return [np.sort(np.concatenate(part)) for part in parts]

    def _chosen(self, client: int, classes: int, bits: np.random.Philox) -> Rows:
        """Return the classes of a client."""
        wanted = self.num_classes_per_partition
        if self.class_assignment_mode == "deterministic":
            return (client + np.arange(wanted)) % classes
        drawn = order(bits, classes)
        if self.class_assignment_mode == "first-deterministic":
            first = client % classes
            return np.concatenate([[first], drawn[drawn != first][: wanted - 1]])
        return drawn[:wanted]


def classes_of(labels: NDArray[Any]) -> list[Rows]:
    """Return the rows of each class, classes sorted."""
    return [np.flatnonzero(labels == label) for label in np.unique(labels)]


def _alpha(who: str, alpha: float | Sequence[float], count: int) -> NDArray[np.float64]:
    """Return one number above 0 for each of `count`."""
    found = np.asarray(alpha, np.float64)
    if found.shape not in {(), (count,)}:
        raise SettingsError(f"{who}.alpha", f"one number, or {count}", f"shape {found.shape}")
    if not ((found > 0) & np.isfinite(found)).all():
        raise SettingsError(f"{who}.alpha", "a number above 0", alpha)
    return np.broadcast_to(found, count)


def _among(some: NDArray[np.bool_], shares: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the running sum of the shares of some, up to exactly 1.

    Each of them has the same where all their shares are 0.
    """
    found = np.where(some, shares, 0)
    ends: NDArray[np.float64] = np.cumsum(found if found.any() else some.astype(np.float64))
    ends /= ends[-1]
    return ends


def _picked(shares: NDArray[np.float64], left: NDArray[np.intp], where: float) -> int:
    """Return the class at `where` of 0 to 1 among those of which rows are left."""
    weights = np.where(left > 0, shares, 0)
    if not weights.any():
        weights = left.astype(np.float64)
    ends = weights.cumsum()
    return int(np.searchsorted(ends, where * ends[-1], side="right"))
