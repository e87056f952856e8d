"""The other partitioners: sizes and classes by hand, rows by properties.

Figures of flwr-datasets' own documentation are marked; its package is no dependency of the tests.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from umbel.protocol.errors import SettingsError
from umbel.strategies import partition
from umbel.strategies.partition import (
    ContinuousPartitioner,
    DirichletPartitioner,
    DistributionPartitioner,
    ExponentialPartitioner,
    GroupedNaturalIdPartitioner,
    IdToSizeFncPartitioner,
    IidPartitioner,
    InnerDirichletPartitioner,
    LinearPartitioner,
    NaturalIdPartitioner,
    PathologicalPartitioner,
    ShardPartitioner,
    SizePartitioner,
    SquarePartitioner,
)

LABELS = np.repeat(np.arange(10), 60)[np.random.default_rng(0).permutation(600)]
TABLE = np.arange(1, 41).reshape(10, 4)

WHOLE: dict[str, Any] = {
    "iid": IidPartitioner(num_partitions=7),
    "linear": LinearPartitioner(num_partitions=7),
    "square": SquarePartitioner(num_partitions=7),
    "exponential": ExponentialPartitioner(num_partitions=5),
    "function": IdToSizeFncPartitioner(num_partitions=3, partition_id_to_size_fn=np.sqrt),
    "continuous": ContinuousPartitioner(num_partitions=7, strictness=0.5),
    "dirichlet": DirichletPartitioner(num_partitions=7, alpha=0.5),
    "balanced": DirichletPartitioner(num_partitions=7, alpha=0.5, self_balancing=True),
    "alphas": DirichletPartitioner(num_partitions=3, alpha=[1, 2, 3]),
    "inner": InnerDirichletPartitioner(partition_sizes=[300, 200, 100], alpha=0.3),
    "circle": PathologicalPartitioner(
        num_partitions=10, num_classes_per_partition=3, class_assignment_mode="deterministic"
    ),
    "first": PathologicalPartitioner(
        num_partitions=12, num_classes_per_partition=3, class_assignment_mode="first-deterministic"
    ),
    "shards": ShardPartitioner(num_partitions=10, num_shards_per_partition=2),
    "all shards": ShardPartitioner(num_partitions=7, shard_size=7, keep_incomplete_shard=True),
    "table": DistributionPartitioner(
        distribution_array=TABLE,
        num_partitions=20,
        num_unique_labels_per_partition=2,
        preassigned_num_samples_per_label=5,
    ),
    "natural": NaturalIdPartitioner(),
    "grouped": GroupedNaturalIdPartitioner(group_size=3),
}
SOME: dict[str, Any] = {
    "sizes": SizePartitioner(partition_sizes=[300, 5, 70]),
    "inner": InnerDirichletPartitioner(partition_sizes=[9, 8], alpha=0.001),
    "classes": PathologicalPartitioner(num_partitions=2, num_classes_per_partition=2),
    "shards": ShardPartitioner(num_partitions=5, num_shards_per_partition=2, shard_size=50),
    "dropped": GroupedNaturalIdPartitioner(group_size=4, mode="drop-reminder"),
}


def sizes(split: Any, values: Any = LABELS) -> list[int]:
    return [len(part) for part in split.partitions(values)]


def kinds(split: Any, labels: Any = LABELS) -> list[list[int]]:
    return [sorted(set(labels[part].tolist())) for part in split.partitions(labels)]


@pytest.mark.parametrize("name", WHOLE)
def test_every_row_is_somebodys_once(name: str) -> None:
    parts = WHOLE[name].partitions(LABELS)
    assert sorted(np.concatenate(parts).tolist()) == list(range(600))
    assert [part.tolist() for part in parts] == [
        part.tolist() for part in WHOLE[name].partitions(LABELS)
    ]


@pytest.mark.parametrize("name", SOME)
def test_no_row_is_in_two_partitions(name: str) -> None:
    rows = np.concatenate(SOME[name].partitions(LABELS)).tolist()
    assert len(rows) == len(set(rows)) < 600
    assert set(rows) <= set(range(600))


@pytest.mark.parametrize("name", [name for name, split in WHOLE.items() if hasattr(split, "seed")])
def test_the_seed_is_what_changes_a_split(name: str) -> None:
    split = WHOLE[name]
    other = type(split)(
        **{field: getattr(split, field) for field in split.__dataclass_fields__ if field != "seed"},
        seed=7,
    )
    pairs = zip(split.partitions(LABELS), other.partitions(LABELS), strict=True)
    assert any(mine.tolist() != its.tolist() for mine, its in pairs)


def test_everything_that_flower_datasets_deals_rows_with_is_here() -> None:
    """Its documentation lists 16 partitioners; `Vertical*` ones split columns, not rows."""
    assert len(partition.__all__) == 14
    assert all(hasattr(partition, name) for name in partition.__all__)


# ---- sizes -------------------------------------------------------------------------------------


def test_sizes_follow_the_ids() -> None:
    rows = np.zeros
    assert sizes(LinearPartitioner(num_partitions=4), rows(10)) == [1, 2, 3, 4]
    # 12 i / 10 = 1.2, 2.4, 3.6, 4.8: rounded down 10 rows, the last two go to the last.
    assert sizes(LinearPartitioner(num_partitions=4), rows(12)) == [1, 2, 3, 6]
    assert sizes(SquarePartitioner(num_partitions=3), rows(14)) == [1, 4, 9]
    # 30 e^i / (e + e^2 + e^3) = 2.70, 7.34, 19.96
    assert sizes(ExponentialPartitioner(num_partitions=3), rows(30)) == [2, 7, 21]
    assert sizes(SizePartitioner(partition_sizes=[3, 1, 2]), rows(9)) == [3, 1, 2]


def test_rows_are_dealt_as_they_lie_where_nothing_shuffles() -> None:
    parts = SizePartitioner(partition_sizes=[3, 1, 2], seed=None).partitions(np.zeros(9))
    assert [part.tolist() for part in parts] == [[0, 1, 2], [3], [4, 5]]
    parts = LinearPartitioner(num_partitions=3, seed=None).partitions(np.zeros(6))
    assert [part.tolist() for part in parts] == [[0], [1, 2], [3, 4, 5]]


@settings(max_examples=60)
@given(count=st.integers(1, 40), rows=st.integers(820, 3000))
def test_linear_sizes_are_exact(count: int, rows: int) -> None:
    units = count * (count + 1) // 2
    expected = [rows * i // units for i in range(1, count + 1)]
    expected[-1] += rows - sum(expected)
    assert sizes(LinearPartitioner(num_partitions=count), np.zeros(rows)) == expected


def test_a_strict_split_is_by_rank_and_a_loose_one_does_not_look() -> None:
    values = np.random.default_rng(5).normal(size=600)
    strict = ContinuousPartitioner(num_partitions=6, strictness=1).partitions(values)
    assert [sorted(part) for part in strict] == [
        sorted(part) for part in np.split(np.argsort(values), 6)
    ]
    loose = ContinuousPartitioner(num_partitions=6, strictness=0)
    one, other = loose.partitions(values), loose.partitions(np.ones(600))
    assert [part.tolist() for part in one] == [part.tolist() for part in other]
    middle = ContinuousPartitioner(num_partitions=6, strictness=0.5).partitions(values)
    means = [float(values[part].mean()) for part in middle]
    assert means == sorted(means)
    assert means[0] > values[strict[0]].mean()


# ---- classes -----------------------------------------------------------------------------------


def test_a_balanced_client_gets_nothing_of_further_classes() -> None:
    """Whoever has more than the average after some classes has none of the next ones."""
    split = DirichletPartitioner(
        num_partitions=6, alpha=0.3, min_partition_size=0, self_balancing=True, seed=3
    )
    counts = np.array([np.bincount(LABELS[p], minlength=10) for p in split.partitions(LABELS)])
    before = np.cumsum(counts, axis=1)[:, :-1]
    assert (before > 100).any()
    assert not counts[:, 1:][before > 100].any()


def test_every_client_can_have_its_own_alpha() -> None:
    """The mean share of a class is alpha / sum(alpha): 0.1, 0.2 and 0.7 of 6,000 rows."""
    split = DirichletPartitioner(num_partitions=3, alpha=[100, 200, 700])
    assert np.allclose(np.array(sizes(split)) / 600, [0.1, 0.2, 0.7], atol=0.02)


def test_the_inner_draw_keeps_sizes_and_its_alpha_skews_them() -> None:
    many = [20] * 20
    even = InnerDirichletPartitioner(partition_sizes=many, alpha=1000.0)
    skewed = InnerDirichletPartitioner(partition_sizes=many, alpha=0.01)
    assert sizes(even) == sizes(skewed) == many

    def largest(split: Any) -> float:
        counts = [np.bincount(LABELS[part]).max() for part in split.partitions(LABELS)]
        return float(np.mean(counts)) / 20

    # Twenty draws of ten equal classes: the fullest has 4.4 in the mean (by 100,000 draws).
    assert largest(even) == pytest.approx(0.22, abs=0.04)
    assert largest(skewed) > 0.85
    assert sizes(InnerDirichletPartitioner(partition_sizes=[600], alpha=0.001)) == [600]


def test_classes_go_round_in_a_circle_or_begin_there_or_are_drawn() -> None:
    def split(clients: int, mode: str) -> Any:
        return PathologicalPartitioner(
            num_partitions=clients, num_classes_per_partition=3, class_assignment_mode=mode
        )

    circle = [sorted({i % 10, (i + 1) % 10, (i + 2) % 10}) for i in range(13)]
    assert kinds(split(13, "deterministic")) == circle
    first = kinds(split(13, "first-deterministic"))
    drawn = kinds(split(40, "random"))
    assert all(i % 10 in found for i, found in enumerate(first))
    assert {len(found) for found in first + drawn} == {3}
    assert len(set(map(tuple, drawn))) > 20
    shared = split(10, "deterministic").partitions(LABELS)
    assert {int(n) for part in shared for n in np.bincount(LABELS[part])} == {0, 20}


def test_shards_are_those_of_the_documentation() -> None:
    """Three examples of flwr-datasets' page on ShardPartitioner: 60,000 rows."""
    labels = np.random.default_rng(1).integers(10, size=60_000)
    exact = ShardPartitioner(num_partitions=10, num_shards_per_partition=2, shard_size=1000)
    nearly = ShardPartitioner(num_partitions=9, shard_size=1000)
    every = ShardPartitioner(num_partitions=10, shard_size=990, keep_incomplete_shard=True)
    assert sizes(exact, labels) == [2000] * 10
    assert sizes(nearly, labels) == [7000] * 6 + [6000] * 3
    # 61 shards, one of 600 rows: seven for the first client, the small one is anybody's.
    found = sizes(every, labels)
    whole = [6930] + [5940] * 9
    assert sorted(a - b for a, b in zip(whole, found, strict=True)) == [0] * 9 + [390]


