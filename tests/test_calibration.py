"""A plan against what was measured: by hand, by exact fractions, and over many drawn runs."""

from __future__ import annotations

from fractions import Fraction
from math import comb

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from umbel.server.calibration import (
    band,
    calibration,
    cumulative,
    histogram,
    interval,
    transformed,
)

PAIRS = [(0.1, 10.0), (0.5, 20.0), (0.9, 40.0), (0.99, 60.0)]


def pit(pairs: list[tuple[float, float]], measured: list[float]) -> list[tuple[float, float]]:
    shares, times = np.array(pairs).T
    low, high = transformed(np.array(measured), shares, times, 0.0)
    return [(round(float(a), 9), round(float(b), 9)) for a, b in zip(low, high, strict=True)]


def test_the_transform_by_hand() -> None:
    """Between pairs it is linear in seconds, before the first from 0, after the last 1."""
    found = pit(PAIRS, [0.0, 5.0, 10.0, 15.0, 20.0, 30.0, 60.0, 61.0])
    assert [a for a, _ in found] == [0.0, 0.05, 0.1, 0.3, 0.5, 0.7, 0.99, 1.0]
    assert all(a == b for a, b in found)


def test_a_time_that_many_rounds_have_is_spread_over_its_shares() -> None:
    """From 0.6 on the plan's rounds are closed by a deadline of 30 s."""
    pairs = [(0.2, 10.0), (0.4, 20.0), (0.6, 30.0), (0.8, 30.0), (0.9, 30.0)]
    assert pit(pairs, [30.0, 25.0]) == [(0.6, 1.0), (0.5, 0.5)]
    (first, *_), (*_, last) = (
        histogram(np.array([0.0]), np.array([0.15])),
        histogram(np.array([0.6]), np.array([1.0])),
    )
    assert first == pytest.approx(2 / 3)
    assert last == pytest.approx(1 / 4)


def test_a_plan_is_not_wrong_by_milliseconds() -> None:
    """All rounds are closed by a deadline; the server's own part, 20 ms of 100 s, is not there."""
    pairs = [(p / 100, 100.0 + p / 2500) for p in range(1, 100)]
    found = calibration(pairs, [100.001] * 60)
    assert found is not None
    assert found.verdict.startswith("The plan was right as far as 60 rounds can tell")
    assert found.histogram == pytest.approx([6.0] * 10, rel=0.15)
    off = calibration(pairs, [98.0] * 60)
    assert off is not None
    assert off.verdict.startswith("The plan was too cautious: none of 60")


def test_a_histogram_has_every_round_once() -> None:
    low = np.array([0.0, 0.05, 0.1, 0.95, 1.0, 0.33])
    high = np.array([0.0, 0.05, 0.1, 1.0, 1.0, 0.77])
    found = histogram(low, high)
    assert sum(found) == pytest.approx(6)
    assert found[0] == pytest.approx(2)
    assert found[1] == pytest.approx(1)
    assert found[9] == pytest.approx(2)


@given(st.integers(1, 60), st.fractions(Fraction(1, 50), Fraction(49, 50), max_denominator=100))
@settings(max_examples=40, deadline=None)
def test_the_binomial_is_that_of_exact_fractions(n: int, share: Fraction) -> None:
    terms = [comb(n, k) * share**k * (1 - share) ** (n - k) for k in range(n + 1)]
    exact = [float(sum(terms[: k + 1])) for k in range(n + 1)]
    assert cumulative(n, float(share)) == pytest.approx(exact, abs=1e-12)
    low, high = band(n, float(share))
    inside = sum(terms[low : high + 1])
    assert inside >= Fraction(95, 100) - Fraction(1, 10**9)
    assert sum(terms[:low]) <= Fraction(25, 1000) + Fraction(1, 10**9)
    assert 1 - sum(terms[: high + 1]) <= Fraction(25, 1000) + Fraction(1, 10**9)


@pytest.mark.parametrize(
    ("count", "n", "low", "high"),
    [
        # The ends are the roots of the two tails: for 0 and n in closed form.
        (0, 10, 0.0, 1 - 0.025 ** (1 / 10)),
        (10, 10, 0.025 ** (1 / 10), 1.0),
        # Clopper and Pearson's chart, as books print it.
        (5, 10, 0.1871, 0.8129),
        (1, 20, 0.0013, 0.2487),
        (54, 60, 0.7949, 0.9624),
    ],
)
def test_cloppers_and_pearsons_interval(count: int, n: int, low: float, high: float) -> None:
    assert interval(count, n) == pytest.approx((low, high), abs=5e-5)


def test_the_sentences() -> None:
    """Of 60 rounds 31 are slower than p90, or three slower than p50, or as many as they should."""
    hopeful = calibration(PAIRS, [30.0] * 29 + [50.0] * 31)
    assert hopeful is not None
    assert hopeful.verdict == (
        "The plan was too hopeful: 31 of 60 rounds were slower than its p90, where 6 were to be "
        "expected."
    )
    cautious = calibration(PAIRS, [10.0] * 57 + [25.0] * 3)
    assert cautious is not None
    assert cautious.verdict == (
        "The plan was too cautious: none of 60 rounds were slower than its p90, where 6 were to be "
        "expected."
    )
    right = calibration(PAIRS, [15.0] * 30 + [30.0] * 24 + [50.0] * 6)
    assert right is not None
    assert right.verdict == (
        "The plan was right as far as 60 rounds can tell: 54 of them were within its p90, where "
        "54 were to be expected."
    )
    few = calibration(PAIRS, [15.0] * 19)
    assert few is not None
    assert few.verdict == "19 rounds are too few to judge the plan by: it takes 20."
    assert calibration([], [1.0]) is None
    assert calibration(PAIRS, []) is None


def test_a_plan_that_does_not_reach_a_quantile_has_no_coverage_of_it() -> None:
    found = calibration([(0.1, 10.0), (0.95, 20.0)], [15.0] * 20)
    assert found is not None
    assert [c.level for c in found.coverage] == [0.5, 0.9]


def test_right_plans_are_called_right_and_their_bars_lie_in_the_band() -> None:
    """Of 400 runs of 60 rounds that follow their plan, few are called wrong: three levels of 95 %.

    Each level is passed by at least 95 %, so at least 85 % of the runs pass all three.
    """
    draw = np.random.Generator(np.random.Philox(8))
    shares = np.arange(1, 1000) / 1000
    pairs = [(float(p), float(-np.log1p(-p))) for p in shares]
    right = inside = 0
    for _ in range(400):
        found = calibration(pairs, draw.exponential(size=60).tolist())
        assert found is not None
        right += found.verdict.startswith("The plan was right")
        inside += sum(found.low <= bar <= found.high for bar in found.histogram)
    assert right >= 340
    assert inside >= 0.95 * 4000
