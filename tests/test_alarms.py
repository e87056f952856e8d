"""When rounds outside are an item: by every run written out, by drawn runs, by the docs' tables."""

import itertools
import math
import re
from fractions import Fraction
from pathlib import Path
from statistics import NormalDist

import numpy as np
import pytest

from umbel.server.alarms import (
    FALSE_PAUSES,
    PERHAPS_FAR,
    PERHAPS_NEAR,
    Chart,
    Stretch,
    false_alarm,
    false_pause,
    limit,
)
from umbel.server.ledger import RoundRecord
from umbel.server.watch import Watch
from umbel.server.watch_terms import SIGNALS, Band, Expected, Group, Seen

PAGE = (Path(__file__).parents[1] / "docs" / "planning.md").read_text("utf-8")
NORMAL = NormalDist()
IN, NEAR, FAR = 0, 1, 2
"""What a round is, on the upper side."""


def alarms(chart: Stretch, rounds: str) -> list[int]:
    """Return the rounds with which an alarm begins: i inside, o and O outside above, u below."""
    looks = {"i": (0, False), "o": (1, False), "O": (1, True), "u": (-1, False), "U": (-1, True)}
    return [n for n, one in enumerate(rounds, 1) if chart.begins(looks[one][0], far=looks[one][1])]


@pytest.mark.parametrize(
    ("rounds", "at"),
    [
        ("ooo", []),
        ("oooo", [4]),  # 2, 4, 6, 8
        ("OO", [2]),
        ("Oio", []),  # 4, 3, 5
        ("Oioo", []),  # 4, 3, 5, 7
        ("Oiooo", [5]),
        ("ooiioooi", [7]),  # 2, 4, 3, 2, 4, 6, 8
        ("iiiiOO", [6]),  # never below 0
        ("ouououou", []),  # each side counts the other as inside: 2, 1, 3, 2, 4, 3, 5, 4
        ("UU", [2]),
        ("OOOOOO", [2]),  # one alarm a stretch
        ("OOiOO", [2, 5]),  # and the next one by itself
        ("OOUU", [2, 4]),
    ],
)
def test_points_add_up_to_one_alarm_a_stretch(rounds: str, at: list[int]) -> None:
    assert alarms(Chart(8), rounds) == at


@pytest.mark.parametrize("points", [1, 3, 4, 5, 7, 9])
def test_a_false_pause_is_that_of_every_run_written_out(points: int) -> None:
    """All sequences of six rounds, each outcome with its exact probability, judged by the rule."""
    far, near = Fraction(1, 500), Fraction(75, 1000)
    chances = {"i": 1 - near, "o": near - far, "O": far}
    total = sum(
        (
            math.prod((chances[one] for one in run), start=Fraction(1))
            for run in itertools.product(chances, repeat=6)
            if alarms(Chart(points), "".join(run))
        ),
        start=Fraction(0),
    )
    assert false_pause(6, points, 0.075, 0.002) == pytest.approx(float(total), rel=1e-12)


@pytest.mark.parametrize(("rounds", "points"), [(100, 7), (1000, 10), (1000, 8)])
def test_a_false_pause_is_that_of_drawn_runs(rounds: int, points: int) -> None:
    """A cumulative sum reaches its limit where the free walk rises by it over its least so far."""
    runs, draw = 10_000, np.random.default_rng(rounds + points)
    chances = [1 - PERHAPS_NEAR, PERHAPS_NEAR - PERHAPS_FAR, PERHAPS_FAR]
    steps = draw.choice(np.array([-1, 2, 4], np.int8), size=(runs, rounds), p=chances)
    walk = np.cumsum(steps, axis=1, dtype=np.int16)
    least = np.minimum(np.minimum.accumulate(walk, axis=1), 0)
    seen = ((walk - least).max(axis=1) >= points).mean()
    expected = false_pause(rounds, points, PERHAPS_NEAR, PERHAPS_FAR)
    assert abs(seen - expected) < 4 * math.sqrt(expected * (1 - expected) / runs)


@pytest.mark.parametrize("rounds", [1, 12, 365, 5000])
@pytest.mark.parametrize("share", [0.05, 0.025, 0.001])
def test_the_limit_is_the_least_that_keeps_the_share(rounds: int, share: float) -> None:
    points = limit(rounds, share)
    assert false_pause(rounds, points, PERHAPS_NEAR, PERHAPS_FAR) <= share
    assert false_pause(rounds, points - 1, PERHAPS_NEAR, PERHAPS_FAR) > share


