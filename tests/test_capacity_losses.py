"""Counts of what devices deliver that share their site's hours, against exact fractions."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from umbel.simulation.capacity.job import Job
from umbel.simulation.capacity.losses import FEW, Group, Losses
from umbel.simulation.capacity.quorum import percent, quorum
from umbel.simulation.capacity.rounds import rounds
from umbel.simulation.fleet.declared import Site
from umbel.simulation.fleet.devices import Load
from umbel.simulation.fleet.toml import read
from umbel.tests.two_level import F, Place, claims, exact, fleet

if TYPE_CHECKING:
    from pathlib import Path


def _losses(places: list[Place]) -> Losses:
    groups = [
        Group(size=p.size, finishes=float(p.finishes), dropout=float(p.dropout), site=f"s{i}")
        for i, p in enumerate(places)
    ]
    sites = {
        f"s{i}": Site(outage=float(p.outage), correlation=float(p.tie))
        for i, p in enumerate(places)
    }
    return Losses(groups, sites)


FLEETS = [
    [Place(9, F(1, 10))],
    [Place(9, F(1, 10), outage=F(1, 20))],
    [Place(9, F(1, 10), tie=F(1, 5)), Place(6, F(1, 4), finishes=F(9, 10))],
    [Place(5, F(1, 20), F(19, 20), F(1, 30), F(1, 10)), Place(4, F(1, 2), tie=F(3, 4)), Place(3)],
    [Place(6, F(1, 3), tie=F(1)), Place(5, F(0), tie=F(1, 2), outage=F(1, 8))],
]


@pytest.mark.parametrize("places", FLEETS)
def test_counts_are_those_of_the_two_level_model_in_fractions(places: list[Place]) -> None:
    losses = _losses(places)
    for n in (0, 1, 4, losses.size - 1, losses.size):
        whole = [float(share) for share in exact(places, n)]
        assert losses.arrivals(n).shares == pytest.approx(whole, rel=1e-10, abs=1e-13)
        for k in range(n + 2):
            assert losses.miss(n, k) == pytest.approx(sum(whole[:k]), rel=1e-10, abs=1e-13)


@pytest.mark.parametrize("places", FLEETS)
def test_the_fewest_to_ask_reach_the_certainty_and_one_fewer_do_not(places: list[Place]) -> None:
    losses = _losses(places)
    known = {n: exact(places, n) for n in range(losses.size + 1)}
    for k, certainty in itertools.product((1, 3, 5, 8), (F(1, 2), F(9, 10), F(99, 100))):
        enough = [n for n in known if n >= k and sum(known[n][:k]) <= 1 - certainty]
        assert losses.invite(k, float(certainty)) == (enough[0] if enough else None)


def test_more_devices_are_a_mixture_of_binomial_counts() -> None:
    """A million at four sites: for each of the 16 ways to be cut off the share is known."""
    outage, kept = F(1, 50), F(9, 10)
    weights = [F(4, 10), F(3, 10), F(2, 10), F(1, 10)]
    places = [Place(int(1e6 * w), 1 - kept, outage=outage) for w in weights]
    n, k, truth = 60, 40, F(0)
    for up in itertools.product((0, 1), repeat=4):
        odds = math.prod((1 - outage if there else outage) for there in up)
        p = kept * sum(w for w, there in zip(weights, up, strict=True) if there)
        truth += odds * sum(
            math.comb(n, x) * p**x * (1 - p) ** (n - x) for x in range(k)
        )  # fmt: skip
    losses = _losses(places)
    assert losses.size > FEW
    assert losses.miss(n, k) == pytest.approx(float(truth), rel=1e-9)
    assert losses.arrivals(n).below(k) == pytest.approx(float(truth), rel=1e-9)


def test_more_devices_are_as_near_as_their_number_says() -> None:
    sizes = (3000, 5000, 2001)
    places = [Place(size, F(1, 20), F(97, 100), F(1, 50), F(1, 10)) for size in sizes]
    places[1] = places[1]._replace(dropout=F(2, 5), outage=F(1, 5))
    losses, known = _losses(places), exact(places, 8)
    assert losses.size > FEW
    for k in range(1, 9):
        assert losses.miss(8, k) == pytest.approx(float(sum(known[:k])), abs=8 / losses.size)


def test_groups_of_a_site_have_good_and_bad_hours_together() -> None:
    """Beta(1, 3) and Beta(3, 1), correlation 1/5, have quantiles in closed form."""
    groups = [Group(size=4, dropout=0.25, site="s"), Group(size=3, dropout=0.75, site="s")]
    u = (np.arange(200_000) + 0.5) / 200_000
    counts = np.ones((1, len(u)))
    for n, p in ((4, 1 - (1 - u) ** (1 / 3)), (3, u ** (1 / 3))):
        for _ in range(n):
            pad = np.zeros((1, len(u)))
            counts = np.concatenate([counts * p, pad]) + np.concatenate([pad, counts * (1 - p)])
    found = Losses(groups, {"s": Site(correlation=0.2)}).arrivals(7).shares
    assert found == pytest.approx(counts.mean(axis=1), abs=1e-7)


INVITED = {10: (13, 14, 18, 21), 100: (111, 120, 139, 162), 500: (539, 575, 655, 756)}


@pytest.mark.parametrize("size", [1000, 10**6])
def test_clients_to_invite_for_99_percent(size: int) -> None:
    for k, row in INVITED.items():
        for p, invited in zip((0.05, 0.1, 0.2, 0.3), row, strict=True):
            assert Losses([Group(size=size, dropout=p)], {}).invite(k, 0.99) == invited


@st.composite
def _fleets(draw: st.DrawFn) -> Losses:
    share = st.integers(0, 20).map(lambda x: x / 20)
    groups = draw(
        st.lists(
            st.builds(
                Group, size=st.integers(1, 12), finishes=share, dropout=share,
                site=st.sampled_from(["", "a", "b"]),
            ),
            min_size=1, max_size=4,
        )
    )  # fmt: skip
    sites = draw(
        st.dictionaries(
            st.sampled_from(["a", "b"]), st.builds(Site, outage=share, correlation=share)
        )
    )
    return Losses(groups, sites)


@settings(max_examples=40, deadline=None)
@given(_fleets(), st.data())
def test_counts_are_distributions_that_grow_with_who_is_asked(
    losses: Losses, data: st.DataObject
) -> None:
    n = data.draw(st.integers(1, losses.size))
    k = data.draw(st.integers(1, n))
    count, fewer = losses.arrivals(n), losses.arrivals(n - 1)
    assert count.shares.min() >= 0
    assert count.shares.sum() == pytest.approx(1, abs=1e-12)
    assert fewer.at_least(k) <= count.at_least(k) + 1e-12
    apart = losses.apart().arrivals(n).shares
    assert np.arange(n + 1) @ count.shares == pytest.approx(np.arange(n + 1) @ apart, abs=2e-2)
    turned = Losses(losses.groups[::-1], losses.sites).arrivals(n).shares
    assert turned == pytest.approx(count.shares, abs=1e-12)


def test_asking_more_than_there_are_is_refused() -> None:
    with pytest.raises(ValueError, match="expected 0 to 9"):
        _losses(FLEETS[0]).arrivals(10)


OUTAGES = [Place(8, F(1, 20), outage=F(3, 100)) for _ in range(3)]
TOGETHER = [Place(24, F(1, 10), tie=F(1, 5))]


@pytest.mark.parametrize(
    ("places", "asked", "needed", "why"),
    [
        (OUTAGES, 21, 16, "outages of sites s0, s1 and s2"),
        (TOGETHER, 24, 17, "losses that go together"),
        (
            [p._replace(tie=F(1, 10)) for p in OUTAGES], 21, 16,
            "outages of sites s0, s1 and s2 and losses that go together",
        ),
    ],
)  # fmt: skip
def test_where_independence_would_claim_99_percent_and_it_is_below_95_the_plan_says_so(
    places: list[Place], asked: int, needed: int, why: str
) -> None:
    claimed, truth = claims(places, asked, needed)
    assert claimed > F(99, 100) > F(95, 100) > truth
    losses = _losses(places)
    found = quorum(losses.groups, losses.sites, needed=needed, asked=asked, certainty=0.99)
    assert found.independent == pytest.approx(float(1 - claimed), rel=1e-9)
    assert found.miss == pytest.approx(float(1 - truth), rel=1e-9)
    expected = (
        f"independence would claim {100 * float(claimed):.2f} % for {needed} of {asked} asked; "
        f"with {why} it is {100 * float(truth):.1f} %: "
    )
    assert found.line.startswith(expected)


def test_a_line_says_how_many_to_ask_instead() -> None:
    sites = {"north": Site(outage=0.03, correlation=0.1)}
    groups = [Group(size=60, dropout=0.05, site=site) for site in ("north", "south")]
    found = quorum(groups, sites, needed=40, asked=47, certainty=0.99)
    assert found.remedy is None
    invite = found.invite or 0
    losses = Losses(groups, sites)
    assert losses.miss(invite, 40) <= 0.01 < losses.miss(invite - 1, 40)
    assert found.line.endswith(
        f": ask {invite} in place of 47 for 99 % (independence would say 47)"
    )
    again = quorum(groups, sites, needed=40, asked=invite, certainty=0.99)
    assert f": just enough for 99 % (independence would say {47})" in again.line
    assert f": {invite} would do for 99 %" in (
        quorum(groups, sites, needed=40, asked=120, certainty=0.99).line
    )


def test_no_number_of_clients_outweighs_the_outages_of_their_only_site() -> None:
    groups, sites = [Group(size=120, dropout=0.05, site="north")], {"north": Site(outage=0.03)}
    found = quorum(groups, sites, needed=40, asked=44, certainty=0.99)
    assert found.invite is None
    assert found.least == pytest.approx(0.03)
    remedy = found.remedy
    assert remedy is not None
    assert remedy.quorum == 0  # in 3 of 100 hours nothing arrives
    assert remedy.outage == pytest.approx(0.01)
    assert remedy.places == 2  # 60 at each: both are cut off in 9 of 10,000 hours
    spread = [Place(60, F(1, 20), outage=F(3, 100)) for _ in range(2)]
    assert remedy.invite == _losses(spread).invite(40, 0.99)
    assert found.line.endswith(
        "no number of clients reaches 99 %, 97.0 % with all 120; each site's clients spread over 2 "
        f"sites (ask {remedy.invite}) or outages of site north in at most 1 % of its hours would"
    )


def test_what_is_left_where_a_site_is_cut_off_is_the_quorum_that_would_do() -> None:
    """90 of 100 devices are cut off in 1 of 20 hours, the 10 others never, nothing else is lost."""
    groups = [Group(size=90, site="a"), Group(size=10, site="b")]
    found = quorum(groups, {"a": Site(outage=0.05)}, needed=40, asked=60, certainty=0.99)
    assert found.remedy is not None
    assert found.remedy.quorum == 10
    assert found.remedy.outage == pytest.approx(0.01)
    assert "outages of site a in at most 1 % of its hours or a quorum of 10 would" in found.line


def test_the_outage_that_would_do_leaves_room_for_what_else_is_lost() -> None:
    """Without outages 91 devices are too few in 1.3 % of the rounds already."""
    groups = [Group(size=61, dropout=0.1, site="a"), Group(size=30, dropout=0.1, site="b")]
    sites = {"a": Site(outage=0.05), "b": Site(correlation=0.1)}
    found = quorum(groups, sites, needed=71, asked=91, certainty=0.95)
    assert found.remedy is not None
    outage = found.remedy.outage or 0.0
    assert found.remedy.site == "a"
    assert 0.0 < outage < 0.05
    assert Losses(groups, {**sites, "a": Site(outage=outage)}).miss(91, 71) == pytest.approx(0.05)
    assert [Losses(groups, sites).spread(k).size for k in (2, 3, 7)] == [91] * 3


def test_without_anything_in_common_a_line_has_the_odds_alone() -> None:
    groups = [Group(size=8, dropout=0.5)]
    found = quorum(groups, {}, needed=4, asked=8, certainty=0.5)
    assert found.line == "4 of 8 asked deliver with probability 63.7 %: 7 would do for 50 %"
    few = quorum(groups, {}, needed=8, asked=8, certainty=0.99)
    assert few.line.endswith(
        "no number of clients reaches 99 %, 0.39 % with all 8; a quorum of 1 would"
    )


def test_a_percentage_keeps_two_digits_of_what_is_missing() -> None:
    cases = {0.5: "50.0 %", 0.931: "93.1 %", 0.99963: "99.963 %", 1.0: "100 %", 0.0: "0 %"}
    assert {share: percent(share) for share in cases} == cases
    assert percent(0.00012) == "0.012 %"


DRAWN = [
    ([Place(5, F(1, 20), outage=F(3, 50)), Place(9, F(1, 4))], 10, 7),
    ([Place(6, F(1, 10), tie=F(1, 5)), Place(6, F(1, 10), F(1), F(1, 20), F(1, 10))], 9, 6),
    ([Place(4, F(1, 5), outage=F(1, 10)) for _ in range(3)], 12, 8),
]


@pytest.mark.parametrize(("places", "asked", "needed"), DRAWN)
def test_rounds_that_are_drawn_miss_their_quorum_as_often_as_fractions_say(
    tmp_path: Path, places: list[Place], asked: int, needed: int
) -> None:
    """Each round has an hour of its own, so that 20,000 tries are as many draws of the sites."""
    path = tmp_path / "fleet.toml"
    path.write_text(fleet(places), "utf-8")
    job = Job(
        clients=sum(place.size for place in places), cohort=asked, invited=asked, quorum=needed,
        rounds=20, deadline=5000.0, attempts=20, load=Load(), parameters=1,
    )  # fmt: skip
    odds = float(sum(exact(places, asked)[:needed]))
    drawn = rounds(read(path), job, seed=2).miss
    assert drawn == pytest.approx(odds, abs=4 * math.sqrt(odds * (1 - odds) / 20_000))
