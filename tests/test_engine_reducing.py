"""The sum in fixed point, against exact fractions; verdicts, by hand."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from umbel.protocol.errors import SettingsError
from umbel.simulation.engine.reducing import Rows, Sum, Trained
from umbel.simulation.engine.verdicts import TILE, Bounds, add, judge
from umbel.simulation.engine.work import EXPONENT, Verdict, exponent_for
from umbel.tests.engine_works import work

floats = st.floats(width=32, allow_nan=False, allow_infinity=False, min_value=-1e3, max_value=1e3)


def exact_term(value: float, weight: int, exponent: int) -> int:
    """Return rint of the float64 product, by fractions: Python rounds ties to even too."""
    product = Fraction(float(value) * float(weight))
    return round(product * Fraction(2) ** exponent)


@given(
    rows=st.lists(st.lists(floats, min_size=3, max_size=3), min_size=1, max_size=6),
    weights=st.lists(st.integers(1, 1 << 13), min_size=6, max_size=6),
    exponent=st.integers(0, EXPONENT),
    seed=st.integers(0, 99),
)
def test_the_sum_is_that_of_the_rounded_terms_in_any_order(
    rows: list[list[float]], weights: list[int], exponent: int, seed: int
) -> None:
    updates = np.array(rows, np.float32)
    total = np.zeros(3, np.int64)
    for index in np.random.default_rng(seed).permutation(len(rows)):
        add(total, [updates[index]], weights[index], exponent)
    expected = [
        sum(exact_term(row[k], w, exponent) for row, w in zip(updates, weights, strict=False))
        for k in range(3)
    ]
    assert total.tolist() == expected


@given(value=st.floats(-1e3, 1e3), weight=st.integers(1, 1 << 32))
def test_a_double_is_rounded_once(value: float, weight: int) -> None:
    total = np.zeros(1, np.int64)
    add(total, [np.array([value])], weight, 8)
    assert int(total[0]) == exact_term(value, weight, 8)


def test_arrays_follow_each_other_across_tiles() -> None:
    first = np.arange(TILE + 5, dtype=np.float32).reshape(1, -1)
    second = np.array([[-1.0, 2.0], [3.0, 4.0]])
    total = np.zeros(first.size + second.size, np.int64)
    add(total, [first, second.T], 2, 1)
    assert total[: first.size].tolist() == [4 * n for n in range(first.size)]
    assert total[first.size :].tolist() == [-4, 12, 8, 16]


@pytest.mark.parametrize(
    ("update", "bounds", "verdict"),
    [
        ([3.0, -4.0], Bounds(1024), Verdict.COUNTED),
        ([3.0, np.nan], Bounds(1024, 1.0), Verdict.NOT_FINITE),
        ([-np.inf, 0.0], Bounds(), Verdict.NOT_FINITE),
        ([3.0, -4.0], Bounds(1024, 5.0), Verdict.COUNTED),
        ([3.0, -4.0], Bounds(1024, 4.999999), Verdict.TOO_LONG),
        ([1e200, 0.0], Bounds(1024, 1e300), Verdict.TOO_LONG),
        ([8.0, 0.0], Bounds(8.0), Verdict.COUNTED),
        ([0.0, -8.0], Bounds(7.9), Verdict.TOO_LARGE),
        ([1e200, 0.0], Bounds(), Verdict.COUNTED),
    ],
)
def test_an_update_is_judged(update: list[float], bounds: Bounds, verdict: Verdict) -> None:
    assert judge([np.array(update)], bounds) is verdict


def test_the_norm_is_over_all_arrays_in_float64() -> None:
    parts = [np.full(TILE + 1, 1e-4, np.float32), np.array([1.0], np.float32)]
    squares = (TILE + 1) * float(np.float32(1e-4)) ** 2 + 1.0
    norm = squares**0.5
    assert judge(parts, Bounds(1024, norm * (1 + 1e-12))) is Verdict.COUNTED
    assert judge(parts, Bounds(1024, norm * (1 - 1e-12))) is Verdict.TOO_LONG


@pytest.mark.parametrize("weight", [1, 50, 5_000, 65_535, 65_536, 1 << 24, 1 << 40, 1 << 60])
def test_values_to_1024_fit_whatever_the_weight(weight: int) -> None:
    exponent = exponent_for(weight)
    assert exponent <= EXPONENT
    assert weight * 1024 * Fraction(2) ** exponent <= 2**62
    assert exponent == EXPONENT or weight * 1024 * Fraction(2) ** (exponent + 1) > 2**61


@settings(max_examples=60, deadline=None)
@given(
    weights=st.lists(st.integers(1, 1 << 32), min_size=1, max_size=12),
    factor=st.sampled_from([1.0, 0.5, 2.0**-20]),
)
def test_no_cohort_can_wrap_and_all_of_it_have_the_same_bound(
    weights: list[int], factor: float
) -> None:
    """Every value at the bound, of either sign; a hair more is too large, however light it is."""
    model = {"w": np.zeros(2)}
    cohort = work(model, range(len(weights)), factors=np.full(len(weights), factor))
    found = Sum(cohort, sum(weights))
    for index, weight in enumerate(weights):
        found.take(index, Trained([np.array([1024.0, -1024.0])], weight, 0.0))
    exact = sum(weights) * Fraction(factor) * 1024 * Fraction(2) ** found.exponent
    assert abs(int(found.total[0]) - exact) <= Fraction(len(weights), 2)
    assert int(found.total[0]) == -int(found.total[1]) <= 2**62 + len(weights)
    found = Sum(cohort, sum(weights))
    for index, weight in enumerate(weights):
        found.take(index, Trained([np.array([0.0, np.nextafter(1024.0, 2000.0)])], weight, 0.0))
    assert set(found.reduced().report.verdicts) == {Verdict.TOO_LARGE}


def _model() -> dict[str, np.ndarray]:
    return {"w": np.zeros((2, 2), np.float32), "steps": np.array(4), "b": np.zeros(1, np.float32)}


def test_a_sum_takes_those_that_count() -> None:
    cohort = work(_model(), (0, 1, 2, 3), max_norm=100.0)
    found = Sum(cohort, 6)
    parts = [np.array([[1, 2], [3, 4]], np.float32), np.array([0.5], np.float32)]
    found.take(2, Trained(parts, 2, 0.25, {"loss": 1.5}))
    found.take(0, Trained([np.full(5, np.nan, np.float32)], 1, float("nan")))
    found.tally.failed(1, "the task\nraised")
    found.take(3, Trained([np.full(5, 60, np.float32)], 3, 9.0))
    result = found.reduced()
    assert result.total.tolist() == [v * 2**36 for v in (2, 4, 6, 8, 1)]
    assert (result.weight, result.exponent) == (2, 36)
    assert result.report.verdicts.tolist() == [1, 4, 0, 2]
    assert result.report.weights.tolist() == [1, 0, 2, 3]
    assert result.report.causes == {1: "the task raised"}
    assert result.report.metrics["loss"].tolist() == [0, 0, 1.5, 0]


def test_a_weight_is_capped() -> None:
    found = Sum(work(_model(), (0,), weight_cap=3), 3)
    found.take(0, Trained([np.ones(5, np.float32)], 10, 0.0))
    result = found.reduced()
    assert (result.weight, result.report.examples.tolist()) == (3, [10])
    assert result.total[0] == 3 * 2**36


def test_a_stale_update_counts_for_less_and_its_weight_stays() -> None:
    found = Sum(work(_model(), (0, 1), factors=np.array([0.25, 1.0])), 11)
    for index in range(2):
        found.take(index, Trained([np.full(5, 3, np.float32)], 10 if index == 0 else 1, 0.0))
    result = found.reduced()
    assert (result.weight, result.total[0]) == (11, (10 * 3 // 4 + 3) * 2**36 + 2**35)


def test_rows_of_who_does_not_count_are_zeros() -> None:
    out = np.full((3, 5), 7, np.float32)
    rows = Rows(work(_model(), (0, 1)), out)
    rows.take(0, Trained([np.ones((2, 2), np.float32), np.full(1, 2, np.float32)], 4, 1.0))
    rows.take(1, Trained([np.full(5, np.inf, np.float32)], 4, 1.0))
    assert out.tolist() == [[1, 1, 1, 1, 2], [0] * 5, [7] * 5]
    assert rows.tally.report().verdicts.tolist() == [0, 1]


@pytest.mark.parametrize("shape", [(1, 5), (2, 4), (10,)])
def test_a_buffer_of_another_shape_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(SettingsError, match=r"rows\(out\)"):
        Rows(work(_model(), (0, 1)), np.zeros(shape, np.float32))