# -- the whole watch -------------------------------------------------------------------------------

BAND, LINE = Band(20.0, 60.0, 10.0, 90.0), Band(0.4, 0.6, 0.3, 0.7)


def seen(n: int, outcome: str = "finished", **changed: object) -> Seen:
    record = RoundRecord(
        round=n, attempt=0, phase="train", outcome=outcome, roster=("a",), survivors=("a",)
    )
    return Seen(record=record, **changed)  # type: ignore[arg-type]


def paused(watch: Watch, rounds: list[Seen]) -> list[tuple[int, str]]:
    return [(item.round, item.signal) for one in rounds for item in watch.look(one)]


def test_what_pauses_waits_for_its_limit_and_what_is_told_does_not() -> None:
    long = [seen(n, seconds=95.0) for n in range(1, 9)]
    assert paused(Watch(Expected(duration=BAND), SIGNALS, (), 1000), long) == [(1, "duration")]
    watch = Watch(Expected(duration=BAND), SIGNALS, ("duration",), 1000)
    assert paused(watch, long) == [(3, "duration")]  # 4, 8, 12 of 10
    slow = [seen(n, seconds=61.0) for n in range(1, 9)]
    watch = Watch(Expected(duration=BAND), SIGNALS, ("duration",), 1000)
    assert paused(watch, slow) == [(5, "duration")]


def test_the_chances_of_all_signals_together_are_those_of_the_run() -> None:
    """Points of each by hand: an equal part of 5 % for a signal, and of that for each side."""
    expected = Expected(
        duration=BAND, participation={"a": LINE, "b": LINE, "c": LINE}, miss=0.02,
        losses={"north": 0.1, "south": 0.1},
    )  # fmt: skip
    pauses = ("duration", "participation", "site", "rejections", "accuracy")
    watch = Watch(expected, SIGNALS, pauses, 980)  # 1,000 tries by the plan
    part = 0.05 / 4  # accuracy is no probability
    sides = (2, 6, 2, 1)
    assert watch.false_pause == pytest.approx(
        sum(k * false_pause(1000, limit(1000, part / k)) for k in sides), rel=1e-12
    )
    too_sure = [
        k * false_pause(1000, limit(1000, part / k), PERHAPS_NEAR, PERHAPS_FAR) for k in sides
    ]
    assert 0.01 < sum(too_sure) <= FALSE_PAUSES
    assert Watch(expected, SIGNALS, ("accuracy", "bytes"), 1000).false_pause is None
    assert Watch(Expected(), SIGNALS, ("retries",), 1000).false_pause is None


def test_rounds_that_share_their_hours_are_counted_by_the_hour() -> None:
    """A thousand rounds of 95 s are 27 hours, so one limit of 28 looks: 2 far of 6 points."""
    expected = Expected(duration=BAND, hourly=95 / 3600)
    assert limit(28, 0.05 / 2) in range(5, 9)  # two looks far outside, not one
    slow = [seen(n, seconds=95.0) for n in range(1, 99)]
    watch = Watch(expected, SIGNALS, ("duration",), 1000)
    assert paused(watch, slow) == [(39, "duration")]  # 38 rounds are 3,610 s
    assert watch.false_pause == 2 * false_pause(28, limit(28, 0.05 / 2))
    # Of a run of two hours, and where no time passes, each round counts.
    watch = Watch(expected, SIGNALS, ("duration",), 75)
    assert paused(watch, slow) == [(2, "duration")]
    watch = Watch(Expected(participation={"a": LINE}, hourly=1.0), SIGNALS, ("participation",), 100)
    few = [seen(n, cohorts={"a": Group(9, 0), "b": Group(9, 9)}) for n in range(1, 9)]
    assert paused(watch, few) == [(2, "participation")]


def test_attempts_below_quorum_pause_a_long_run_later() -> None:
    # 0.05 / 1,021 tries is 0.000049: 0.02^2 is more, 0.02^3 is not.
    missed = [seen(n, "aborted") for n in range(1, 4)]
    watch = Watch(Expected(miss=0.02), ("quorum",), ("quorum",), 1000)
    assert paused(watch, missed) == [(3, "quorum")]
    assert watch.false_pause == pytest.approx(1021 * 0.02**3)


