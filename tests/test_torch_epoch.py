"""Tier T1 against the loop: compiled steps, ragged clients, and what it refuses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from torch._inductor import config as inductor

from umbel.protocol.errors import Refused
from umbel.simulation.engine.loop import Loop
from umbel.simulation.engine.reducing import count_values, row_dtype
from umbel.strategies.trainer import Settings, TaskTrainer
from umbel.tests.engine_works import NumpyTask, work
from umbel.tests.torch_works import (
    Adaptive,
    Convolved,
    Dropped,
    Momentum,
    Squared,
    TorchTask,
    doubled,
)

if TYPE_CHECKING:
    from umbel import Task
    from umbel.simulation.engine.work import Work


def rows_of(tier: Any, cohort: Work) -> tuple[np.ndarray, Any]:
    model = cohort.models[0]
    out = np.zeros((len(cohort.clients), count_values(model)), row_dtype(model))
    return out, tier.rows(cohort, out)


def agree(task: Task, bound: float, mu: float = 0.0) -> None:
    settings = Settings(round=3, seed=11, proximal_mu=mu)
    cohort = work(TaskTrainer(task).arrays(), settings=settings, evaluate=True)
    tier = Loop(task, "T1")
    assert tier.name == "T1"
    (expected, loop), (found, report) = rows_of(Loop(task), cohort), rows_of(tier, cohort)
    assert not report.causes
    assert np.abs(expected).max() > 0.02 > 1000 * bound
    assert np.abs(found - expected).max() <= bound
    assert np.allclose(report.losses, loop.losses, rtol=1e-4)
    assert report.metrics["loss"].tolist() == loop.metrics["loss"].tolist()
    assert report.weights.tolist() == loop.weights.tolist()
    again, _ = rows_of(tier, cohort)
    assert again.tobytes() == found.tobytes()


def test_compiled_steps_agree_with_the_loop() -> None:
    agree(Dropped(), 1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Momentum, Adaptive, Squared, Convolved])
@pytest.mark.parametrize(("double", "bound"), [(False, 1e-5), (True, 1e-12)])
def test_every_step_agrees_with_the_loop(kind: type[TorchTask], double: bool, bound: float) -> None:
    agree(doubled(kind) if double else kind(), bound, mu=0.3)


def test_without_a_compiler_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inductor.cpp, "cxx", ("/nowhere/to/be/found",))
    monkeypatch.setattr(inductor, "force_disable_caches", True)
    reduced = Loop(Squared(), "T1").reduce(work(TaskTrainer(Squared()).arrays()))
    assert set(reduced.report.verdicts) == {4}
    assert "a step that torch.compile takes" in reduced.report.causes[0]


def test_a_model_of_numpy_is_refused() -> None:
    with pytest.raises(Refused, match=r"task.model\(\): expected an nn.Module, got 'MLP'"):
        Loop(NumpyTask(), "T1")
