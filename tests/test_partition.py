"""Partitions: every row once, sizes kept, skew as strong as alpha says."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from umbel.protocol.errors import SettingsError
from umbel.strategies.partition import DirichletPartitioner, IidPartitioner

LABELS = np.repeat(np.arange(10), 150)[np.random.default_rng(0).permutation(1500)]


@settings(max_examples=40)
@given(count=st.integers(1, 12), seed=st.integers(0, 10**6), alpha=st.sampled_from([0.3, 1, 100]))
def test_every_row_is_in_exactly_one_partition(count: int, seed: int, alpha: float) -> None:
    split = DirichletPartitioner(num_partitions=count, alpha=alpha, seed=seed)
    parts = split.partitions(LABELS)
    assert len(parts) == count
    assert sorted(np.concatenate(parts)) == list(range(1500))
    assert min(map(len, parts)) >= 10


@settings(max_examples=40)
@given(count=st.integers(1, 30), rows=st.integers(30, 200), seed=st.integers(0, 10**6))
def test_iid_parts_differ_by_one_at_most(count: int, rows: int, seed: int) -> None:
    parts = IidPartitioner(num_partitions=count, seed=seed).partitions(np.zeros(rows))
    assert sorted(np.concatenate(parts)) == list(range(rows))
    sizes = {len(part) for part in parts}
    assert sizes <= {rows // count, -(-rows // count)}


def _largest_share(alpha: float) -> float:
    """Return the mean over classes of the largest client's share, over 30 seeds."""
    shares = []
    for seed in range(30):
        split = DirichletPartitioner(
            num_partitions=5, alpha=alpha, min_partition_size=0, seed=seed
        ).partitions(LABELS)
        counts = np.array([np.bincount(LABELS[part], minlength=10) for part in split])
        shares.append((counts.max(axis=0) / 150).mean())
    return float(np.mean(shares))


def test_skew_follows_the_dirichlet() -> None:
    # Expected largest of five Dirichlet shares, from 400,000 draws of numpy's own gamma variates:
    # 0.637 for alpha 0.3, 0.224 for alpha 100 (the limits are 1 and 1/5). Of 300 classes the
    # standard error is 0.01 and 0.001; cutting at whole examples moves a share by 1/150 at most.
    assert _largest_share(0.3) == pytest.approx(0.637, abs=0.04)
    assert _largest_share(100.0) == pytest.approx(0.224, abs=0.01)


def test_a_seed_fixes_the_split_and_another_changes_it() -> None:
    def split(seed: int) -> list[list[int]]:
        parts = DirichletPartitioner(num_partitions=4, alpha=0.5, seed=seed).partitions(LABELS)
        return [part.tolist() for part in parts]

    np.random.seed(1)
    assert split(1) == split(1) != split(2)


def test_the_minimum_size_is_kept_or_the_failure_is_named() -> None:
    tight = DirichletPartitioner(num_partitions=10, alpha=0.3, min_partition_size=60)
    assert min(map(len, tight.partitions(LABELS))) >= 60
    hopeless = DirichletPartitioner(num_partitions=10, alpha=0.001, min_partition_size=140)
    with pytest.raises(SettingsError, match="10 partitions of at least 140, got 'none in 1000"):
        hopeless.partitions(LABELS)


@pytest.mark.parametrize(
    "split",
    [
        DirichletPartitioner(num_partitions=151, alpha=1.0),
        DirichletPartitioner(num_partitions=0, alpha=1.0),
        IidPartitioner(num_partitions=1501),
    ],
)
def test_more_partitions_than_examples_are_refused(
    split: DirichletPartitioner | IidPartitioner,
) -> None:
    with pytest.raises(SettingsError, match="num_partitions: expected 1 to 1"):
        split.partitions(LABELS)


@pytest.mark.parametrize("alpha", [0.0, -1.0, float("nan"), float("inf")])
def test_alpha_is_positive(alpha: float) -> None:
    with pytest.raises(SettingsError, match="alpha"):
        DirichletPartitioner(num_partitions=2, alpha=alpha).partitions(LABELS)
