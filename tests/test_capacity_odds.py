"""Binomial counts against exact fractions, far into their tails, and the k-th arrival's table."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from umbel.simulation.capacity.odds import binomial, kth_arrival, log_tails


def _exact(p: float, n: int, k: int) -> Fraction:
    """P[Binomial(n, p) >= k] in whole numbers; p as the float has it."""
    won, whole = Fraction(p).as_integer_ratio()
    lost = whole - won
    term = math.comb(n, k) * won**k * lost ** (n - k)
    total = 0
    for j in range(k, n + 1):
        total += term
        term = term * (n - j) * won // ((j + 1) * lost)
    return Fraction(total, whole**n)


@pytest.mark.parametrize(
    ("p", "n", "k"),
    [
        (0.5, 1, 1), (2**-30, 1, 1), (1 - 2**-30, 1, 1), (0.75, 5, 3), (0.25, 40, 39),
        (0.875, 40, 3), (2**-20, 300, 2), (1 - 2**-20, 300, 300), (1 - 2**-20, 300, 299),
        (0.3125, 2000, 625), (0.3125, 2000, 626), (0.3125, 2000, 900), (0.3125, 2000, 420),
        (0.875, 10_000, 9_100), (0.875, 10_000, 8_750), (0.875, 10_000, 9_600),
        (0.125, 10_000, 900),
    ],
)  # fmt: skip
def test_tails_are_exact_to_twelve_digits_of_the_value(p: float, n: int, k: int) -> None:
    below, above = log_tails(p, n, k)
    exact = _exact(p, n, k)
    assert math.exp(above) == pytest.approx(float(exact), rel=1e-12)
    assert math.exp(below) == pytest.approx(float(1 - exact), rel=1e-12)
    assert kth_arrival(p, n, k) == pytest.approx(float(exact), rel=1e-12)


def test_counts_that_are_sure_or_never() -> None:
    cases = [(0.3, 5, 0, 1), (0.3, 5, -2, 1), (0.3, 5, 6, 0), (0, 5, 1, 0), (1, 5, 5, 1)]
    for p, n, k, expected in [*cases, (0.3, 0, 0, 1), (0.3, 0, 1, 0), (1, 5, 6, 0)]:
        assert kth_arrival(p, n, k) == expected
    assert list(binomial(3, 0.0)) == [1, 0, 0, 0]
    assert list(binomial(3, 1.0)) == [0, 0, 0, 1]
    assert [list(binomial(0, p)) for p in (0.0, 0.5, 1.0)] == [[1]] * 3


@given(
    st.integers(1, 400),
    st.integers(0, 1 << 20).map(lambda p: p / (1 << 20)),
    st.data(),
)
def test_a_tail_is_the_sum_of_its_counts_and_its_mirror_image(
    n: int, p: float, data: st.DataObject
) -> None:
    k = data.draw(st.integers(0, n + 1))
    counts = binomial(n, p)
    assert counts.sum() == pytest.approx(1.0, rel=1e-12)
    assert kth_arrival(p, n, k) == pytest.approx(counts[k:].sum(), rel=1e-11, abs=1e-300)
    mirrored = log_tails(1 - p, n, n - k + 1)
    assert np.exp(mirrored[0]) == pytest.approx(counts[k:].sum(), rel=1e-11, abs=1e-300)


@given(st.integers(1, 10_000), st.data())
def test_more_clients_surer_ones_and_earlier_places_come_sooner(
    n: int, data: st.DataObject
) -> None:
    k = data.draw(st.integers(1, n))
    grid = np.linspace(0, 1, 41)
    found = kth_arrival(grid, n, k)
    assert (np.diff(found) >= 0).all()
    assert (kth_arrival(grid, n + 1, k) >= found * (1 - 1e-13)).all()
    assert (kth_arrival(grid, n, k + 1) <= found * (1 + 1e-13)).all()


def test_what_is_no_share_and_no_number_of_clients_is_refused() -> None:
    for p, n in ((1.5, 3), (-0.1, 3), (math.nan, 3), (0.5, -1)):
        with pytest.raises(ValueError, match="binomial count"):
            kth_arrival(p, n, 1)


def _expected(sigma: float, n: int, k: int) -> float:
    """E[T_k] of n lognormal client times of median 1: the integral of P[T_k > x]."""
    x = np.exp(np.linspace(-12 * sigma, 12 * sigma, 4001))
    cdf = np.array([0.5 * math.erfc(-math.log(v) / sigma / math.sqrt(2)) for v in x])
    return float(x[0] + np.trapezoid(1.0 - kth_arrival(cdf, n, k), x))


@pytest.mark.parametrize(
    ("sigma", "n", "k", "printed", "digit"),
    [
        (0.3, 100, 100, 2.1, 0.1), (0.3, 100, 95, 1.6, 0.1), (0.3, 100, 90, 1.5, 0.1),
        (0.3, 130, 100, 1.2, 0.1), (0.6, 100, 100, 4.7, 0.1), (0.6, 100, 95, 2.6, 0.1),
        (0.6, 100, 90, 2.1, 0.1), (0.6, 130, 100, 1.55, 0.05), (1.0, 100, 100, 13.6, 0.1),
        (1.0, 100, 95, 5.0, 0.1), (1.0, 100, 90, 3.5, 0.1), (1.0, 130, 100, 2.1, 0.1),
    ],
)  # fmt: skip
def test_expected_time_of_a_round_over_the_median_clients(
    sigma: float, n: int, k: int, printed: float, digit: float
) -> None:
    assert _expected(sigma, n, k) == pytest.approx(printed, abs=digit)


def test_the_last_of_a_hundred_at_its_95_percent_point() -> None:
    """All of n by x is F(x)^n, so the point is F's at 0.95^(1/n)."""
    for sigma, printed in ((0.6, 7.2), (1.0, 26.0)):
        x = np.exp(np.linspace(0, 8, 8001))
        cdf = np.array([0.5 * math.erfc(-math.log(v) / sigma / math.sqrt(2)) for v in x])
        point = x[np.searchsorted(kth_arrival(cdf, 100, 100), 0.95)]
        assert point == pytest.approx(printed, rel=0.03)
        assert 0.5 * math.erfc(-math.log(point) / sigma / math.sqrt(2)) == pytest.approx(
            0.95**0.01, rel=1e-5
        )