def test_a_shard_has_as_few_classes_as_it_can() -> None:
    found = kinds(ShardPartitioner(num_partitions=10, num_shards_per_partition=2))
    assert {len(classes) for classes in found} <= {1, 2}
    assert sizes(ShardPartitioner(num_partitions=10, num_shards_per_partition=2)) == [60] * 10


def test_a_table_says_who_gets_how_much() -> None:
    split = DistributionPartitioner(
        distribution_array=TABLE,
        num_partitions=20,
        num_unique_labels_per_partition=2,
        preassigned_num_samples_per_label=0,
        rescale=False,
    )
    labels = np.repeat(np.arange(10), 200)
    parts = split.partitions(labels)
    # Class 0 goes to clients 0, 9, 10 and 19, class 1 to 0, 1, 10, 11 (flwr-datasets' page).
    counts = np.array([np.bincount(labels[part], minlength=10) for part in parts])
    assert np.flatnonzero(counts[:, 0]).tolist() == [0, 9, 10, 19]
    assert np.flatnonzero(counts[:, 1]).tolist() == [0, 1, 10, 11]
    for kind, row in enumerate(TABLE):
        assert counts[:, kind][counts[:, kind] > 0].tolist() == row.tolist()


def test_a_table_of_shares_uses_every_row() -> None:
    split = DistributionPartitioner(
        distribution_array=np.array([[1, 3], [1, 1]]),
        num_partitions=2,
        num_unique_labels_per_partition=2,
        preassigned_num_samples_per_label=10,
    )
    labels = np.array([0] * 60 + [1] * 61)
    counts = np.array([np.bincount(labels[part]) for part in split.partitions(labels)])
    # Ten each of the 60 beforehand, of the other 40 a quarter and three quarters.
    assert counts[:, 0].tolist() == [20, 40]
    # Of 41 twenty each, and the last to either.
    assert sorted(counts[:, 1].tolist()) == [30, 31]


