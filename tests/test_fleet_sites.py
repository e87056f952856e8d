"""What happens to a site at once: hours that are cut off, and losses that come together."""

from __future__ import annotations

from fractions import Fraction
from math import comb, prod
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from umbel.protocol.errors import SettingsError
from umbel.simulation.clock.decision import Outcome
from umbel.simulation.clock.synchronous import Synchronous, Terms
from umbel.simulation.fleet.beta import quantile
from umbel.simulation.fleet.called import CalledFleet, Profile
from umbel.simulation.fleet.counter import uniform
from umbel.simulation.fleet.declared import Site
from umbel.simulation.fleet.devices import Fate, Load
from umbel.simulation.fleet.profiles import ArrayFleet, Behaviour, Members, Profiles
from umbel.simulation.fleet.sites import word_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

HOURS = 4000
EACH = 50


def tail(a: int, b: int, p: float) -> Fraction:
    """Return P[Beta(a, b) <= p], which is that of a or more of a + b - 1 throws of p, exactly."""
    x, n = Fraction(p), a + b - 1
    return sum((comb(n, k) * x**k * (1 - x) ** (n - k) for k in range(a, n + 1)), Fraction(0))


# ---- an hour's probability -----------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 40), st.integers(1, 40), st.floats(0, 1, exclude_max=True))
@example(1, 40, 2.0**-53)
@example(40, 1, 1 - 2.0**-53)
@example(1, 1, 0.25)
def test_a_quantile_is_where_as_much_lies_below(a: int, b: int, u: float) -> None:
    p = float(quantile(u, a / (a + b), 1 / (a + b + 1)))
    # Half of u's own grid on either side, and what a float near p may be off.
    below, above = (tail(a, b, min(max(p + d, 0.0), 1.0)) for d in (-1e-12, 1e-12))
    assert below <= Fraction(u) <= above


@pytest.mark.parametrize(
    ("mean", "correlation"), [(0.02, 0.1), (0.3, 0.5), (0.05, 0.001), (0.9, 0.7), (0.01, 0.99)]
)
def test_over_all_hours_as_much_is_lost_and_together(mean: float, correlation: float) -> None:
    """The mean and the second moment by the midpoints of a fine grid of u, no draws."""
    u = (np.arange(20_000) + 0.5) / 20_000
    p = quantile(u, mean, correlation)
    assert np.all(np.diff(p) >= 0)
    assert p.mean() == pytest.approx(mean, rel=3e-3)
    # Of two updates of an hour: P[both lost] = mean^2 + correlation mean (1 - mean).
    both = mean**2 + correlation * mean * (1 - mean)
    assert np.mean(p**2) == pytest.approx(both, rel=1e-2)


def test_the_ends_of_what_may_be_asked() -> None:
    assert quantile([0.0, 0.3, 0.999], 0.2, 0.0).tolist() == [0.2] * 3
    assert quantile([0.0, 0.79, 0.81], 0.2, 1.0).tolist() == [0, 0, 1]
    assert quantile(0.4, [0.0, 1.0], 0.3).tolist() == [0, 1]
    assert quantile(0.0, 0.5, 0.3) == 0
    extreme = quantile([0.2, 0.7], [1e-320, 1 - 2.0**-53], [0.5, 1 - 2.0**-53])
    assert extreme == pytest.approx([0, 1], abs=1e-300)
    grid = np.meshgrid(
        [0, 2.0**-53, 0.3, 0.5, 0.6, 1 - 2.0**-53],
        [1e-9, 1e-5, 0.5, 1 - 1e-9],
        [1e-6, 1e-3, 0.999, 1 - 1e-9],
    )
    assert np.all((quantile(*grid) >= 0) & (quantile(*grid) <= 1))


# ---- devices of sites ----------------------------------------------------------------------

BEHAVIOURS = [
    Behaviour(name="phones", site="north", dropout=0.1),
    Behaviour(name="boxes", site="south", dropout=0.1),
    Behaviour(name="watches", site="north", dropout=0.3),
]


def spread_out(sites: dict[str, Site]) -> ArrayFleet:
    """Return three cohorts of EACH devices, two of them at the same site."""
    members = Members(firsts=np.array([0, EACH, 2 * EACH]), offsets=np.zeros(3, np.uint64))
    return ArrayFleet(Profiles.of(3 * EACH, samples=1), 5, BEHAVIOURS, members, sites)


def lost(sites: dict[str, Site]) -> NDArray[np.bool_]:
    """Return what is lost, bool (hours, cohorts, devices): each is asked once an hour."""
    fleet = spread_out(sites)
    ids = np.tile(np.arange(3 * EACH), HOURS)
    hours = np.repeat(np.arange(HOURS), 3 * EACH)
    at = hours.astype(np.float64) * 3600 + 17
    kinds = fleet.fates(ids, hours, at).kinds
    return np.equal(kinds, Fate.LOST).reshape(HOURS, 3, EACH)