def test_retries_by_a_plan_that_expects_many() -> None:
    """Where three of ten miss, three misses are less likely than 5 %, seven than 0.05 %."""
    watch = Watch(Expected(miss=0.3), ("retries",), (), 10)
    bad = [seen(1, "aborted")] * 6
    assert not paused(watch, [*bad[:2], seen(1), *bad[:2], seen(2), *bad[:2], seen(3)])
    assert not paused(watch, bad)
    assert paused(watch, [seen(1, "aborted")] * 2) == [(1, "retries")]


def test_a_site_whose_one_device_is_often_lost_is_missed_all_the_same() -> None:
    """One of ten rounds loses it: two without it are 1 %, so rounds are taken two by two."""
    watch = Watch(Expected(losses={"north": 0.1}), SIGNALS, (), 100)
    rounds = [seen(n, sites={"north": Group(1, n < 5)}) for n in range(1, 21)]
    (item,) = [found for one in rounds for found in watch.look(one)]
    assert (item.signal, item.round, item.value) == ("site", 10, 0)
    assert item.low == pytest.approx(0.9)  # half of 1.8
    assert item.cause.startswith("site north: 0 updates of 2 that were asked")


# -- what the docs say -----------------------------------------------------------------------------


def rows(columns: int) -> dict[int, list[str]]:
    """Return the rows of a table of the page that begins with the column `rounds`."""
    found = re.findall(rf"^\| ([\d,]+)((?: \| [\d.]+){{{columns}}}) \|$", PAGE, re.MULTILINE)
    return {int(n.replace(",", "")): rest.strip(" |").split(" | ") for n, rest in found}


def test_the_docs_have_the_chances_of_a_false_pause() -> None:
    table = rows(7)
    assert list(table) == [10, 100, 1000, 10_000]
    for rounds, (points, right, sure, far, near, *_) in table.items():
        assert int(points) == limit(rounds, FALSE_PAUSES / 2)
        assert right == f"{2 * false_pause(rounds, int(points)):.4f}"
        assert sure == f"{2 * false_pause(rounds, int(points), PERHAPS_NEAR, PERHAPS_FAR):.4f}"
        assert alarms(Chart(int(points)), "O" * 99) == [int(far)]
        assert alarms(Chart(int(points)), "o" * 99) == [int(near)]


@pytest.mark.parametrize(("column", "sigma"), [(5, 0.2), (6, 0.3)])
def test_the_docs_say_when_a_doubled_duration_is_found(column: int, sigma: float) -> None:
    """Rounds of a log-normal time, watched with their own quantiles until the alarm."""
    draw, tries = np.random.default_rng(column), 2000
    bounds = [math.exp(sigma * NORMAL.inv_cdf(p)) for p in (0.95, 0.9995)]
    for row in rows(7).values():
        waits = []
        for _ in range(tries):
            chart, count, found = Chart(int(row[0])), 0, False
            while not found:
                count += 1
                took = 2 * math.exp(sigma * draw.standard_normal())
                found = chart.begins(int(took > bounds[0]), far=took > bounds[1])
            waits.append(count)
        error = np.std(waits) / math.sqrt(tries)
        assert abs(np.mean(waits) - float(row[column])) < 4 * error + 0.05


def test_the_docs_say_when_a_lost_site_is_found() -> None:
    table = rows(3)
    assert list(table) == [10, 100, 1000, 10_000]
    names = "abcde"
    for rounds, told in table.items():
        for asked, said in zip((10, 2, 1), told, strict=True):
            losses = dict.fromkeys(names, 0.1)
            watch = Watch(Expected(losses=losses), SIGNALS, ("site",), rounds)
            gone = (
                seen(n, sites={s: Group(asked, 0 if s == "a" else asked) for s in names})
                for n in itertools.count(1)
            )
            assert next(item.round for one in gone for item in watch.look(one)) == int(said)


def test_the_docs_have_the_chances_of_what_is_only_told() -> None:
    table = rows(2)
    assert list(table) == [10, 100, 1000]
    for rounds, (two, one) in table.items():
        assert (f"{false_alarm(rounds):.4f}", f"{false_alarm(rounds, 1):.4f}") == (two, one)
