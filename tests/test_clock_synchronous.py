"""Synchronous rounds: tiny fleets by hand, exact counts, and the figures of the reference."""

from __future__ import annotations

import json
import math
from itertools import chain, pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from umbel.protocol.errors import SettingsError, StateError
from umbel.simulation.clock.decision import Decision, Outcome
from umbel.simulation.clock.synchronous import Synchronous, Terms
from umbel.simulation.fleet.called import CalledFleet, Profile
from umbel.simulation.fleet.devices import Load
from umbel.simulation.fleet.profiles import ArrayFleet, Behaviour, Profiles
from umbel.tests.fleets import LOAD, reference, timed


def rounds(clock: Synchronous, count: int, first: int = 1) -> list[Decision]:
    return [clock.decide(r) for r in range(first, first + count)]


def same(one: Decision, other: Decision) -> bool:
    return (one.described(), one.invited.tolist(), one.outcomes.tolist(), one.void) == (
        other.described(), other.invited.tolist(), other.outcomes.tolist(), other.void,
    )  # fmt: skip


def outcomes(decision: Decision) -> dict[int, Outcome]:
    return {int(i): Outcome(o) for i, o in zip(decision.invited, decision.outcomes, strict=True)}


# ---- by hand -------------------------------------------------------------------------------


def test_the_first_to_answer_are_used() -> None:
    clock = Synchronous(timed([5, 1, 4, 2, 3]), Terms(cohort=3, invited=5, deadline=10))
    decision = clock.decide(1)
    assert sorted(decision.used) == [1, 3, 4]
    assert sorted(decision.late) == [0, 2]
    assert (decision.opened, decision.closed) == (0, 3)
    assert dict(zip(decision.used.tolist(), decision.durations, strict=True)) == {1: 1, 3: 2, 4: 3}
    assert clock.decide(2).closed == 6


def test_the_lower_number_wins_a_draw() -> None:
    decision = Synchronous(timed([2, 1, 2, 2]), Terms(cohort=2, invited=4, deadline=10)).decide(1)
    assert sorted(decision.used) == [0, 1]
    assert decision.closed == 2


def test_a_short_round_waits_for_its_deadline() -> None:
    decision = Synchronous(timed([1, 2, 50]), Terms(cohort=3, invited=3, deadline=10)).decide(1)
    assert sorted(decision.used) == [0, 1]
    assert decision.late.tolist() == [2]
    assert decision.closed == 10
    assert decision.void is None


def test_when_all_have_answered_nobody_waits() -> None:
    profiles = Profiles.of(4, samples=1, speed=[1, 2, 3, 4], phase=[0, 0, 0, 43200], duty=1e-3)
    # Windows of 69 s begin within 17,280 s of each day; client 3 comes half a day apart.
    clock = Synchronous(ArrayFleet(profiles, 3), Terms(cohort=4, invited=4, deadline=60))
    decision = clock.decide(1)
    assert len(decision.invited) < 4
    assert decision.closed - decision.opened == max(decision.durations) < 60


def test_too_few_is_a_void_round_that_takes_its_time() -> None:
    terms = Terms(cohort=3, invited=3, deadline=10, quorum=2)
    clock = Synchronous(timed([1, 20, 50]), terms)
    decision = clock.decide(1)
    assert decision.void == "1 of 3 updates arrived within 10 virtual seconds; the quorum is 2"
    assert clock.now == decision.closed == 10
    assert clock.decide(1, attempt=1).opened == 10


def test_who_goes_offline_and_who_breaks_off() -> None:
    profiles = {
        0: Profile(samples=1, speed=3), 1: Profile(samples=1, speed=3, end=2),
        2: Profile(samples=1, speed=3, crash=1), 3: Profile(samples=1, speed=3, dropout=1),
        4: Profile(samples=1, begin=5),
    }  # fmt: skip
    fleet = CalledFleet(lambda client, _round: profiles[client], 5)
    decision = Synchronous(fleet, Terms(cohort=4, invited=5, deadline=10)).decide(1)
    assert outcomes(decision) == {
        0: Outcome.USED, 1: Outcome.OFFLINE, 2: Outcome.CRASHED, 3: Outcome.LOST,
    }  # fmt: skip
    seconds = dict(zip(decision.invited.tolist(), decision.seconds, strict=True))
    assert (seconds[0], seconds[1], seconds[3]) == (3, 2, 3)
    assert 0 < seconds[2] < 3
    assert decision.closed == 10


