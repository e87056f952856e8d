"""What rounds count beside the metrics: by hand, and in whole runs with the masks on and off."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from umbel import Options, simulate
from umbel.clients.policy import Policy
from umbel.protocol.errors import SettingsError
from umbel.protocol.layout import COUNT
from umbel.server.run_config import KEYS, tables
from umbel.server.run_directory import RunDirectory
from umbel.server.signals import signals
from umbel.server.signals_text import as_text
from umbel.strategies import counted
from umbel.strategies.task import Site
from umbel.strategies.trainer import TaskTrainer
from umbel.tests.rounds import Stage, policy, settings
from umbel.tests.simulated_runs import Points

if TYPE_CHECKING:
    from pathlib import Path

OWN = {"eval.correct": COUNT, "eval.examples": COUNT, "train.loss": 24}


def test_by_default_nothing_is_counted_and_nobody_is_told_of_it() -> None:
    _, config = tables({}, {})
    assert not set(config) & {counted.HISTOGRAM, counted.CLIPPED}
    assert counted.names("train", config, OWN) == {}
    assert counted.values(OWN, {"eval.correct": 1, "eval.examples": 2}, clipped=True) == {}
    assert (KEYS[counted.HISTOGRAM], KEYS[counted.CLIPPED]) == (0, False)


def test_what_is_asked_for_stands_in_every_rounds_config() -> None:
    _, config = tables({}, {"histogram": 3, "count-clipped": True})
    names = counted.names("train", config, OWN)
    assert names == dict.fromkeys(("clipped", "histogram.0", "histogram.1", "histogram.2"), COUNT)
    assert counted.names("evaluate", config, OWN) == {}
    layout = {**OWN, **names}
    found = counted.values(layout, {"eval.correct": 2, "eval.examples": 3}, clipped=False)
    assert found == {"clipped": 0, "histogram.0": 0, "histogram.1": 0, "histogram.2": 1}
    nobody = counted.values(layout, {"eval.correct": 0, "eval.examples": 0}, clipped=True)
    assert nobody == {"clipped": 1, "histogram.0": 0, "histogram.1": 0, "histogram.2": 0}


@pytest.mark.parametrize("bins", [1, 21, -1])
def test_bins_have_a_range(bins: int) -> None:
    with pytest.raises(SettingsError, match="histogram: expected 0 for none, or 2 to 20 bins"):
        tables({}, {"histogram": bins})


@given(st.integers(0, 1000), st.integers(1, 1000), st.integers(2, 20))
def test_a_bin_holds_its_lower_edge_and_the_last_one_all(right: int, of: int, bins: int) -> None:
    right = min(right, of)
    place = counted.bin_of(right, of, bins)
    share = Fraction(right, of)
    assert Fraction(place, bins) <= share
    assert share < Fraction(place + 1, bins) or (share == 1 and place == bins - 1)
    config = {"histogram": bins}
    many = counted.of_many(config, [right], [of])
    assert [name for name, value in many.items() if value] == [f"histogram.{place}"]


def accuracies(clients: int) -> list[float]:
    """Return what the first model gets right of each client's examples."""
    task = Points()
    trainer = TaskTrainer(task)
    found = []
    for index in range(clients):
        result = trainer.evaluate(trainer.arrays(0), Site(partition=index, partitions=clients))
        found.append(result.metrics["eval.correct"] / result.metrics["eval.examples"])
    return found


@pytest.mark.parametrize("secure", [True, False])
def test_a_run_counts_its_clients_by_accuracy(tmp_path: Path, *, secure: bool) -> None:
    """The model that round 1 tests is the first one, so every client's accuracy is known here."""
    given: dict[str, Any] = {"clients": 6, "rounds": 1, "histogram": 5, "client-test-every": 1}
    given |= {"count-clipped": True, "tier": "T3"}
    simulate(Points(), Options(run="r", home=tmp_path, secure=secure, settings=given))
    with RunDirectory.open(tmp_path, "r") as directory:
        ledger = directory.ledger
        records = ledger.rounds()
        found = signals(ledger.run(), records, ledger.events())
    expected, _ = np.histogram(accuracies(6), bins=np.linspace(0, 1, 6))
    assert [records[0].metrics[f"histogram.{i}"] for i in range(5)] == expected.tolist()
    assert found.histogram == (0, expected.tolist())
    assert found.rounds[0].values["clipped"] == 0.0
    assert "clients by accuracy of model 0: " in as_text(found)


def test_a_run_that_asks_for_a_histogram_needs_devices_that_allow_it(tmp_path: Path) -> None:
    own = Policy(min_members=3, min_survivors=3)  # what an owner has who says no more
    options = Options(
        run="r", home=tmp_path, clients=3, rounds=1, in_process=True, policy=own,
        settings={"histogram": 5, "min-members": 3, "min-survivors": 3},
    )  # fmt: skip
    result = simulate(Points(), options)
    assert result.failure is not None
    said = "refused: policy: the run asks for a histogram of accuracy, update.histogram is false"
    assert any(said in line for line in result.refusals)
    assert (
        simulate(Points(), replace(options, run="s", policy=replace(own, histogram=True))).failure
        is None
    )


def test_devices_count_what_their_own_policies_shorten(tmp_path: Path) -> None:
    """Two of five devices bound their updates far below what they have learnt."""
    asked = settings(rounds=1, config={"count-clipped": True})
    with Stage(tmp_path, 5, asked) as stage:
        for index in (1, 3):
            stage.sessions[index] = stage.session(index, policy(asked, l2_clip=1e-3))
        stage.play()
        record, *_ = stage.directory.ledger.rounds()
    assert record.outcome == "finished"
    assert record.metrics["clipped"] == 2.0


def test_a_task_that_counts_nothing_right_has_no_histogram(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="histogram: expected a task that declares 'correct'"):
        Stage(tmp_path, 5, settings(rounds=1, config={"histogram": 4}))
