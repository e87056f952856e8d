"""What a page reads of a record, and the numbers that it makes of that."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from umbel.server.ledger import RunRecord
from umbel.server.run_directory import RunDirectory
from umbel.server.signals import ages, staleness
from umbel.server.skew import counts, skew
from umbel.simulation.clock.buffered import Buffered, Flow
from umbel.simulation.engine.figures import of_clients, of_clock
from umbel.simulation.engine.work import Report
from umbel.simulation.fleet.profiles import ArrayFleet, Profiles
from umbel.simulation.pages import figures, learning, participation, scale
from umbel.simulation.pages.figures import READS
from umbel.tests.recorded_runs import begin, commit, entry, full, node

if TYPE_CHECKING:
    from pathlib import Path


RUN = RunRecord(run="r", created="", security="off", config={})


def read(home: Path, run: str) -> figures.Figures:
    with RunDirectory.open(home, run) as directory:
        return figures.Figures.of(directory)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A run of four rounds: the second fails once, the third is lost."""
    everybody = [node(i) for i in range(4)]
    with begin(tmp_path, "r", {"clients": 5, "rounds": 4}) as directory:
        spent: dict[str, Any] = {"seconds": {"train": 2.0, "write": 0.5}, "roster": everybody}
        commit(directory, 1, metrics={"test.accuracy": 0.5, "eval.accuracy": 0.1}, **spent)
        directory.ledger.event("lost", round=2, attempt=0, node=node(3), code="training")
        commit(directory, 2, outcome="aborted", cause="3 members", **spent)
        directory.ledger.event("late", round=2, attempt=1, node=node(2))
        commit(directory, 2, attempt=1, **(spent | {"survivors": everybody[:2]}))
        commit(directory, 3, metrics={"test.accuracy": 0.9}, **spent)
        commit(directory, 3, outcome="lost", cause="its folder is damaged", attempt=1)
        last = {"test.accuracy": 0.7, "eval.accuracy": 0.6}
        commit(directory, 4, metrics=last, **spent)
        commit(directory, 4, phase="evaluate", metrics={"eval.accuracy": 0.8}, **spent)
    return tmp_path


def test_a_point_is_a_round_that_finished_and_adds_up_what_all_attempts_took(home: Path) -> None:
    found = read(home, "r")
    assert [point.number for point in found.points] == [1, 2, 4]
    assert [point.seconds for point in found.points] == [2.5, 7.5, 12.5]
    assert [point.moved for point in found.points] == [3000, 9000, 18000]
    assert found.curve("test.accuracy") == [0.5, None, 0.7]
    assert figures.best(found, "test.accuracy") == (4, 0.7)
    assert found.wanted == 4
    assert found.registered == 5


def test_clients_test_the_model_that_a_round_begins_with(home: Path) -> None:
    """Round 4 begins with the model of round 2; the last evaluation is of round 4's."""
    found = read(home, "r")
    assert {n: v["eval.accuracy"] for n, v in found.on_clients.items()} == {0: 0.1, 2: 0.6, 4: 0.8}
    assert found.curve("eval.accuracy") == [None, 0.6, 0.8]


def test_what_became_of_the_clients_is_of_the_attempt_that_finished(home: Path) -> None:
    found = [dict(point.outcomes) for point in read(home, "r").points]
    assert found == [{"used": 4}, {"used": 2, "late": 1}, {"used": 4}]


def test_uses_leave_out_what_was_lost_and_count_those_never_used(home: Path) -> None:
    found = read(home, "r")
    assert counts(found.used, found.registered).tolist() == [0, 2, 2, 3, 3]


def test_what_a_simulated_run_records_stands_above_what_events_say(tmp_path: Path) -> None:
    full(tmp_path, rounds=3)
    found = read(tmp_path, "fleet-1")
    assert [point.outcomes["lost"] for point in found.points] == [1, 1, 1]
    assert found.points[2].virtual == 3 * 431.0
    assert found.said("tier") == "T0"
    assert found.family("clients.accuracy.") == [
        f"clients.accuracy.p{share}" for share in (10, 25, 50, 75, 90)
    ]


@given(st.lists(st.integers(0, 50), min_size=1, max_size=40).filter(any))
def test_ginis_coefficient_is_the_mean_difference_over_twice_the_mean(uses: list[int]) -> None:
    """The definition, by pairs: sum |a - b| / (2 n^2 mean)."""
    pairs = sum(abs(a - b) for a in uses for b in uses)
    expected = Fraction(pairs, 2 * len(uses) * sum(uses))
    found = skew(np.sort(np.array(uses, np.int64)))
    assert found.gini == pytest.approx(float(expected), abs=1e-12)
    assert (found.least, found.most, found.never) == (min(uses), max(uses), uses.count(0))


def test_an_apps_own_names_say_what_a_metric_measures() -> None:
    names = ["eval.eval_acc", "train.train_loss", "test.top5-accuracy", "test.accuracy", "test.f1"]
    names += ["eval.accident", "eval.log_loss_ratio", "accuracy"]
    made = entry(1, metrics=dict.fromkeys(names, 0.5))
    found = figures.Figures.made(RUN, [made, entry(2)], [])
    assert found.of_kind("accuracy") == ["test.accuracy", "test.top5-accuracy", "eval.eval_acc"]
    assert found.of_kind("loss") == ["train.train_loss"]