def test_a_site_is_cut_off_for_its_share_of_hours() -> None:
    cut = lost({"north": Site(outage=0.2)})
    whole: NDArray[np.bool_] = np.all(cut, axis=2)
    assert np.array_equal(whole[:, 0], whole[:, 2])  # all of a site
    assert whole[:, 0].mean() == pytest.approx(0.2, abs=4 * np.sqrt(0.16 / HOURS))
    assert not whole[:, 1].any()
    by_hand = uniform(5, 17, word_of("north"), np.arange(HOURS)) < 0.2
    assert np.array_equal(whole[:, 0], by_hand)
    # In other hours what was lost without it is lost.
    assert np.array_equal(cut[~by_hand], lost({})[~by_hand])


def test_losses_of_an_hour_come_together() -> None:
    found = lost({"north": Site(correlation=0.25)}).mean(axis=2)
    sigma = np.sqrt(0.25 * 0.1 * 0.9 / HOURS)
    assert found[:, 0].mean() == pytest.approx(0.1, abs=5 * sigma)
    # Variance of an hour's share: d (1 - d) (c + (1 - c) / n), and that of n independent ones.
    assert found[:, 0].var() == pytest.approx(0.09 * (0.25 + 0.75 / EACH), rel=0.12)
    assert found[:, 1].var() == pytest.approx(0.09 / EACH, rel=0.12)
    assert found[:, 2].mean() == pytest.approx(0.3, abs=5 * np.sqrt(0.25 * 0.21 / HOURS))
    # Cohorts of one site have their bad hours together, sites have not.
    assert np.corrcoef(found[:, 0], found[:, 2])[0, 1] > 0.75
    assert abs(np.corrcoef(found[:, 0], found[:, 1])[0, 1]) < 5 / np.sqrt(HOURS)
    # An hour knows nothing of the next.
    assert abs(np.corrcoef(found[1:, 0], found[:-1, 0])[0, 1]) < 5 / np.sqrt(HOURS)


def rising(x: int, k: int) -> Fraction:
    """Return x (x + 1) … (x + k - 1)."""
    return Fraction(prod(range(x, x + k)))


def test_how_many_of_an_hour_are_lost_is_beta_binomial() -> None:
    """Dropout 0.1 and correlation 1/11 are Beta(1, 9); the two levels summed exactly."""
    counted = lost({"north": Site(outage=0.1, correlation=1 / 11)})[:, 0].sum(axis=1)
    shares = [
        comb(EACH, k) * rising(1, k) * rising(9, EACH - k) / rising(10, EACH)
        for k in range(EACH + 1)
    ]
    assert sum(shares) == 1
    for k in (0, 1, 2, 4, 8, 12, 20, 40, 49):
        wanted = 0.9 * float(sum(shares[: k + 1]))
        sigma = np.sqrt(wanted * (1 - wanted) / HOURS)
        assert np.mean(counted <= k) == pytest.approx(wanted, abs=4.5 * sigma)
    # Were they independent, no hour in a million would lose 20 of 50; here one in nine does.
    assert np.mean(counted >= 20) > 0.1


def test_only_the_hour_counts_and_asking_again_changes_nothing() -> None:
    fleet = spread_out({"north": Site(outage=0.3, correlation=0.4)})
    ids = np.arange(3 * EACH)
    for hour in (0, 63, 64, 10**6):
        first = fleet.fates(ids, 9, 3600.0 * hour).kinds
        assert np.array_equal(first, fleet.fates(ids, 9, 3600.0 * hour + 3599.9).kinds)
        assert np.array_equal(first, spread_out(fleet_sites()).fates(ids, 9, 3600.0 * hour).kinds)
        one = [int(fleet.fates(np.array([i]), 9, 3600.0 * hour).kinds[0]) for i in (3, 120)]
        assert one == first[[3, 120]].tolist()


def fleet_sites() -> dict[str, Site]:
    """Return the same sites, and one that nobody is at."""
    return {"north": Site(outage=0.3, correlation=0.4), "west": Site(outage=0.9)}


def test_who_is_where() -> None:
    fleet = spread_out({})
    ids = np.array([0, EACH, 2 * EACH, 149])
    assert fleet.cohorts == ("phones", "boxes", "watches")
    assert fleet.sites == ("north", "south")
    assert fleet.cohort_of(ids).tolist() == [0, 1, 2, 2]
    assert fleet.site_of(ids).tolist() == [0, 1, 0, 0]


# ---- spread --------------------------------------------------------------------------------


def test_training_takes_its_spread_anew_each_round() -> None:
    fleet = ArrayFleet(Profiles.of(200, samples=3, speed=2.0), 7, [Behaviour(spread=0.3)])
    factors = np.concatenate(
        [fleet.times(np.arange(200), r, Load(down=5)).train / 6 for r in range(100)]
    )
    logs = np.log(factors)
    assert logs.mean() == pytest.approx(0, abs=5 * 0.3 / np.sqrt(20_000))
    assert logs.std() == pytest.approx(0.3, rel=0.03)
    assert np.mean(np.abs(logs) < 0.3) == pytest.approx(0.6827, abs=0.02)  # normal
    u, v = (float(uniform(7, purpose, 4, 9)) for purpose in (8, 28))
    z = np.sqrt(-2 * np.log(u + 1e-12)) * np.cos(2 * np.pi * v)
    assert fleet.times(np.array([4]), 9, Load()).train[0] == pytest.approx(6 * np.exp(0.3 * z))


