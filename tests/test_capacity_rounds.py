"""What a plan expects of rounds: by hand, by exact counts, and beside the virtual clock."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from umbel.simulation.capacity.job import Job
from umbel.simulation.capacity.rounds import rounds
from umbel.simulation.clock.synchronous import Synchronous, Terms
from umbel.simulation.fleet.devices import Load
from umbel.simulation.fleet.toml import read

if TYPE_CHECKING:
    from pathlib import Path

    from umbel.simulation.fleet.description import Description


def described(folder: Path, text: str) -> Description:
    path = folder / "fleet.toml"
    path.write_text(text, "utf-8")
    return read(path)


def job(clients: int, cohort: int, **more: Any) -> Job:
    given: dict[str, Any] = {
        "invited": cohort, "quorum": 1, "rounds": 20, "deadline": 100.0, "load": Load(),
        "parameters": 1000,
    }  # fmt: skip
    return Job(clients=clients, cohort=cohort, **(given | more))


CONSTANT = "seed = 1\n[cohorts.a]\ncount = {}\nsamples = 10\nspeed = 0.5\nbandwidth = 1e6\n"


def test_a_fleet_without_chance_has_one_length(tmp_path: Path) -> None:
    fleet = described(tmp_path, CONSTANT.format(30) + "[server]\noverhead = 0.25\n")
    load = Load(down=2_000_000, up=1_000_000)
    found = rounds(fleet, job(30, 5, invited=6, load=load), seed=4)
    for share in (0.01, 0.5, 1.0):
        assert found.seconds.at(share) == pytest.approx(2 + 5 + 1 + 0.25, rel=1e-6)
        assert found.total.at(share) == pytest.approx(20 * 8.25, rel=1e-6)
    assert (found.miss, found.run_lost, found.tries, found.wait.at(1.0)) == (0, 0, 20, 0)
    (took,) = found.clients
    assert (took.asked, took.used, took.late, took.share) == (6, 5, 1, 1)
    assert took.work == pytest.approx(6 * 8)
    assert took.received == pytest.approx(12e6)
    assert took.sent == pytest.approx(6e6)
    assert [(c.cohort, c.part, c.share) for c in found.closers] == [("a", "train", 1.0)]
    assert [hour.p90 for hour in found.by_hour] == [pytest.approx(8.25, rel=1e-6)] * 24


def test_who_is_too_slow_for_the_deadline_makes_the_deadline_the_length(tmp_path: Path) -> None:
    found = rounds(
        described(tmp_path, CONSTANT.format(10)), job(10, 4, deadline=3.0, attempts=2), seed=4
    )
    assert found.seconds.at(0.001) == found.seconds.at(1.0) == 3.0
    assert (found.miss, found.run_lost) == (1, 1)
    assert found.total.at(0.001) == math.inf
    assert [(c.cohort, c.part) for c in found.closers] == [("", "deadline")]


def test_a_fleet_of_which_too_few_are_ever_there_has_no_rounds(tmp_path: Path) -> None:
    early = CONSTANT.format(3) + "[cohorts.a.online]\nhours = 2\nfrom = 2\n"
    late = CONSTANT.format(2).removeprefix("seed = 1\n").replace(".a]", ".b]")
    both = early + late + "[cohorts.b.online]\nhours = 3\nfrom = 12\n"
    found = rounds(described(tmp_path, both), job(5, 4, quorum=4, rounds=2), seed=4)
    assert (found.miss, found.seconds.at(1.0), found.run_lost) == (1, 0, 1)


def test_a_night_that_nobody_is_there_is_waited_for(tmp_path: Path) -> None:
    """Windows of 12 hours that begin at 6 o'clock, or up to 4.8 hours later."""
    day = "[cohorts.a.online]\nhours = 12\nfrom = 6\n"
    fleet = described(tmp_path, CONSTANT.format(40) + day)
    found = rounds(fleet, job(40, 5, quorum=5, rounds=1), seed=4)
    # the fifth of 40 that begin within 4.8 hours: its mean is 5/41 of them, after 6 hours
    assert found.total.mean == pytest.approx(6 * 3600 + 4.8 * 3600 * 5 / 41 + 5, rel=0.01)
    assert found.total.mean == pytest.approx(found.wait.mean + found.seconds.mean)
    shorts = [hour.short for hour in found.by_hour]
    assert shorts[:6] == [1.0] * 6
    assert shorts[11:18] == [0.0] * 7
    assert math.isnan(found.by_hour[0].p50)
    assert found.by_hour[12].online == 40


