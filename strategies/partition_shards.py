"""Splits whose amounts are laid down: shards of sorted rows, and a table of what each client gets.

McMahan et al. 2017, https://arxiv.org/abs/1602.05629 (shards); Li et al. 2020,
https://arxiv.org/abs/1812.06127 (a table, there from a power law).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from .partition_labels import classes_of
from .partition_sizes import fits
from .task import order, stream
from ..protocol.errors import SettingsError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Rows = NDArray[np.intp]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardPartitioner:
    """Rows are sorted by class and cut into shards, which are dealt at random.

    With `num_shards_per_partition` every client has as many, of `shard_size` rows or as large as
    the rows allow; with `shard_size` alone all shards are dealt, and the first clients get one more
    where they do not come out even. Rows in no shard are nobody's.
    """

    num_partitions: int
    num_shards_per_partition: int | None = None
    shard_size: int | None = None
    keep_incomplete_shard: bool = False
    """Whether the last rows are a shard although they do not fill one; no matter when both numbers
    are given."""
    seed: int = 42

    def partitions(self, labels: NDArray[Any]) -> list[Rows]:
        """Return the rows of each partition; none is in two.

        Raises:
            SettingsError: Neither number is given, or there are too few rows for them.
        """
        count = len(labels)
        fits(self.num_partitions, 1, count)
        size, usable = self._shards(count)
        bits = stream(self.seed, "partition shard")
        shuffled = order(bits, count)
        rows = shuffled[np.argsort(labels[shuffled], kind="stable")]
        shards = order(bits, usable)
        if self.num_shards_per_partition is not None:
            shards = shards[: self.num_partitions * self.num_shards_per_partition]
        dealt = np.array_split(shards, self.num_partitions)
        return [
            np.sort(np.concatenate([rows[shard * size : (shard + 1) * size] for shard in hand]))
            for hand in dealt
        ]

    def _shards(self, count: int) -> tuple[int, int]:
        """Return the size of a shard, and how many there are."""
        each, size = self.num_shards_per_partition, self.shard_size
        if each is None and size is None:
            raise SettingsError("ShardPartitioner", "num_shards_per_partition or shard_size", None)
        for name, number in (("num_shards_per_partition", each), ("shard_size", size)):
            if number is not None and number < 1:
                raise SettingsError(f"ShardPartitioner.{name}", "1 or more", number)
        needed = self.num_partitions * (each or 1)
        chosen = size or count // needed
        incomplete = self.keep_incomplete_shard and None in {each, size}
        usable = 0 if not chosen else -(-count // chosen) if incomplete else count // chosen
        if usable < needed:
            raise SettingsError(
                "ShardPartitioner",
                f"{needed} shards of {chosen} among {count} examples",
                usable,
                "lower shard_size, num_shards_per_partition or num_partitions",
            )
        return chosen, usable


@dataclass(frozen=True, slots=True, kw_only=True)
class DistributionPartitioner:
    """Client i has the classes i, i + 1, ... in a circle, of each as much as the table says.

    Row k of the table is for class k of the sorted ones; its columns are the clients that have the
    class, in their own order.
    """

    distribution_array: NDArray[Any]
    """Shape (classes, clients * num_unique_labels_per_partition / classes)."""
    num_partitions: int
    """A multiple of the number of classes."""
    num_unique_labels_per_partition: int
    preassigned_num_samples_per_label: int
    """Rows that every client gets of each of its classes beforehand; only with `rescale`."""
    rescale: bool = True
    """Whether the numbers are shares of the rows that are left of a class: rounded down, and what
    that leaves goes to one client at random. Else they are numbers of rows."""
    seed: int = 42

    def partitions(self, labels: NDArray[Any]) -> list[Rows]:
        """Return the rows of each partition; none is in two.

        Raises:
            SettingsError: The table has another shape, or wants more rows than there are.
        """
        fits(self.num_partitions, 1, len(labels))
        classes, bits = classes_of(labels), stream(self.seed, "partition distribution")
        self._check(len(classes))
        parts: list[list[Rows]] = [[] for _ in range(self.num_partitions)]
        for kind, rows in enumerate(classes):
            amounts = self._amounts(kind, len(rows), bits)
            pieces = np.split(rows[order(bits, len(rows))], np.cumsum(amounts))
            for client, piece in zip(self._holders(kind, len(classes)), pieces, strict=False):
                parts[client].append(piece)
        return [np.sort(np.concatenate(part)) for part in parts]

    def _holders(self, kind: int, classes: int) -> list[int]:
        """Return the clients that have a class."""
        each = self.num_unique_labels_per_partition
        return [i for i in range(self.num_partitions) if (kind - i) % classes < each]

    def _amounts(self, kind: int, count: int, bits: np.random.Philox) -> Rows:
        """Return how many rows of a class each of its clients gets."""
        row = np.asarray(self.distribution_array)[kind]
        if not self.rescale:
            amounts: Rows = row.astype(np.intp)
            if amounts.sum() > count:
                raise SettingsError(
                    "distribution_array", f"at most {count} in row {kind}", int(amounts.sum())
                )
            return amounts
        before = self.preassigned_num_samples_per_label
        free = count - before * len(row)
        if free < len(row):
            raise SettingsError(
                "preassigned_num_samples_per_label", f"at most {count // len(row) - 1}", before
            )
        amounts = np.floor(row / row.sum() * free).astype(np.intp) + np.intp(before)
        amounts[(int(bits.random_raw()) * len(row)) >> 64] += count - amounts.sum()
        return amounts

    def _check(self, classes: int) -> None:
        """Raise unless table, clients and classes fit each other."""
        table, each = np.asarray(self.distribution_array), self.num_unique_labels_per_partition
        if self.num_partitions % classes:
            raise SettingsError("num_partitions", f"a multiple of {classes}", self.num_partitions)
        if not 1 <= each <= classes:
            raise SettingsError("num_unique_labels_per_partition", f"1 to {classes}", each)
        shape = (classes, each * self.num_partitions // classes)
        if table.shape != shape or table.dtype.kind not in "iuf":
            got = f"{table.dtype} {table.shape}"
            raise SettingsError("distribution_array", f"numbers of shape {shape}", got)
        if not np.isfinite(table).all() or table.min() < 0 or not table.sum(axis=1).all():
            raise SettingsError("distribution_array", "0 or more, and not all 0 in a row", "others")
        if self.preassigned_num_samples_per_label < 0:
            raise SettingsError(
                "preassigned_num_samples_per_label", "0 or more",
                self.preassigned_num_samples_per_label,
            )  # fmt: skip