def test_a_test_by_the_clients_takes_time_of_the_round_whose_model_it_is() -> None:
    """Flower's strategies evaluate after each round."""
    made = [
        entry(1, seconds={"train": 2.0}),
        entry(1, phase="evaluate", seconds={"evaluate": 0.5}, metrics={"eval.accuracy": 0.25}),
        entry(2, seconds={"train": 2.0}),
    ]
    found = figures.Figures.made(RUN, made, [])
    assert [dict(point.own) for point in found.points] == [
        {"train": 2.0, "evaluation": 0.5}, {"train": 2.0},
    ]  # fmt: skip
    assert [point.seconds for point in found.points] == [2.0, 4.5]
    assert found.curve("eval.accuracy") == [0.25, None]


def test_ages_are_counted_over_updates_and_not_over_rounds() -> None:
    """Ten updates: seven fresh, two of age 1, one of age 12; 90 % are at most 1 version old."""
    assert staleness({0: 7, 1: 2, 12: 1}) == (1.4, 1, 12)
    assert staleness({}) is None
    odd = {"staleness.3": 2.0, "staleness.x": 1.0, "staleness.4": math.nan, "staleness.": 1.0}
    (point,) = figures.Figures.made(RUN, [entry(1, metrics=odd)], []).points
    assert ages(point.metrics) == {3: 2}


def test_who_was_refused_after_training_is_not_used() -> None:
    """The clock says that four came; one of them is in no sum."""
    metrics = {"clients.used": 4.0, "clients.refused": 1.0, "clients.offline": 2.0}
    made = entry(1, metrics=metrics, roster=["a", "b", "c", "d"], survivors=["a", "b", "c"])
    (point,) = figures.Figures.made(RUN, [made], []).points
    assert {name: n for name, n in point.outcomes.items() if n} == {
        "used": 3, "refused": 1, "offline": 2,
    }  # fmt: skip


def test_what_a_simulated_round_says_of_itself_is_what_a_page_reads() -> None:
    """By the engine's own words for a round on the clock, and for its clients."""
    fleet = ArrayFleet(Profiles.of(40, samples=np.arange(1, 41), speed=3.0), seed=1)
    clock = Buffered(fleet, Flow(concurrency=20, buffer=5, deadline=100.0, seed=1))
    decisions = [clock.decide(number) for number in range(1, 9)]
    tested = Report(
        verdicts=np.array([0, 0, 0, 1], np.uint8),
        weights=np.full(4, 10),
        examples=np.full(4, 10),
        losses=np.zeros(4),
        metrics={"correct": np.array([2.0, 5.0, 9.0, 0.0]), "loss": np.full(4, 5.0)},
    )
    made = [entry(d.round, metrics=of_clock(d) | of_clients(tested)) for d in decisions]
    found = figures.Figures.made(RUN, made, [])
    for point, decision in zip(found.points, decisions, strict=True):
        assert point.virtual == decision.closed > 0
        old = np.bincount(decision.staleness)
        assert ages(point.metrics) == {age: int(n) for age, n in enumerate(old) if n}
        for name in ("late", "lost", "offline", "crashed"):
            assert point.outcomes[name] == len(getattr(decision, name))
        assert point.outcomes["refused"] == 1
    assert sum(point.outcomes["late"] for point in found.points) > 0
    assert max(max(ages(point.metrics)) for point in found.points) > 0
    spread = READS["spread of accuracy"]
    assert found.family(spread) == [f"{spread}p{q}" for q in (10, 50, 90)]
    assert found.curve(f"{spread}p50")[0] == 0.5


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=60))
def test_bins_hold_every_client_once_and_leave_no_gap(uses: list[int]) -> None:
    found = participation.bins(np.sort(np.array(uses, np.int64)))
    assert len(found) <= participation.MOST
    assert [sum(a <= use <= b for use in uses) for a, b, _ in found] == [n for _, _, n in found]
    assert sum(n for _, _, n in found) == len(uses)
    assert all(b + 1 == c for (_, b, _), (c, _, _) in pairwise(found))


@given(
    st.lists(st.none() | st.floats(-1, 1) | st.just(math.nan), min_size=401, max_size=700),
    st.integers(1, 4),
)
@settings(max_examples=20)
def test_a_long_curve_keeps_its_ends_and_its_extremes(
    values: list[float | None], curves: int
) -> None:
    places = learning.chosen([values] * curves)
    assert places[0] == 0
    assert places[-1] == len(values) - 1
    assert len(places) <= learning.MOST
    there = figures.finite(values)
    if there:
        kept = figures.finite(values[place] for place in places)
        assert (min(kept), max(kept)) == (min(there), max(there))


@given(st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=20))
def test_an_axis_holds_its_values_and_has_a_few_ticks(values: list[float]) -> None:
    found = scale.Scale.linear(values)
    slack = 1e-6 * (max(values) - min(values))
    assert found.low <= min(values) + slack
    assert max(values) - slack <= found.high
    assert 2 <= len(found.ticks) <= 8
    assert all(0 <= found.at(value) <= 1 for value in values)


def test_ticks_are_round_numbers_in_the_unit_that_fits() -> None:
    hours = scale.Scale.linear([0.0, 25000.0], units=scale.TIMES)
    assert [hours.label(tick) for tick in hours.ticks] == ["0", "2", "4", "6", "8"]
    assert hours.unit == "h"
    loss = scale.Scale.positive([0.02, 2.3])
    assert loss.log
    assert [loss.label(tick) for tick in loss.ticks] == [
        "0.02", "0.05", "0.1", "0.2", "0.5", "1", "2", "5",
    ]  # fmt: skip
    assert loss.at(0.02) == 0.0
    assert loss.at(0.2) == pytest.approx(math.log(10) / math.log(250))


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0.0657, "65.7 ms"), (75, "1.25 min"), (7200, "2 h"), (864000, "10 days")],
)
def test_times_are_said_in_the_unit_that_fits(seconds: float, said: str) -> None:
    assert scale.duration(seconds) == said