def test_losses_miss_the_quorum_as_often_as_the_binomial_says(tmp_path: Path) -> None:
    fleet = described(tmp_path, CONSTANT.format(10) + "dropout = 0.3\n")
    found = rounds(fleet, job(10, 8, invited=10, quorum=8, rounds=500), seed=4)
    exact = 1 - math.fsum(math.comb(10, k) * 0.7**k * 0.3 ** (10 - k) for k in (8, 9, 10))
    assert found.miss == pytest.approx(exact, abs=0.005)
    assert found.clients[0].lost == pytest.approx(3.0, abs=0.02)


def test_a_round_that_may_be_tried_again_seldom_ends_a_run(tmp_path: Path) -> None:
    fleet = described(tmp_path, CONSTANT.format(4) + "dropout = 0.1\n")
    once = rounds(fleet, job(4, 4, quorum=4, rounds=2, deadline=9.0), seed=4)
    twice = rounds(fleet, job(4, 4, quorum=4, rounds=2, deadline=9.0, attempts=2), seed=4)
    assert once.run_lost == pytest.approx(1 - 0.9**8, abs=0.06)
    assert twice.run_lost == pytest.approx(1 - (1 - (1 - 0.9**4) ** 2) ** 2, abs=0.06)
    assert twice.miss == pytest.approx(1 - 0.9**4, abs=0.06)
    # the rounds that succeed take 5 s, tries that fail 9
    assert twice.total.at(0.01) == pytest.approx(10)


MIXED = """seed = 3
[cohorts.phones]
count = 120
samples = 50
speed = { lognormal = { median = 0.1, sigma = 0.6 } }
bandwidth = 1e6
jitter = 0.1
dropout = 0.05
crash = 0.02
[cohorts.phones.online]
hours = 8
from = { uniform = [0, 24] }
[cohorts.boxes]
count = 80
samples = { loguniform = [20, 200] }
speed = 0.05
downlink = 4e5
uplink = 3e5
"""


def test_a_mixed_fleet_is_predicted_as_the_clock_shows_it(tmp_path: Path) -> None:
    fleet = described(tmp_path, MIXED)
    wanted = job(
        200, 20, invited=26, quorum=15, rounds=500, deadline=60.0,
        load=Load(down=400_000, up=400_000),
    )  # fmt: skip
    found = rounds(fleet, wanted, seed=1)
    terms = Terms(cohort=20, invited=26, quorum=15, deadline=60.0, load=wanted.load, seed=5)
    clock = Synchronous(fleet.fleet(200, 1), terms)
    shown = [clock.decide(number) for number in range(1, 501)]
    seconds = [one.closed - one.opened for one in shown]
    for share in (0.5, 0.9):
        assert found.seconds.at(share) == pytest.approx(np.quantile(seconds, share), rel=0.03)
    assert found.total.at(0.5) == pytest.approx(clock.now, rel=0.03)
    for name in ("used", "late", "lost", "crashed"):
        told = sum(getattr(took, name) for took in found.clients)
        counted = np.mean([len(getattr(one, name)) for one in shown])
        assert told == pytest.approx(counted, rel=0.1), name
    for name, values in (("work", "seconds"), ("received", "received"), ("sent", "sent")):
        told = sum(getattr(took, name) for took in found.clients)
        assert told == pytest.approx(
            np.mean([getattr(one, values).sum() for one in shown]), rel=0.02
        ), name