def test_bytes_by_hand() -> None:
    # 100 bytes down at 10/s, 4 s of training, 60 bytes up at 20/s: 10, 14 and 17 s.
    profiles = Profiles.of(3, samples=[4, 10, 4], speed=1, downlink=[10, 10, 5], uplink=20)
    terms = Terms(cohort=1, invited=3, deadline=30, load=Load(down=100, up=60))
    decision = Synchronous(ArrayFleet(profiles), terms).decide(1)
    assert decision.closed == 17
    got = {i: (r, s) for i, r, s in zip(*(a.tolist() for a in (
        decision.invited, decision.received, decision.sent)), strict=True)}  # fmt: skip
    assert got == {0: (100, 60), 1: (100, 0), 2: (85, 0)}
    later = Synchronous(ArrayFleet(profiles), Terms(
        cohort=2, invited=3, deadline=21.5, load=Load(down=100, up=60))).decide(1)  # fmt: skip
    assert later.closed == 21.5
    sent = dict(zip(later.invited.tolist(), later.sent.tolist(), strict=True))
    assert sent == {0: 60, 1: 30, 2: 0}  # the second had 1.5 s to send


def test_time_goes_on_to_the_first_moment_with_enough_online() -> None:
    spans = [(10, 20), (15, 30), (28, 40), (29, 35)]
    fleet = CalledFleet(
        lambda client, _round: Profile(samples=1, begin=spans[client][0], end=spans[client][1]), 4
    )
    opened = [
        Synchronous(fleet, Terms(cohort=q, invited=4, deadline=5, quorum=q)).decide(1).opened
        for q in (1, 2, 3)
    ]
    assert opened == [10, 15, 29]  # {0}, {0, 1}, {1, 2, 3}
    never = Synchronous(fleet, Terms(cohort=4, invited=4, deadline=5, quorum=4)).decide(1)
    assert never.void == "fewer than 4 clients are ever online together"
    assert len(never.invited) == 0


def test_a_night_is_waited_out() -> None:
    profiles = Profiles.of(3, samples=1, speed=60, phase=0, duty=0.25)
    terms = Terms(cohort=3, invited=3, deadline=90, quorum=3)
    found = [d.opened for d in rounds(Synchronous(ArrayFleet(profiles, 2), terms), 500)]
    # Windows begin by 17,280 s of the day and last 17,280 s: none is open from 34,560 s on.
    assert all(time % 86400 <= 34560 for time in found)
    assert max(found) > 86400
    assert all(b > a for a, b in pairwise(found))


# ---- exact counts ---------------------------------------------------------------------------


def test_losses_are_binomial() -> None:
    fleet = timed([1.0] * 500, dropout=0.1, crash=0.1)
    clock = Synchronous(fleet, Terms(cohort=50, invited=50, deadline=2, seed=3))
    made = rounds(clock, 400)
    lost = sum(len(d.lost) for d in made)
    crashed = sum(len(d.crashed) for d in made)
    # 20,000 clients: crashed with 0.1 (deviation 42.4), else lost with 0.1 (40.4).
    assert abs(crashed - 2000) < 4 * 42.4
    assert abs(lost - 1800) < 4 * 40.4


def test_who_is_asked_is_hypergeometric() -> None:
    fleet = timed([1.0] * 30)
    clock = Synchronous(fleet, Terms(cohort=10, invited=10, deadline=2, seed=1))
    low = np.array([np.count_nonzero(d.used < 15) for d in rounds(clock, 3000)])
    # Of 10 out of 30 without return, 15 of them low: mean 5, variance 10/4 * 20/29.
    variance = 10 / 4 * 20 / 29
    assert abs(low.mean() - 5) < 4 * math.sqrt(variance / 3000)
    assert low.var() == pytest.approx(variance, rel=0.12)


