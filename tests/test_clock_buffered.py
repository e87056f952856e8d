"""Asynchronous rounds: by hand, against a slow simulation written otherwise, and by counting."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from umbel.protocol.errors import SettingsError, StateError
from umbel.simulation.clock.buffered import Buffered, Flow
from umbel.simulation.clock.decision import Outcome
from umbel.simulation.clock.picking import drawn
from umbel.simulation.fleet.called import CalledFleet, Profile
from umbel.simulation.fleet.counter import mix
from umbel.simulation.fleet.declared import Site
from umbel.simulation.fleet.devices import Fate, Load
from umbel.simulation.fleet.profiles import ArrayFleet, Behaviour, Profiles
from umbel.strategies.staleness import weighting
from umbel.tests.fleets import LOAD, reference, timed

Played = tuple[float, list[tuple[int, str]], list[tuple[int, int, int]]]

if TYPE_CHECKING:
    from umbel.simulation.clock.decision import Decision


def told(decision: Decision) -> object:
    arrays = (decision.invited, decision.outcomes, decision.launches, decision.models)
    lists = [None if a is None else a.tolist() for a in arrays]
    return decision.described(), lists, decision.versions, decision.void


# ---- by hand -------------------------------------------------------------------------------


def test_two_clients_by_hand() -> None:
    # Client 0 takes 2 s, client 1 takes 5 s; both always at work, one update a round.
    clock = Buffered(timed([2, 5]), Flow(concurrency=2, buffer=1, staleness="polynomial 1"))
    rows = []
    for round_ in range(1, 6):
        d = clock.decide(round_)
        assert d.models is not None
        assert d.factors is not None
        row = (d.closed, d.used.tolist(), d.models.tolist(), d.staleness.tolist())
        rows.append((*row, d.factors.tolist(), d.versions))
    assert rows == [
        (2, [0], [0], [0], [1], (0,)),  # client 1 still works from version 0
        (4, [0], [1], [0], [1], (0,)),
        (5, [1], [0], [2], [1 / 3], (2,)),
        (6, [0], [2], [1], [1 / 2], (3,)),
        (8, [0], [4], [0], [1], (3,)),
    ]


def test_who_is_in_the_open_buffer_is_not_asked_again() -> None:
    # The fast client waits for the slow one: a buffer of two needs both.
    clock = Buffered(timed([1, 10]), Flow(concurrency=2, buffer=2))
    made = [clock.decide(r) for r in range(1, 4)]
    assert [d.closed for d in made] == [10, 20, 30]
    assert all(d.used.tolist() == [0, 1] for d in made)
    assert all(not d.staleness.any() for d in made)


def test_ends_of_every_kind() -> None:
    profiles = {
        0: Profile(samples=1, speed=4), 1: Profile(samples=1, speed=3, end=2),
        2: Profile(samples=1, speed=3, crash=1), 3: Profile(samples=1, speed=50),
    }  # fmt: skip
    fleet = CalledFleet(lambda client, _launch: profiles[client], 4)
    clock = Buffered(fleet, Flow(concurrency=4, buffer=1, deadline=20))
    decision = clock.decide(1)
    assert (decision.used.tolist(), decision.closed) == ([0], 4)
    assert decision.offline.tolist() == [1]
    assert set(decision.crashed.tolist()) == {2}
    late = [r for r in range(2, 9) if 3 in clock.decide(r).late]
    assert late == [5]  # given up at 20 s, before the fifth update: its launch was earlier


def test_a_fleet_that_goes_for_good_is_void() -> None:
    fleet = CalledFleet(lambda c, _launch: Profile(samples=1, speed=1 + c, end=3), 3)
    clock = Buffered(fleet, Flow(concurrency=3, buffer=3))
    assert clock.decide(1).void is None
    assert clock.decide(2).void == "0 updates arrived, and no client comes online again"


def test_a_fleet_that_always_breaks_is_void() -> None:
    clock = Buffered(timed([1, 1], crash=1), Flow(concurrency=2, buffer=1))
    decision = clock.decide(1)
    assert decision.void == "0 of 600 launches brought an update"
    assert len(decision.crashed) == 600


def test_a_night_is_slept_through() -> None:
    profiles = Profiles.of(5, samples=1, speed=600, phase=0, duty=0.25)
    clock = Buffered(ArrayFleet(profiles, 2), Flow(concurrency=2, buffer=1))
    made = [clock.decide(r) for r in range(1, 300)]
    assert clock.now > 86400
    # Nobody is online after 34,560 s of a day (test_clock_synchronous.py).
    assert all(d.closed % 86400 <= 34560 for d in made)


# ---- another simulation ---------------------------------------------------------------------


def asked(
    fleet: ArrayFleet, flow: Flow, t: float, number: int, taken: set[int], *, scarce: bool
) -> tuple[int | None, bool]:
    """Return whom a launch asks, by the words of its page, and whether few are there."""
    begin = fleet.windows(np.arange(fleet.clients), t, number)[0]
    free = np.array([i for i in range(fleet.clients) if i not in taken])
    online = [int(i) for i in free if begin[i] <= t]
    draw = 10**6 + number
    if not scarce and 2 * len(taken) > fleet.clients:
        fit = lambda places: np.isin(free[places], online)  # noqa: E731
        found = free[drawn(1, len(free), flow.seed, draw, fit)]
    elif not scarce:
        fit = lambda ids: np.isin(ids, online)  # noqa: E731
        found = drawn(1, fleet.clients, flow.seed, draw, fit)
    if not scarce and len(found):
        return int(found[0]), False
    if not online:
        return None, True
    return online[int(mix(flow.seed, 3, draw, 0)) % len(online)], True


def ended(fleet: ArrayFleet, flow: Flow, t: float, number: int, who: int) -> tuple[float, str]:
    """Return how long a launch takes, and how it ends."""
    one = np.array([who])
    down, train, up = (float(a[0]) for a in fleet.times(one, number, flow.load))
    kind, moment = (a[0] for a in fleet.fates(one, number, t))
    takes, how = down + train + up, "lost" if kind == Fate.LOST else "used"
    if kind == Fate.CRASHED:
        takes, how = float(moment) * (down + train), "crashed"
    left = float(fleet.windows(one, t, number)[1][0]) - t
    if takes > left:
        takes, how = left, "offline"
    return (flow.deadline, "late") if takes > flow.deadline else (takes, how)


def slow(fleet: ArrayFleet, flow: Flow, rounds: int) -> list[Played]:
    """Play it step by step over all clients, with a list in place of a heap and no block."""
    flying: list[tuple[float, int, str, int, int]] = []
    t, launched, scarce = 0.0, 0, False
    told: list[Played] = []
    for version in range(rounds):
        buffer: list[tuple[int, int, int]] = []
        ends: list[tuple[int, str]] = []
        scarce = False
        while len(buffer) < flow.buffer:
            taken = {f[3] for f in flying} | {b[0] for b in buffer}
            wanted = len(flying) < flow.concurrency and len(taken) < fleet.clients
            scarce = scarce and wanted
            who = None
            if wanted:
                who, scarce = asked(fleet, flow, t, launched, taken, scarce=scarce)
            if who is not None:
                takes, how = ended(fleet, flow, t, launched, who)
                flying.append((t + takes, launched, how, who, version))
                launched += 1
                continue
            begin = fleet.windows(np.arange(fleet.clients), t, launched)[0]
            free = [float(begin[i]) for i in range(fleet.clients) if i not in taken]
            wake = min(free, default=math.inf) if len(flying) < flow.concurrency else math.inf
            if not flying or wake < min(flying)[0]:
                t = wake
                continue
            first = min(flying)
            flying.remove(first)
            t, number, how, who, started = first
            ends.append((who, how))
            if how == "used":
                buffer.append((who, number, started))
        told.append((t, ends, buffer))
    return told


@settings(max_examples=12, deadline=None)
@given(
    st.sampled_from([3, 7, 20, 64, 80]), st.data(), st.integers(0, 2**32), st.floats(0, 0.4),
    st.floats(0, 0.4), st.sampled_from([0.02, 0.6, np.inf]), st.booleans(), st.booleans(),
)  # fmt: skip
def test_it_is_what_a_slow_simulation_plays(
    clients: int, data: st.DataObject, seed: int, dropout: float, crash: float, duty: float,
    hurried: bool, hours: bool,
) -> None:  # fmt: skip
    rng = np.random.default_rng(seed)
    profiles = Profiles.of(
        clients, samples=rng.integers(1, 50, clients),
        speed=rng.uniform(0.1, 2, clients) * (60 if hours else 1),
        downlink=rng.uniform(10, 100, clients), phase=rng.uniform(0, 86400, clients), duty=duty,
    )  # fmt: skip
    usually = Behaviour(dropout=dropout, crash=crash, jitter=0.3, site="north")
    sites = {"north": Site(outage=0.3, correlation=0.5)} if hours else {}
    fleet = ArrayFleet(profiles, seed, [usually], sites=sites)
    load = Load(down=300, up=100)
    usual = float(np.quantile(sum(fleet.times(np.arange(clients), 0, load)), 0.8))
    flow = Flow(  # the buffer is small enough for those who are not too slow
        concurrency=data.draw(st.integers(1, clients)), deadline=usual if hurried else math.inf,
        buffer=data.draw(st.integers(1, min(clients // 3, 8))), load=load, seed=seed,
    )  # fmt: skip
    clock, before = Buffered(fleet, flow), 0.0
    for round_, (closed, ends, buffer) in enumerate(slow(fleet, flow, 5), 1):
        kept = json.loads(json.dumps(clock.state()))
        decision = clock.decide(round_)
        assert decision.closed == closed
        assert decision.invited.tolist() == [who for who, _ in ends]
        assert [Outcome(o).name.lower() for o in decision.outcomes] == [how for _, how in ends]
        assert decision.launches is not None
        assert decision.models is not None
        got = zip(decision.used, decision.launches, decision.models, strict=True)
        assert [tuple(map(int, row)) for row in got] == buffer
        assert set(decision.models.tolist()) <= {*range(round_)}
        assert before <= decision.closed
        before = decision.closed
        again = Buffered(fleet, flow)
        again.restore(kept)
        assert told(again.decide(round_)) == told(decision)


def test_no_old_model_is_asked_for_that_was_not_named() -> None:
    clock, live = Buffered(reference(2000), Flow(concurrency=50, buffer=5, load=LOAD)), {0}
    for round_ in range(1, 400):
        decision = clock.decide(round_)
        assert decision.models is not None
        assert set(decision.models.tolist()) <= live | {round_ - 1}
        live = set(decision.versions)


# ---- counting -------------------------------------------------------------------------------


def test_the_mean_staleness_follows_from_the_concurrency() -> None:
    """With nobody lost, launch l is asked for by arrival l - M, so the sum of all waits is known.

    Over n arrivals the versions passed between a launch and its arrival add up to those at the
    arrivals less those at the launches; what is still in flight at the end is looked up.
    """
    fleet = reference(10**6)
    quiet = ArrayFleet(fleet.profiles, 7, [Behaviour(jitter=0.1)])
    clock = Buffered(quiet, Flow(concurrency=100, buffer=10, load=LOAD, seed=7))
    made = [clock.decide(r) for r in range(1, 1001)]
    stale = np.concatenate([d.staleness for d in made])
    gone = sum(len(d.offline) for d in made)
    assert gone < 20  # windows of hours, work of seconds
    # Arrivals of round r count r - 1; launch l >= 100 is from the version after l - 99 arrivals.
    arrived = 10 * sum(range(1000))
    launched = sum(max(0, l - 99) // 10 for l in range(10_099))  # noqa: E741
    flying = sum(clock.state()["version"])  # type: ignore[arg-type]
    assert abs(stale.sum() - (arrived - launched + flying)) <= 10 * gone
    assert stale.mean() == pytest.approx(9.9, abs=0.4)
    # The prototype, which launches ten at a time after each tenth arrival, has 8.9 and 76.
    assert 50 < stale.max() < 110


def test_a_million_clients_asynchronously() -> None:
    clock = Buffered(reference(10**6), Flow(concurrency=1000, buffer=100, load=LOAD))
    made = [clock.decide(r) for r in range(1, 21)]
    assert sum(len(d.used) for d in made) == 2000
    flights = clock.state()["client"]
    assert isinstance(flights, list)
    assert len(flights) == len(set(flights)) == 999  # the next is launched from the next model


def test_all_of_a_fleet_at_work() -> None:
    known = reference(2000).profiles
    always = Profiles.of(2000, samples=known.samples, speed=known.speed)
    clock = Buffered(ArrayFleet(always, 7), Flow(concurrency=2000, buffer=100))
    made = [clock.decide(r) for r in range(1, 21)]
    assert all(len(d.used) == 100 for d in made)
    # The first round's are the hundred fastest: nobody waits for anybody.
    seconds = always.samples * always.speed.astype(float)
    assert set(made[0].used.tolist()) == set(np.argsort(seconds)[:100].tolist())


# ---- settings and state ---------------------------------------------------------------------


def test_weights_of_old_updates() -> None:
    stale = np.array([0, 3, 8])
    assert weighting("constant")(stale).tolist() == [1, 1, 1]
    assert weighting("polynomial 0.5")(stale).tolist() == pytest.approx([1, 0.5, 1 / 3])
    assert weighting("hinge 2 4")(stale).tolist() == pytest.approx([1, 1, 1 / 9])


@pytest.mark.parametrize(
    "text", ["", "linear", "polynomial", "polynomial x", "polynomial -1", "hinge 1", "constant 1",
             "polynomial nan"],
)  # fmt: skip
def test_weights_that_are_none(text: str) -> None:
    with pytest.raises(SettingsError, match="staleness: expected constant, `polynomial A`"):
        weighting(text)


@pytest.mark.parametrize(
    ("flow", "said"),
    [
        (Flow(concurrency=4, buffer=1), r"concurrency: expected 1 to 3, the number of clients"),
        (Flow(concurrency=1, buffer=4), r"buffer: expected 1 to 3, the number of clients, got 4"),
        (Flow(concurrency=1, buffer=1, deadline=0), r"deadline: expected seconds above 0"),
    ],
)
def test_a_flow_that_does_not_fit(flow: Flow, said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        Buffered(timed([1, 1, 1]), flow)


@pytest.mark.parametrize(
    "change",
    [
        {"client": [0, 0]}, {"client": [0, 3]}, {"client": [0]}, {"time": [1.0, math.nan]},
        {"launch": [0, "x"]}, {"outcome": [0, 5]}, {"now": None}, {"version": 3}, {"more": 1},
    ],
)  # fmt: skip
def test_a_state_that_is_none(change: dict[str, object]) -> None:
    clock = Buffered(timed([1, 2, 3]), Flow(concurrency=2, buffer=1))
    clock.decide(1)
    state = {
        "now": 1.0, "launched": 2, "time": [1.0, 2.0], "launch": [0, 1], "outcome": [0, 0],
        "client": [0, 1], "version": [0, 0], "started": [0.0, 0.0],
    }  # fmt: skip
    clock.restore(state)
    with pytest.raises(StateError, match="the clock's state"):
        clock.restore({**state, **change})
