"""Splits by size, or by a number: how much each client gets, whatever the classes.

    IidPartitioner            parts of one size, give or take one
    SizePartitioner           the sizes that are given
    IdToSizeFncPartitioner    sizes in proportion to a function of 1, 2, ..., num_partitions
    LinearPartitioner         in proportion to 1, 2, 3, ...
    SquarePartitioner         1, 4, 9, ...
    ExponentialPartitioner    e, e^2, e^3, ...
    ContinuousPartitioner     parts of one size along a feature that is sorted, more or less

flwr-datasets deals out rows as they lie, after `FederatedDataset` has shuffled them. Here `seed`
shuffles, and None takes them as they lie.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from .task import order, stream
from ..protocol.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    Rows = NDArray[np.intp]


@dataclass(frozen=True, slots=True, kw_only=True)
class IidPartitioner:
    """Every client gets a random part of the same size, give or take one."""

    num_partitions: int
    seed: int | None = 42

    def partitions(self, values: NDArray[Any]) -> list[Rows]:
        """Return the rows of each partition; every row is in exactly one."""
        fits(self.num_partitions, 1, len(values))
        rows = _rows(self.seed, "partition iid", len(values))
        return [np.sort(part) for part in np.array_split(rows, self.num_partitions)]


@dataclass(frozen=True, slots=True, kw_only=True)
class SizePartitioner:
    """The i-th client gets `partition_sizes[i]` rows; what is left over is nobody's."""

    partition_sizes: Sequence[int]
    seed: int | None = 42

    def partitions(self, values: NDArray[Any]) -> list[Rows]:
        """Return the rows of each partition; none is in two."""
        sizes = sizes_that_fit(self.partition_sizes, len(values))
        return _dealt(_rows(self.seed, "partition size", len(values)), sizes)


@dataclass(frozen=True, slots=True, kw_only=True)
class IdToSizeFncPartitioner:
    """Sizes in proportion to a function, rounded down; the last client gets what that leaves."""

    num_partitions: int
    partition_id_to_size_fn: Callable[[NDArray[np.float64]], NDArray[Any]]
    """Takes 1.0, 2.0, ..., num_partitions, and returns as many positive numbers."""
    seed: int | None = 42

    def partitions(self, values: NDArray[Any]) -> list[Rows]:
        """Return the rows of each partition; every row is in exactly one.

        Raises:
            SettingsError: A partition would get nothing.
        """
        count = len(values)
        fits(self.num_partitions, 1, count)
        ids = np.arange(1.0, self.num_partitions + 1)
        units = np.asarray(self.partition_id_to_size_fn(ids), np.float64)
        if units.shape != ids.shape or not ((units > 0) & np.isfinite(units)).all():
            what = f"{self.num_partitions} numbers above 0"
            raise SettingsError("partition_id_to_size_fn", what, units.tolist())
        sizes = np.floor(count * units / units.sum()).astype(np.intp)
        sizes[-1] += count - sizes.sum()
        if sizes.min() < 1:
            raise SettingsError(
                "num_partitions",
                f"so few that each gets one of {count} examples",
                self.num_partitions,
                f"partition {int(sizes.argmin())} would get none",
            )
        return _dealt(_rows(self.seed, "partition size", count), sizes)


def _linear(ids: NDArray[np.float64]) -> NDArray[np.float64]:
    return ids


def _square(ids: NDArray[np.float64]) -> NDArray[np.float64]:
    return ids * ids


def _exponential(ids: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return e^id up to a factor that keeps the largest within range."""
    found: NDArray[np.float64] = np.exp(ids - ids[-1])
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearPartitioner(IdToSizeFncPartitioner):
    """The i-th of the clients, counted from 1, gets i units."""

    partition_id_to_size_fn: Callable[[NDArray[np.float64]], NDArray[Any]] = _linear


@dataclass(frozen=True, slots=True, kw_only=True)
class SquarePartitioner(IdToSizeFncPartitioner):
    """The i-th of the clients, counted from 1, gets i^2 units."""

    partition_id_to_size_fn: Callable[[NDArray[np.float64]], NDArray[Any]] = _square


@dataclass(frozen=True, slots=True, kw_only=True)
class ExponentialPartitioner(IdToSizeFncPartitioner):
    """The i-th of the clients, counted from 1, gets e^i units."""

    partition_id_to_size_fn: Callable[[NDArray[np.float64]], NDArray[Any]] = _exponential


@dataclass(frozen=True, slots=True, kw_only=True)
class ContinuousPartitioner:
    """Rows are sorted by a real number, mixed with noise, and cut into parts of one size.

    The key is `strictness * z + (1 - strictness) * noise`, where z is the number less its mean, in
    standard deviations, and noise is standard normal: 0 is a split at random, 1 one by rank.
    """

    num_partitions: int
    strictness: float
    seed: int = 42

    def partitions(self, values: NDArray[Any]) -> list[Rows]:
        """Return the rows of each partition; every row is in exactly one.

        Args:
            values: Shape (examples,), the real number.

        Raises:
            SettingsError: A value is not finite, or all are the same.
        """
        fits(self.num_partitions, 1, len(values))
        if not 0 <= self.strictness <= 1:
            raise SettingsError("ContinuousPartitioner.strictness", "0 to 1", self.strictness)
        numbers = np.asarray(values, np.float64)
        finite = bool(np.isfinite(numbers).all())
        spread = float(numbers.std()) if finite else 0.0
        if not finite or (spread == 0 and self.strictness > 0):
            raise SettingsError("ContinuousPartitioner", "finite values that differ", "others")
        generator = np.random.Generator(stream(self.seed, "partition continuous"))
        key = (1 - self.strictness) * generator.standard_normal(len(numbers))
        if self.strictness > 0:
            key += self.strictness * (numbers - numbers.mean()) / spread
        rows = np.argsort(key, kind="stable")
        return [np.sort(part) for part in np.array_split(rows, self.num_partitions)]


def fits(partitions: int, least: int, examples: int) -> None:
    """Raise unless there are examples enough."""
    if partitions < 1 or partitions * least > examples:
        raise SettingsError(
            "num_partitions", f"1 to {examples // max(least, 1)} of {examples} examples", partitions
        )


def sizes_that_fit(sizes: Sequence[int], examples: int) -> Rows:
    """Return the sizes as an array.

    Raises:
        SettingsError: One is not above 0, or together they are more than the examples.
    """
    found = np.asarray(sizes)
    if found.dtype.kind not in "iu" or found.ndim != 1 or not len(found) or found.min() < 1:
        raise SettingsError("partition_sizes", "integers above 0", list(sizes))
    if found.sum() > examples:
        raise SettingsError("partition_sizes", f"at most {examples} together", int(found.sum()))
    return found.astype(np.intp)


def _rows(seed: int | None, purpose: str, count: int) -> Rows:
    """Return all rows in an order of their own, or as they lie."""
    return np.arange(count) if seed is None else order(stream(seed, purpose), count)


def _dealt(rows: Rows, sizes: Rows) -> list[Rows]:
    """Return the rows cut into parts of these sizes, each sorted."""
    return [np.sort(part) for part in np.split(rows, np.cumsum(sizes))[:-1]]