# ---- ids ---------------------------------------------------------------------------------------


def test_an_id_is_a_client() -> None:
    ids = np.array(["b", "a", "c", "b", "a", "b"])
    parts = NaturalIdPartitioner().partitions(ids)
    assert [part.tolist() for part in parts] == [[1, 4], [0, 3, 5], [2]]


@pytest.mark.parametrize(
    ("mode", "in_order", "expected"),
    [
        # Ids in the order of their first rows: 9, 2, 7, 4, 5; sorted: 2, 4, 5, 7, 9.
        ("allow-smaller", False, [[0, 5, 1], [2, 3], [4]]),
        ("allow-smaller", True, [[1, 3], [4, 2], [0, 5]]),
        ("allow-bigger", False, [[0, 5, 1, 2], [3, 4]]),
        ("drop-reminder", False, [[0, 5, 1], [2, 3]]),
    ],
)
def test_ids_make_groups(mode: str, in_order: bool, expected: list[list[int]]) -> None:
    split = GroupedNaturalIdPartitioner(group_size=2, mode=mode, sort_unique_ids=in_order)
    ids = np.array([9, 2, 7, 4, 5, 9])
    assert [part.tolist() for part in split.partitions(ids)] == expected


def test_one_group_may_be_smaller_than_it_should() -> None:
    assert sizes(GroupedNaturalIdPartitioner(group_size=99)) == [600]
    strict = GroupedNaturalIdPartitioner(group_size=5, mode="strict")
    assert sizes(strict) == [300, 300]


