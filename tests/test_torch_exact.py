"""`exact` sums: rational arithmetic, and one set of bits for any order, batches and shards."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from umbel.protocol.errors import BadUpdate, SettingsError
from umbel.server.core.shards import shards
from umbel.server.core.torch_exact import (
    TILE,
    bits_for,
    check_exact,
    fold_exact,
    mean_exact,
    tiles,
)

WORK = tiles()
MODEL = st.floats(-8, 8, width=32)


def _sum(rows: list[torch.Tensor], weights: list[float], bits: int, world: int) -> torch.Tensor:
    total = torch.zeros(len(rows[0]), dtype=torch.int64)
    for row, weight in zip(rows, weights, strict=True):
        for low, high in shards(len(total), world):
            fold_exact(total[low:high], row[low:high], weight, bits, WORK)
    return total


@given(
    st.lists(st.tuples(MODEL, st.integers(1, 10_000)), min_size=1, max_size=12),
    st.integers(0, 40),
)
def test_the_sum_is_that_of_the_rounded_fractions(
    updates: list[tuple[float, int]], bits: int
) -> None:
    # a float32 times an integer weight is exact in float64: one rounding, half to even
    expected = sum(round(Fraction(x) * weight * 2**bits) for x, weight in updates)
    rows = [torch.tensor([x]) for x, _ in updates]
    weights = [weight for _, weight in updates]
    total = _sum(rows, [float(weight) for weight in weights], bits, 1)
    assert total.tolist() == [expected]
    mean = torch.empty(1, dtype=torch.float64)
    mean_exact(total, float(sum(weights)), bits, mean, WORK)
    assert mean.item() == pytest.approx(float(Fraction(expected, sum(weights) << bits)), rel=1e-15)


@given(st.randoms(use_true_random=False), st.integers(1, 8), st.floats(0.1, 100))
@settings(max_examples=25, deadline=None)
def test_any_order_and_any_shards_give_the_same_bits(
    order: object, world: int, weight: float
) -> None:
    rng = np.random.default_rng(0)
    rows = [torch.from_numpy(rng.standard_normal(5000).astype(np.float32)) for _ in range(9)]
    weights = [weight * (n + 1) for n in range(9)]
    first = _sum(rows, weights, 30, 1)
    places = list(range(9))
    order.shuffle(places)  # type: ignore[attr-defined]
    again = _sum([rows[i] for i in places], [weights[i] for i in places], 30, world)
    assert torch.equal(first, again)


def test_floats_would_not_and_so_the_property_says_something() -> None:
    rng = np.random.default_rng(0)
    rows = torch.from_numpy(rng.standard_normal((9, 5000)).astype(np.float32))
    forth, back = torch.zeros(5000), torch.zeros(5000)
    for row in rows:
        forth += row
    for row in rows.flip(0):
        back += row
    assert not torch.equal(forth, back)


def test_a_vector_of_several_tiles() -> None:
    rng = np.random.default_rng(2)
    values = rng.standard_normal(2 * TILE + 77).astype(np.float32)
    total = _sum([torch.from_numpy(values)], [3.0], 20, 1)
    assert np.array_equal(total.numpy(), np.rint(values.astype(np.float64) * 3 * 2**20))
    mean = torch.empty(len(values))
    mean_exact(total, 3.0, 20, mean, WORK)
    assert np.abs(mean.numpy() - values).max() <= 2.0**-20


@given(st.floats(2.0**-300, 2.0**62))
def test_the_bits_are_the_most_that_fit(bound: float) -> None:
    bits = bits_for(bound)
    assert Fraction(bound) * Fraction(2) ** bits <= 2**62
    assert bits == 256 or Fraction(bound) * Fraction(2) ** (bits + 1) > 2**62


@pytest.mark.parametrize("bound", [0.0, -1.0, math.inf, math.nan, 2.0**63])
def test_a_bound_that_is_none_is_refused(bound: float) -> None:
    with pytest.raises(SettingsError, match="exact bound"):
        bits_for(bound)


def test_sums_at_the_bound_do_not_wrap_around() -> None:
    bits = bits_for(4 * 3.0)
    total = _sum([torch.tensor([3.0, -3.0])] * 4, [1.0] * 4, bits, 1)
    assert total.tolist() == [12 * 2**bits, -12 * 2**bits]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 2.1, -2.1])
def test_an_update_beyond_its_share_is_refused_and_the_ledger_hears_no_value(value: float) -> None:
    row = torch.tensor([0.5, value, 0.5])
    with pytest.raises(BadUpdate, match="node-3: magnitude times weight") as refused:
        check_exact("node-3", row, 5.0, limit=10.0)
    assert refused.value.record == "node-3: magnitude times weight"


def test_an_update_within_its_share_passes() -> None:
    check_exact("node", torch.tensor([2.0, -2.0]), 5.0, limit=10.0)
    check_exact("node", torch.empty(0), 5.0, limit=10.0)


def test_what_does_not_fit_is_refused() -> None:
    for total, row in (
        (torch.zeros(3), torch.zeros(3)),
        (torch.zeros(3).long(), torch.zeros(2)),
        (torch.zeros(3).long(), torch.zeros(3).long()),
    ):
        with pytest.raises(SettingsError, match="exact fold"):
            fold_exact(total, row, 1.0, 8, WORK)
    for weight, size in ((0.0, 3), (math.nan, 3), (1.0, 2)):
        with pytest.raises(SettingsError, match="exact mean"):
            mean_exact(torch.zeros(3).long(), weight, 8, torch.empty(size), WORK)
