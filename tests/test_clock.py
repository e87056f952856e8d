"""Counter-based numbers, the choice of clients, and the clock without a fleet."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from umbel.protocol.errors import SettingsError, StateError
from umbel.simulation.clock.choosing import Pace, clock_for
from umbel.simulation.clock.decision import Outcome
from umbel.simulation.clock.everybody import Everybody
from umbel.simulation.clock.picking import candidates, picked
from umbel.simulation.fleet.counter import mix, uniform
from umbel.tests.fleets import timed

WORDS = st.integers(0, 2**64 - 1)


def hashed(*words: int) -> int:
    """Return the hash as its page writes it, in Python's integers."""
    h = 0x9E3779B97F4A7C15
    for word in words:
        h = (h ^ word) * 0xBF58476D1CE4E5B9 % 2**64
        h ^= h >> 30
        h = h * 0x94D049BB133111EB % 2**64
        h ^= h >> 27
        h = h * 0x9E3779B97F4A7C15 % 2**64
        h ^= h >> 31
    return h


def test_the_published_vectors() -> None:
    assert int(mix(0)) == 0x5AB4E2AB6509D125
    assert float(uniform(0)) == 0.35432259258690313
    assert int(mix(7, 1, 0, 0)) == 0xBF8F80176BB44F73
    assert int(mix(7, 3, 0, 0)) == 0xDA4A981A0A50B39A
    assert int(mix(7, 13, 999999)) == 0x2B48BF45D3F042B4


@given(st.lists(WORDS, min_size=1, max_size=5), WORDS, WORDS)
def test_arrays_are_hashed_as_their_numbers(words: list[int], a: int, b: int) -> None:
    column, row = np.array([[a], [b]], np.uint64), np.array([a, b, 7], np.uint64)
    table = mix(*words, column, 3, row)
    assert table.shape == (2, 3)
    assert table.tolist() == [[hashed(*words, c, 3, r) for r in (a, b, 7)] for c in (a, b)]


def test_uniform_is_uniform() -> None:
    numbers = np.sort(uniform(1, 2, np.arange(100_000)))
    assert numbers[0] >= 0
    assert numbers[-1] < 1
    # Kolmogorov and Smirnov's distance: below 1.95 / sqrt(n) in 999 of 1,000 samples.
    assert np.abs(numbers - (np.arange(100_000) + 0.5) / 100_000).max() < 1.95 / 100_000**0.5


@pytest.mark.parametrize("one_in", [2, 9])
def test_the_first_candidates_are_those_of_the_hash(one_in: int) -> None:
    expected: list[int] = []
    for j in range(240):  # 4 k, 8 k, 16 k and 32 k of them
        candidate = hashed(7, 3, 5, j) % 500
        if candidate % one_in == 0 and candidate not in expected:
            expected.append(candidate)
    found = picked(4, 500, 7, 5, lambda ids: ids % one_in == 0)
    assert found.tolist() == expected[:4]
    assert candidates(50, 7, 5, np.arange(3)).tolist() == [
        hashed(7, 3, 5, j) % 50 for j in range(3)
    ]


@given(st.integers(1, 40), st.integers(1, 40), st.sets(st.integers(0, 39)), st.integers(0, 9))
def test_all_that_fit_are_found_and_each_once(k: int, n: int, good: set[int], draw: int) -> None:
    there = {i for i in good if i < n}
    found = picked(k, n, 1, draw, lambda ids: np.isin(ids, list(there)))
    assert len(set(found.tolist())) == len(found) == min(k, len(there))
    assert set(found.tolist()) <= there


def test_every_client_is_as_likely() -> None:
    counts = np.zeros(20)
    for round_ in range(2_000):
        counts[Everybody(20, 5, seed=3).decide(round_).invited] += 1
    # Each is in 2,000 draws of probability 1/4: mean 500, deviation 19.4.
    assert np.abs(counts - 500).max() < 4 * 19.4


def test_without_a_fleet_everybody_is_used_at_once() -> None:
    clock = Everybody(6, down=10, up=4)
    decision = clock.decide(3)
    assert decision.used.tolist() == list(range(6))
    assert (decision.opened, decision.closed, clock.now) == (0.0, 0.0, 0.0)
    assert decision.durations.tolist() == [0.0] * 6
    assert decision.staleness.tolist() == [0] * 6
    told = decision.described()
    assert told == {
        "opened": 0.0, "closed": 0.0, "invited": 6, "used": 6, "late": 0, "lost": 0, "offline": 0,
        "crashed": 0, "work": 0.0, "bytes_down": 60, "bytes_up": 24,
    }  # fmt: skip
    assert all(len(decision.who(outcome)) == 0 for outcome in Outcome if outcome)


def test_a_cohort_differs_by_round_and_attempt_and_repeats() -> None:
    clock = Everybody(1000, 10, seed=5)
    first, second = clock.decide(1).used.tolist(), clock.decide(2).used.tolist()
    again, tried = Everybody(1000, 10, seed=5), clock.decide(1, attempt=1).used.tolist()
    again.restore(clock.state())
    assert again.decide(1).used.tolist() == first
    assert len({tuple(found) for found in (first, second, tried)}) == 3


def test_the_state_of_another_clock_is_refused() -> None:
    with pytest.raises(
        StateError, match=r"the clock's state: expected nothing, got now; go on with the fleet"
    ):
        Everybody(6).restore({"now": 3.0})


@pytest.mark.parametrize("cohort", [0, 7])
def test_a_cohort_beyond_the_clients_is_refused(cohort: int) -> None:
    with pytest.raises(SettingsError, match=r"cohort: expected 1 to 6, the number of clients"):
        Everybody(6, cohort)


# ---- which clock ----------------------------------------------------------------------------


def test_a_run_s_clock_follows_from_its_fleet_and_settings() -> None:
    fleet = timed([3, 1, 2, 9])
    pace = Pace(cohort=2, seed=1, deadline=5, dropout=0.5, quorum=3)
    assert str(clock_for(None, 4, pace)) == "none, 2 of 4 clients a round and all at once"
    said = str(clock_for(fleet, 4, pace))
    assert said == "synchronous, 4 asked for 2, 5 virtual seconds at most, quorum 2"
    said = str(clock_for(fleet, 4, replace(pace, buffer=2)))
    assert said == "asynchronous, 2 at work, 2 updates a round, polynomial 0.5"
    decision = clock_for(fleet, 4, pace).decide(1)
    assert (len(decision.invited), len(decision.used)) == (4, 2)  # 11 would make 2 sure
    assert decision.void is None  # a quorum is at most the cohort
    flowing = clock_for(fleet, 4, replace(pace, cohort=None, buffer=2)).decide(1)
    assert (flowing.used.tolist(), flowing.closed) == ([1, 2], 2)
    with pytest.raises(SettingsError, match=r"fleet: expected 5 clients, got 4"):
        clock_for(fleet, 5, pace)
    with pytest.raises(SettingsError, match=r"buffer: expected 0 without a fleet, got 2"):
        clock_for(None, 4, replace(pace, buffer=2))
