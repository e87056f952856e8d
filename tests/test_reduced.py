"""Rounds whose updates come as one: the mean by exact fractions, floors, refusals, resume."""

from __future__ import annotations

from datetime import UTC, datetime
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from umbel.protocol.errors import SettingsError, StateError, TooFewMembers, VoidRound
from umbel.protocol.layout import MessageLayout
from umbel.protocol.manifest import Manifest
from umbel.protocol.plan import Params
from umbel.server.group_commit import GroupCommit
from umbel.server.history import take_over
from umbel.server.outcome import Beside
from umbel.server.reduced import FixedSum, Handed, ReducedCoordinator
from umbel.server.run_directory import RunDirectory
from umbel.server.settings import RunSettings
from umbel.server.surroundings import Surroundings
from umbel.strategies.server_rules import FedAdam, FedAvg

if TYPE_CHECKING:
    from pathlib import Path

    from umbel.server.ledger import RoundRecord

NOW = datetime(2026, 1, 1, tzinfo=UTC)
MODEL: dict[str, Any] = {
    "a": np.array([[1.0, -2.0, 0.5]], np.float32),
    "steps": np.array(7, np.int64),
    "none": np.zeros((0, 2)),
    "b": np.array([0.25, 0.5]),
}
NODES = tuple(f"{i:032x}" for i in range(5))
METRICS: dict[str, dict[str, int]] = {
    "train": {"train.examples": 0, "train.loss": 24},
    "evaluate": {},
}


class Stage:
    """A coordinator that takes sums, on a directory."""

    def __init__(self, home: Path, *, resume: bool = False, every: float = 600, **run: Any) -> None:
        params = Params(weight_cap=40, min_members=3, min_survivors=2)
        self.settings = RunSettings(**{"run": "r", "rounds": 3, "scheme": "plain", "params": params,
                                       "final_evaluation": False, **run})  # fmt: skip
        self.records: list[RoundRecord] = []
        if resume:
            self.directory = RunDirectory.resume(home, "r")
            past = take_over(self.directory, "")
            assert past is not None
            model, history = past[0].arrays, past[1]
        else:
            self.directory = RunDirectory.create(home, "r")
            self.directory.ledger.create_run("r", "", self.settings.described(), "off")
            model, history = dict(MODEL), None
        self.disk = GroupCommit(self.directory, every)
        around = Surroundings(
            verifier=None, directory=self.disk, wall=lambda: NOW, observe=self.records.append
        )
        self.coordinator = ReducedCoordinator(self.settings, model, METRICS, around, history)
        self.coordinator.begin(0.0)

    def take(self, values: list[int], weight: int = 8, **more: Any) -> None:
        """Hand a sum over, in units of 2^-10."""
        total = FixedSum(np.array(values, np.int64), 10, weight)
        given = {"update": total, "roster": NODES, "survivors": NODES, **more}
        self.coordinator.take(Handed(**given), 1.0)

    def close(self) -> None:
        """Let everything be durable."""
        self.disk.__exit__(None)
        self.directory.close()


def test_the_model_moves_by_the_mean_rounded_once(tmp_path: Path) -> None:
    stage, values = Stage(tmp_path), [12345, -54321, 3, 1 << 50, -1]
    stage.take(values, weight=24, sums={"train.examples": 24, "train.loss": 6.0})
    exact = [Fraction(value, 24 << 10) for value in values]
    found = stage.coordinator.model
    # The quotient of two exact numbers in float64, rounded to float32 where the array is that.
    deltas = [np.float32(float(part)) for part in exact[:3]]
    assert found["a"].ravel().tolist() == (MODEL["a"].ravel() + np.array(deltas)).tolist()
    assert found["b"].tolist() == [0.25 + float(exact[3]), 0.5 + float(exact[4])]
    assert int(found["steps"]) == 7
    assert found["none"].shape == (0, 2)
    (record,) = stage.records
    assert (record.roster, record.survivors) == (NODES, NODES)
    assert record.metrics["train.loss"] == 0.25
    assert record.metrics["weight.mean"] == 24 / 5
    stage.close()


def test_words_of_any_part_are_decoded(tmp_path: Path) -> None:
    layout = MessageLayout(Manifest.of(MODEL), {}, "train")
    mean = FixedSum(np.array([1, 2, 3, 4, 5]), 0, 2).mean(layout)
    out = np.empty(1)
    for name, offset, expected in (("a", 1, 1.0), ("b", 0, 2.0), ("b", 1, 2.5)):
        start = layout.places[name].start + offset
        mean.decode(start, start + 1, out)
        assert out[0] == expected


@pytest.mark.parametrize("total", [np.zeros(4, np.int64), np.zeros(5), np.zeros((5, 1), np.int64)])
def test_a_sum_of_another_model_is_refused(total: Any) -> None:
    layout = MessageLayout(Manifest.of(MODEL), {}, "train")
    with pytest.raises(StateError, match=r"reduced sum: expected int64 of shape \(5,\)"):
        FixedSum(total, 0, 2).mean(layout)