# ---- refusals ----------------------------------------------------------------------------------


def table(**changes: Any) -> DistributionPartitioner:
    usual: dict[str, Any] = {
        "distribution_array": TABLE,
        "num_partitions": 20,
        "num_unique_labels_per_partition": 2,
        "preassigned_num_samples_per_label": 5,
    }
    return DistributionPartitioner(**usual | changes)


@pytest.mark.parametrize(
    ("split", "words"),
    [
        (LinearPartitioner(num_partitions=100), "partition 0 would get none"),
        (
            IdToSizeFncPartitioner(num_partitions=2, partition_id_to_size_fn=lambda i: i - 1),
            "2 numbers above 0",
        ),
        (SizePartitioner(partition_sizes=[]), "integers above 0"),
        (SizePartitioner(partition_sizes=[3, 0]), "integers above 0"),
        (SizePartitioner(partition_sizes=[599, 2]), "at most 600 together, got 601"),
        (ContinuousPartitioner(num_partitions=2, strictness=1.5), "0 to 1"),
        (DirichletPartitioner(num_partitions=3, alpha=[1, 2]), "one number, or 3"),
        (DirichletPartitioner(num_partitions=2, alpha=[1, 0]), "a number above 0"),
        (InnerDirichletPartitioner(partition_sizes=[9], alpha=[1] * 9), "one number, or 10"),
        (InnerDirichletPartitioner(partition_sizes=[601], alpha=1), "at most 600 together"),
        (PathologicalPartitioner(num_partitions=3, num_classes_per_partition=11), "1 to 10"),
        (PathologicalPartitioner(num_partitions=61, num_classes_per_partition=10), "at most 60"),
        (
            PathologicalPartitioner(
                num_partitions=3, num_classes_per_partition=1, class_assignment_mode="best"
            ),
            "random or first-deterministic or deterministic, got 'best'",
        ),
        (ShardPartitioner(num_partitions=3), "num_shards_per_partition or shard_size"),
        (ShardPartitioner(num_partitions=3, shard_size=0), "1 or more"),
        (
            ShardPartitioner(num_partitions=3, num_shards_per_partition=2, shard_size=101),
            "6 shards of 101 among 600 examples, got 5",
        ),
        (ShardPartitioner(num_partitions=300, num_shards_per_partition=3), "900 shards of 0"),
        (table(num_partitions=25), "a multiple of 10"),
        (table(num_partitions=10), r"numbers of shape \(10, 2\)"),
        (table(num_unique_labels_per_partition=11), "1 to 10"),
        (table(preassigned_num_samples_per_label=15), "at most 14, got 15"),
        (table(preassigned_num_samples_per_label=-1), "0 or more"),
        (table(distribution_array=TABLE - 2), "0 or more, and not all 0"),
        (table(rescale=False), "at most 60 in row 4, got 74"),
        (GroupedNaturalIdPartitioner(group_size=0), "1 to 10, the ids"),
        (GroupedNaturalIdPartitioner(group_size=11, mode="strict"), "1 to 10, the ids"),
        (GroupedNaturalIdPartitioner(group_size=3, mode="strict"), "a divisor of 10 ids"),
        (GroupedNaturalIdPartitioner(group_size=3, mode="tight"), "allow-smaller or"),
    ],
    ids=itertools.count(),
)
def test_what_cannot_be_is_refused(split: Any, words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        split.partitions(LABELS)


@pytest.mark.parametrize("value", [np.nan, np.inf, 1.0])
def test_a_feature_must_be_a_number_that_differs(value: float) -> None:
    values = np.ones(10)
    values[3] = value
    with pytest.raises(SettingsError, match="finite values that differ"):
        ContinuousPartitioner(num_partitions=2, strictness=0.5).partitions(values)


def test_no_examples_have_no_ids() -> None:
    with pytest.raises(SettingsError, match="one for each example"):
        NaturalIdPartitioner().partitions(np.array([]))
