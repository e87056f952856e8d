"""How likely a secure sum is void: by enumeration, in fractions, and by the table of SecAgg+."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from umbel.protocol.errors import SettingsError
from umbel.protocol.graph import Parameters, neighbours, parameters
from umbel.simulation.capacity.graph_odds import suited, void
from umbel.simulation.capacity.losses import Count, Group, Losses
from umbel.simulation.fleet.declared import Site
from umbel.tests.secagg_plus import secagg_plus

F = Fraction


def _stay(n: int, p: float, **site: float) -> Count:
    """How many of n stay, each lost with probability p, all at one site."""
    size = max(20_000, n) if not site else n
    return Losses([Group(size=size, dropout=p, site="s")], {"s": Site(**site)}).arrivals(n)


def _lost_sets(n: int) -> np.ndarray:
    """All sets of lost members, shape (2^n, n)."""
    return (np.arange(1 << n)[:, None] >> np.arange(n)) & 1


@pytest.mark.parametrize("n", [3, 5, 10, 20, 32, 33, 100])
@pytest.mark.parametrize("p", [F(1, 50), F(1, 10), F(1, 4)])
def test_where_d_leaves_every_neighbourhood_its_shares_only_the_number_lost_counts(
    n: int, p: Fraction
) -> None:
    numbers = parameters(n)
    assert numbers.d <= numbers.k - numbers.t
    kept = sum(math.comb(n, x) * p**x * (1 - p) ** (n - x) for x in range(numbers.d + 1))
    found = void(numbers, _stay(n, float(p)))
    assert found.apart == 0.0
    assert found.odds == pytest.approx(float(1 - kept), rel=1e-9)


@pytest.mark.parametrize(("n", "k", "t", "d"), [(12, 4, 3, 4), (13, 6, 3, 6), (11, 4, 2, 3)])
def test_a_bound_of_what_neighbourhoods_add_holds_on_every_small_ring(
    n: int, k: int, t: int, d: int
) -> None:
    numbers = Parameters(n=n, k=k, t=t, a=1, d=d, q=n // 2 + 1)
    lost = _lost_sets(n)
    around = np.stack([lost[:, list(neighbours(i, n, k))].sum(axis=1) for i in range(n)], axis=1)
    many, few = lost.sum(axis=1) > d, (around > k - t).any(axis=1)
    for p in (0.05, 0.2, 0.4):
        odds = p ** lost.sum(axis=1) * (1 - p) ** (n - lost.sum(axis=1))
        found = void(numbers, _stay(n, p))
        assert found.many == pytest.approx(odds[many].sum(), rel=1e-9)
        truth = odds[many | few].sum()
        assert found.many < truth <= found.odds + 1e-12


@pytest.mark.parametrize("n", [150, 200, 500, 1000, 1250])
def test_by_the_default_rule_neighbourhoods_add_no_more_than_two_to_the_minus_20(n: int) -> None:
    for p in (0.03, 0.1, 0.2):
        assert 0.0 < void(parameters(n), _stay(n, p)).apart <= 2.0**-20


def test_members_of_one_site_that_is_cut_off_take_the_sum_with_them() -> None:
    numbers = parameters(20)
    found = void(numbers, _stay(20, 0.05, outage=0.03))
    alone = void(numbers, _stay(20, 0.05)).odds
    assert found.odds == pytest.approx(0.03 + 0.97 * alone, rel=1e-9)


def test_the_least_delta_that_is_enough() -> None:
    stay = _stay(100, 0.1)
    delta = suited(100, stay, alpha=0.1, certainty=0.99)
    assert delta is not None
    odds = [
        void(parameters(100, delta=d), stay).odds for d in (delta, delta - 0.01)
    ]  # fmt: skip
    assert odds[0] <= 0.01 < odds[1]
    assert suited(32, _stay(32, 0.9), alpha=0.1, certainty=0.99) is None  # delta plays no part
    assert suited(1250, _stay(1250, 0.1), alpha=0.1, certainty=0.99) is None
    with pytest.raises(SettingsError):
        parameters(1250, delta=0.13)  # 163 of 1,250 would have to be borne


def test_a_count_of_another_number_of_members_is_refused() -> None:
    with pytest.raises(ValueError, match="a count of 9 members: expected 10"):
        void(parameters(10), _stay(9, 0.1))


SECAGG = {
    (5, 5, 3): (0, 0.1, 0.9, 6),
    (10, 7, 4): (0, 0.1, 1, 11),
    (20, 9, 5): (0, 0, 0.7, 12),
    (100, 7, 4): (0, 1, 11, 70),
    (100, 21, 11): (0, 0, 0, 2.7),
    (500, 21, 11): (0, 0, 0, 12),
    (500, 41, 21): (0, 0, 0, 0.1),
}
"""N, k, t: percent of rounds lost at 1, 5, 10 and 20 % dropout."""


@pytest.mark.parametrize("ring", SECAGG)
def test_the_ring_of_secagg_plus_loses_as_many_rounds_as_the_table_has(
    ring: tuple[int, int, int],
) -> None:
    """The table was drawn and rounded: to whole percents, or to its second digit roughly."""
    for p, printed in zip((0.01, 0.05, 0.1, 0.2), SECAGG[ring], strict=True):
        low, high = (100 * odds for odds in secagg_plus(*ring, p))
        digit = 0.5 if printed >= 1 and printed == int(printed) else max(0.06, 0.1 * printed)
        assert low - digit <= printed <= high + digit
        assert high - low <= max(0.2, 0.25 * high)


@pytest.mark.parametrize(
    ("n", "k", "t"), [(5, 5, 3), (8, 3, 2), (13, 7, 4), (14, 9, 6), (16, 11, 7), (15, 13, 8)]
)
def test_the_ring_of_secagg_plus_by_enumeration(n: int, k: int, t: int) -> None:
    lost = _lost_sets(n)
    windows = np.stack([np.roll(lost, -i, axis=1)[:, :k].sum(axis=1) for i in range(n)], axis=1)
    few = (windows > k - t).any(axis=1)
    for p in (0.05, 0.2, 0.5):
        odds = p ** lost.sum(axis=1) * (1 - p) ** (n - lost.sum(axis=1))
        low, high = secagg_plus(n, k, t, p)
        assert low - 1e-12 <= odds[few].sum() <= high + 1e-12
        assert k > 10 or low == pytest.approx(odds[few].sum(), rel=1e-9)


def test_bounds_of_wide_windows_hold_on_rings_that_are_counted_exactly() -> None:
    """Windows of 9 are counted exactly; the bounds are those of wider ones."""
    for n, p in ((18, 0.2), (30, 0.2), (40, 0.15), (90, 0.1), (90, 0.3)):
        exact = secagg_plus(n, 9, 5, p)[0]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("umbel.tests.secagg_plus._NARROW", 0)
            low, high = secagg_plus(n, 9, 5, p)
        assert low <= exact <= high
        assert p > 0.2 or high <= 1.2 * exact