def test_the_figures_of_the_reference() -> None:
    terms = Terms(cohort=100, invited=130, deadline=120, load=LOAD, seed=7)
    clock = Synchronous(reference(10**6), terms)
    made = [clock.decide(r) for r in range(1000)]
    assert round(np.mean([len(d.late) for d in made]), 1) == 27.3
    assert round(np.mean([len(d.lost) + len(d.offline) for d in made]), 1) == 2.7
    assert round(clock.now / 3600, 1) == 0.7
    assert all(len(d.used) == 100 for d in made)


# ---- properties -----------------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(
    st.integers(2, 40), st.data(), st.integers(0, 2**32), st.floats(0, 0.5), st.floats(0, 0.5),
    st.floats(1, 100),
)  # fmt: skip
def test_whatever_the_fleet(
    clients: int, data: st.DataObject, seed: int, dropout: float, crash: float, deadline: float
) -> None:
    rng = np.random.default_rng(seed)
    profiles = Profiles.of(
        clients, samples=rng.integers(1, 50, clients), speed=rng.uniform(0, 2, clients),
        downlink=rng.uniform(1, 100, clients), phase=rng.uniform(0, 86400, clients),
        duty=rng.uniform(0.02, 0.6, clients),
    )  # fmt: skip
    fleet = ArrayFleet(profiles, seed, [Behaviour(dropout=dropout, crash=crash, jitter=0.3)])
    cohort = data.draw(st.integers(1, clients))
    terms = Terms(
        cohort=cohort, invited=data.draw(st.integers(cohort, 2 * clients)), deadline=deadline,
        quorum=data.draw(st.integers(1, min(cohort, 3))), load=Load(down=300, up=100), seed=seed,
    )  # fmt: skip
    clock, before = Synchronous(fleet, terms), 0.0
    for round_ in range(1, 6):
        kept = json.loads(json.dumps(clock.state()))
        decision = clock.decide(round_)
        again = Synchronous(fleet, terms)
        again.restore(kept)
        assert same(again.decide(round_), decision)
        parts = [decision.who(outcome).tolist() for outcome in Outcome]
        assert sorted(chain(*parts)) == sorted(decision.invited.tolist())
        assert len(set(decision.invited.tolist())) == len(decision.invited) <= terms.invited
        assert before <= decision.opened <= decision.closed <= decision.opened + deadline
        assert len(decision.used) <= cohort
        assert (decision.void is None) == (len(decision.used) >= terms.quorum)
        assert np.all(decision.seconds <= decision.closed - decision.opened + 1e-6)
        assert np.all(decision.received <= 300)
        assert np.all(decision.sent[decision.outcomes == Outcome.USED] == 100)
        before = decision.closed


@pytest.mark.parametrize(
    ("terms", "said"),
    [
        (Terms(cohort=9, invited=9, deadline=1), r"cohort: expected 1 to 3, the number of clients"),
        (Terms(cohort=2, invited=1, deadline=1), r"invited: expected at least the cohort, 2, got"),
        (Terms(cohort=2, invited=2, deadline=1, quorum=3), r"quorum: expected 1 to 2, the cohort"),
        (Terms(cohort=2, invited=2, deadline=math.nan), r"deadline: expected finite seconds"),
    ],
)
def test_terms_that_do_not_fit(terms: Terms, said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        Synchronous(timed([1, 1, 1]), terms)


@pytest.mark.parametrize("state", [{}, {"now": -1}, {"now": "x"}, {"now": 1, "then": 2}])
def test_a_state_that_is_none(state: dict[str, object]) -> None:
    clock = Synchronous(timed([1, 1, 1]), Terms(cohort=1, invited=1, deadline=1))
    with pytest.raises(StateError, match="the clock's state"):
        clock.restore(state)