@pytest.mark.parametrize(
    ("handed", "words"),
    [
        ({"roster": NODES[:2]}, "2 members have trained, at least 3 are needed"),
        ({"survivors": NODES[:1]}, "1 updates count, at least 2 are needed"),
        (
            {"survivors": NODES[:1], "refused": dict.fromkeys(NODES[1:], "REASON_NOT_FINITE")},
            "1 updates count, at least 2 are needed (refused: 4 x REASON_NOT_FINITE)",
        ),
        ({"update": None}, "5 updates count, at least 2 are needed"),
        ({"update": None, "roster": (), "void": "nobody is online"}, "nobody is online"),
    ],
)
def test_a_cohort_below_the_floors_ends_the_run(
    handed: dict[str, Any], words: str, tmp_path: Path
) -> None:
    stage = Stage(tmp_path)
    stage.take([1] * 5, **handed)
    assert stage.coordinator.done
    assert isinstance(stage.coordinator.failure, TooFewMembers)
    assert str(stage.coordinator.failure) == (
        f"round 1 aborted: {words}; the model is that of round 0"
    )
    (record,) = stage.records
    assert (record.outcome, record.cause) == ("aborted", words)
    stage.close()
    with RunDirectory.open(tmp_path, "r") as run:
        found = {e.node: e.code for e in run.ledger.events() if e.kind == "refused"}
    assert found == handed.get("refused", {})


def test_a_round_is_tried_again_while_attempts_allow(tmp_path: Path) -> None:
    stage = Stage(tmp_path, attempts=2)
    seen = []
    for cohort in (NODES[:2], NODES, NODES[:1], NODES, NODES):
        seen.append((stage.coordinator.round, stage.coordinator.tries))
        stage.take([1] * 5, roster=cohort, survivors=cohort)
    assert seen == [(1, 0), (1, 1), (2, 0), (2, 1), (3, 0)]
    assert stage.coordinator.done
    assert stage.coordinator.failure is None
    outcomes = [record.outcome for record in stage.records]
    assert outcomes == ["aborted", "finished", "aborted", "finished", "finished"]
    with pytest.raises(StateError, match="coordinator: expected an open attempt"):
        stage.take([1] * 5)
    stage.close()


def test_a_model_that_would_not_be_finite_is_void(tmp_path: Path) -> None:
    stage = Stage(tmp_path, rule=FedAvg(server_learning_rate=1e308))
    stage.take([1 << 60] * 5)
    assert isinstance(stage.coordinator.failure, VoidRound)
    assert stage.coordinator.model["b"].tolist() == [0.25, 0.5]
    stage.close()


def test_masks_have_no_place_here(tmp_path: Path) -> None:
    with RunDirectory.create(tmp_path, "r") as directory:
        around = Surroundings(verifier=None, directory=directory, wall=lambda: NOW)
        with pytest.raises(SettingsError, match="scheme: expected plain"):
            ReducedCoordinator(RunSettings(run="r", rounds=1), MODEL, METRICS, around)


def test_what_is_said_beside_the_sum_stands_in_the_entry(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    beside = Beside({"clients.late": 2.0}, {"train": 1.5}, {"clock": {"now": 3}}, (10, 20))
    stage.take([1] * 5, beside=beside, survivors=NODES[1:], refused={NODES[0]: "code"})
    (record,) = stage.records
    assert record.metrics["clients.late"] == 2.0
    assert (record.seconds, record.bytes_up, record.bytes_down) == ({"train": 1.5}, 10, 20)
    stage.close()
    with RunDirectory.open(tmp_path, "r") as run:
        assert run.stored_extra(1) == {"clock": {"now": 3}}
        events = [(e.kind, e.node, e.code) for e in run.ledger.events() if e.node]
        assert events == [("refused", NODES[0], "code")]


def test_only_a_weight_cap_that_is_too_low_is_worth_a_warning(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    stage.take([1] * 5, weight=5)  # the mean weight is 1, the cap 40: no code wastes its bits
    stage.take([1] * 5, weight=200)
    stage.close()
    with RunDirectory.open(tmp_path, "r") as run:
        lines = [event.code for event in run.ledger.events() if event.kind == "warning"]
        assert lines == ["every weight is at weight-cap 40, so all clients count the same; "
                         "raise it if they have more examples"]  # fmt: skip


@pytest.mark.parametrize("rule", [FedAvg(), FedAdam(eta=0.1)])
def test_a_run_that_is_taken_up_goes_on_with_the_same_bits(rule: Any, tmp_path: Path) -> None:
    whole = Stage(tmp_path / "whole", rule=rule)
    for n in range(3):
        whole.take([1000 * n, 7, -3, 1 << 12, n])
    first = Stage(tmp_path / "parts", rule=rule)
    first.take([0, 7, -3, 1 << 12, 0])
    first.close()
    second = Stage(tmp_path / "parts", rule=rule, resume=True)
    assert second.coordinator.round == 2
    for n in (1, 2):
        second.take([1000 * n, 7, -3, 1 << 12, n])
    assert second.coordinator.done
    assert second.coordinator.digest == whole.coordinator.digest
    for stage in (whole, second):
        stage.close()