def test_the_same_seed_says_the_same(tmp_path: Path) -> None:
    fleet = described(tmp_path, MIXED)
    wanted = job(200, 20, invited=26, rounds=5, deadline=60.0)
    one, again, other = (rounds(fleet, wanted, seed) for seed in (1, 1, 2))
    assert one.seconds.values.tolist() == again.seconds.values.tolist()
    assert one.seconds.values.tolist() != other.seconds.values.tolist()


RECORDED = """seed = 2
[cohorts.a]
count = {}
samples = 10
speed = {{ lognormal = {{ median = 0.5, sigma = 0.4 }} }}
bandwidth = 1e6
online = {{ trace = "online.json" }}
"""


@pytest.mark.parametrize(("clients", "count"), [(40, 100), (4000, 200)])
def test_recorded_windows_are_those_of_the_clock(clients: int, count: int, tmp_path: Path) -> None:
    """Rows of two days: a third of the devices by day, a third by night, others come and go."""
    rows = {
        "0": {"active": [21_600, 108_000], "inactive": [64_800, 151_200], "finish_time": 172_800},
        "1": {"active": [0, 64_800], "inactive": [21_600, 108_000], "finish_time": 172_800},
        "2": {"active": [0, 400], "inactive": [100, 460], "finish_time": 600},
    }
    (tmp_path / "online.json").write_text(json.dumps(rows), "utf-8")
    fleet = described(tmp_path, RECORDED.format(clients))
    wanted = job(clients, 10, invited=13, rounds=count, deadline=2000.0)
    found = rounds(fleet, wanted, seed=1)
    terms = Terms(cohort=10, invited=13, quorum=1, deadline=2000.0, load=Load(), seed=5)
    clock = Synchronous(fleet.fleet(clients, 1), terms)
    shown = [clock.decide(number) for number in range(1, count + 1)]
    seconds = [one.closed - one.opened for one in shown]
    assert found.seconds.at(0.5) == pytest.approx(np.quantile(seconds, 0.5), rel=0.05)
    (took,) = found.clients
    assert took.offline == pytest.approx(np.mean([len(one.offline) for one in shown]), abs=0.3)
    third = clients / 3
    assert found.by_hour[12].online == pytest.approx(third * (1 + 160 / 600), rel=0.05)


def test_what_happens_to_one_run_in_thirty_is_seen_in_a_large_fleet(tmp_path: Path) -> None:
    """All runs are over within the first hour, in which the site is cut off with 3 %."""
    fleet = described(
        tmp_path, CONSTANT.format(20_000) + 'site = "north"\n[sites.north]\noutage = 0.03\n'
    )
    found = rounds(fleet, job(20_000, 100, attempts=3), seed=4)
    assert found.run_lost == pytest.approx(0.03, abs=0.023)  # three standard errors of 500 runs
    assert found.total.at(0.5) == pytest.approx(20 * 5, rel=1e-6)
    assert found.total.at(0.999) == math.inf


@pytest.mark.parametrize(("lasts", "touched"), [(1, 10), (24, 1 + 9 / 24)])
def test_long_outages_end_fewer_runs(lasts: int, touched: float, tmp_path: Path) -> None:
    """20 rounds of half an hour see ten hours: of days one, or two with 9 / 24."""
    text = CONSTANT.format(30).replace("0.5", "180")
    fleet = described(
        tmp_path, text + f'site = "n"\n[sites.n]\noutage = 0.05\noutage-hours = {lasts}\n'
    )
    found = rounds(fleet, job(30, 5, deadline=1800.0), seed=4)
    once, twice = math.floor(touched), math.ceil(touched)
    good = (
        (twice - touched) * 0.95**once + (touched - once) * 0.95**twice
        if once < twice
        else 0.95**10
    )
    assert found.run_lost == pytest.approx(1 - good, abs=4 * math.sqrt(good * (1 - good) / 500))
    assert found.miss == pytest.approx(0.05, abs=0.025)