# ---- through the clock ---------------------------------------------------------------------


def test_a_round_in_an_outage_has_no_result() -> None:
    fleet = ArrayFleet(
        Profiles.of(20, samples=1, speed=600.0), 3, [Behaviour(site="north")],
        sites={"north": Site(outage=0.5)},
    )  # fmt: skip
    clock = Synchronous(fleet, Terms(cohort=5, invited=5, deadline=900))
    made = [clock.decide(r) for r in range(1, 400)]
    for decision in made:
        hour = int(decision.opened // 3600)
        cut = float(uniform(3, 17, word_of("north"), hour)) < 0.5
        assert set(decision.outcomes) == {Outcome.LOST if cut else Outcome.USED}
        assert (decision.void is not None) == cut
    assert 100 < sum(d.void is not None for d in made) < 300


def test_a_function_s_devices_have_sites() -> None:
    def profile(client: int, _round: int) -> Profile:
        return Profile(samples=1, site="north" if client < 2 else "south", dropout=0.2)

    alone = CalledFleet(profile, 4, seed=3)
    fleet = CalledFleet(profile, 4, seed=3, sites={"north": Site(outage=0.5, correlation=0.5)})
    ids, cut = np.arange(4), 0
    for hour in range(200):
        kinds = fleet.fates(ids, hour, 3600.0 * hour).kinds
        dropout = float(quantile(float(uniform(3, 18, word_of("north"), hour)), 0.2, 0.5))
        if float(uniform(3, 17, word_of("north"), hour)) < 0.5:
            dropout, cut = 1.0, cut + 1
        wanted = uniform(3, 2, np.arange(2), hour) < dropout
        assert (kinds[:2] == Fate.LOST).tolist() == wanted.tolist()
        assert kinds[2:].tolist() == alone.fates(ids, hour, 0.0).kinds[2:].tolist()
    assert 60 < cut < 140
    with pytest.raises(SettingsError, match=r"profile\.site: expected a name, got 'int'"):
        Profile(samples=1, site=3)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Site(outage=1.5), r"site\.outage: expected 0 to 1, got 1\.5"),
        (
            lambda: Site(correlation=1e-7),
            r"site\.correlation: expected 0, or 1e-06 to 1, got 1e-07",
        ),
        (lambda: Site(outage="often"), r"site\.outage: expected a number, 0 to 1, got 'str'"),  # type: ignore[arg-type]
        (lambda: Behaviour(spread=-1), r"behaviour\.spread: expected 0 to 10, got -1"),
        (lambda: Behaviour(jitter=np.nan), r"behaviour\.jitter: expected 0 to 1, got nan"),
        (lambda: Behaviour(dropout=True), r"behaviour\.dropout: expected a number, 0 to 1, got"),
    ],
)
def test_what_no_site_and_no_device_has(make: Callable[[], object], said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        make()


# ---- outages that last ---------------------------------------------------------------------


def cut_off(seed: int, site: Site, hours: int) -> NDArray[np.bool_]:
    """Return in which hours nothing of a site arrives."""
    fleet = ArrayFleet(
        Profiles.of(1, samples=1), seed, (Behaviour(site="north"),), sites={"north": site}
    )
    at = np.asarray(np.arange(hours) * 3600.0 + 1800, np.float64)
    ids = np.zeros(hours, np.int64)
    found: NDArray[np.bool_] = fleet.fates(ids, np.arange(hours), at).kinds == Fate.LOST
    return found


def test_an_outage_lasts_as_long_as_its_site_says() -> None:
    share, hours = 0.2, 24 * 400
    for last in (24, 7.5):
        found = np.stack(
            [cut_off(s, Site(outage=share, outage_hours=last), hours) for s in range(9)]
        )
        assert found.mean() == pytest.approx(share, abs=0.02)
        assert found[:, 0].mean() < 1
        for apart in (1, 5, 48):
            both = (found[:, apart:] & found[:, :-apart]).mean()
            tied = share**2 + share * (1 - share) * max(0.0, 1 - apart / last)
            assert both == pytest.approx(tied, abs=0.02), (last, apart)
    edges = np.flatnonzero(np.diff(cut_off(1, Site(outage=share, outage_hours=24), hours)))
    assert len(set((edges % 24).tolist())) == 1  # days that begin at one hour


def test_an_hour_long_outage_is_what_it_was() -> None:
    found = cut_off(5, Site(outage=0.3), 500)
    assert found.tolist() == (uniform(5, 17, word_of("north"), np.arange(500)) < 0.3).tolist()
    assert found.tolist() == cut_off(5, Site(outage=0.3, outage_hours=1), 500).tolist()


@pytest.mark.parametrize("hours", [0.5, 8761, float("nan")])
def test_an_outage_of_no_length(hours: float) -> None:
    with pytest.raises(SettingsError, match=r"site.outage_hours: expected 1 to 8760 hours"):
        Site(outage=0.1, outage_hours=hours)
