"""The server's own test by the kernels, against the task's own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import umbel
from umbel.protocol.errors import Refused, SettingsError
from umbel.simulation.engine import tiers
from umbel.simulation.native.tier import NativeTier, tier
from umbel.strategies.metrics import Metrics
from umbel.strategies.testing import parts
from umbel.strategies.trainer import TaskTrainer
from umbel.tests.native_cases import Ragged

if TYPE_CHECKING:
    from collections.abc import Iterator


def perceptron() -> Any:
    return umbel.MLP(20, 37, 5)


@pytest.fixture(scope="module")
def task() -> Ragged:
    return Ragged(perceptron, (20,), 5, sizes=(1100, 3))


@pytest.fixture(scope="module")
def native(task: Ragged) -> Iterator[NativeTier]:
    made = tier(task, task.pairs[0], 2)
    yield made
    made.close()


def test_every_part_measures_what_the_task_measures(task: Ragged, native: NativeTier) -> None:
    trainer, data = TaskTrainer(task), task.pairs[0]
    split = parts(1100)
    assert [len(part) for part in split] == [512, 512, 76]
    model = trainer.arrays(3)
    expected = trainer.measured(model, data, split)
    found = native.tester(data).measured(model, split)
    assert 0 < sum(part["correct"] for part in found) < 1100
    for own, theirs in zip(found, expected, strict=True):
        assert {name: type(value) for name, value in own.items()} == {
            "examples": int,
            "loss": float,
            "correct": int,
        }
        assert (own["examples"], own["correct"]) == (theirs["examples"], theirs["correct"])
        assert own["loss"] == pytest.approx(theirs["loss"], rel=1e-6)


def test_a_model_that_diverged_has_no_finite_loss(task: Ragged, native: NativeTier) -> None:
    model = {name: np.full_like(a, np.nan) for name, a in TaskTrainer(task).arrays(3).items()}
    (found,) = native.tester(task.pairs[1]).measured(model, parts(3))
    assert np.isnan(found["loss"])


def test_a_class_that_the_model_has_not_is_named(task: Ragged, native: NativeTier) -> None:
    inputs, targets = task.pairs[0]
    wrong = targets.copy()
    wrong[600] = 5
    model = TaskTrainer(task).arrays(3)
    with pytest.raises(Refused, match=r"example 600: a class that the model has not"):
        native.tester((inputs, wrong)).measured(model, parts(1100))


def test_what_the_kernels_do_not_measure_is_the_tasks(task: Ragged, native: NativeTier) -> None:
    class Own(Ragged):
        def evaluate(self, _model: Any, data: Any) -> Metrics:
            return Metrics(examples=len(data[0]), loss=1.0)

    own = Own(perceptron, (20,), 5, sizes=(3,))
    other = tier(own, own.pairs[0], 1)
    assert tiers.tester(other, own.pairs[0]) is None
    with pytest.raises(SettingsError, match=r"task\.evaluate"):
        other.tester(own.pairs[0])
    other.close()
    assert tiers.tester(native, [1, 2, 3]) is None
    assert tiers.tester(native, task.pairs[0]) is not None
