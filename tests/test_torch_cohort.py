"""Tier T2 against the loop: ragged clients, every optimiser, and what it refuses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from umbel.protocol.errors import SettingsError
from umbel.simulation.engine.isolation import isolated
from umbel.simulation.engine.loop import Loop
from umbel.simulation.engine.reducing import count_values, row_dtype
from umbel.simulation.engine.torch_cohort import Cohorts
from umbel.simulation.engine.work import Verdict, Work
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
    from umbel import Site, Task

CPU = torch.device("cpu")


def rows_of(tier: Any, cohort: Work) -> tuple[np.ndarray, Any]:
    model = cohort.models[0]
    out = np.zeros((len(cohort.clients), count_values(model)), row_dtype(model))
    return out, tier.rows(cohort, out)


def cohorts(task: Task) -> Cohorts:
    return Cohorts(task, 1, CPU)


KINDS = [TorchTask, Momentum, Adaptive, Dropped, Squared, Convolved]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("double", "bound"), [(False, 1e-5), (True, 1e-12)])
def test_a_stack_agrees_with_the_loop(kind: type[TorchTask], double: bool, bound: float) -> None:
    task = doubled(kind) if double else kind()
    settings = Settings(round=3, seed=11, proximal_mu=0.3)
    cohort = work(TaskTrainer(task).arrays(), settings=settings, evaluate=True)
    (expected, loop), (found, report) = rows_of(Loop(task), cohort), rows_of(cohorts(task), cohort)
    assert np.abs(expected).max() > 0.02 > 1000 * bound
    assert np.abs(found - expected).max() <= bound
    assert found.dtype == expected.dtype
    assert np.allclose(report.losses, loop.losses, rtol=1e-4)
    assert report.weights.tolist() == loop.weights.tolist()
    assert report.metrics["loss"].tolist() == loop.metrics["loss"].tolist()


def test_the_sum_is_that_of_the_rows() -> None:
    task = Momentum()
    cohort = work(TaskTrainer(task).arrays(), factors=np.array([1, 0.5, 1, 0.25, 1]))
    out, report = rows_of(cohorts(task), cohort)
    reduced = cohorts(task).reduce(cohort)
    scales = report.weights * cohort.factors * 2.0**reduced.exponent
    terms = np.rint(out.astype(np.float64) * scales[:, None]).astype(np.int64)
    assert np.array_equal(reduced.total, terms.sum(axis=0))
    assert reduced.weight == report.weights.sum()


def test_stacks_of_one_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    task = Adaptive()
    cohort = work(TaskTrainer(task).arrays())
    whole, _ = rows_of(cohorts(task), cohort)
    monkeypatch.setattr("umbel.simulation.engine.torch_cohort.CPU_BYTES", 1)
    alone, _ = rows_of(cohorts(task), cohort)
    assert np.abs(whole - alone).max() < 1e-6


def test_each_client_starts_from_its_own_model() -> None:
    task = Convolved()
    first = TaskTrainer(task).arrays()
    second = {n: a if a.dtype.kind == "i" else a + np.float32(0.1) for n, a in first.items()}
    cohort = Work(
        clients=np.array([4, 4, 6]),
        partitions=8,
        models=[first, second],
        model_of=np.array([0, 1, 1]),
        launches=np.array([5, 9, 7]),
        settings=Settings(round=3, seed=11),
    )
    expected, _ = rows_of(Loop(task), cohort)
    found, _ = rows_of(cohorts(task), cohort)
    assert np.abs(found - expected).max() <= 1e-5
    assert np.abs(expected[0] - expected[1]).max() > 0.01


class Faulty(TorchTask):
    """Client 1 raises, client 6 diverges."""

    def train_data(self, site: Site) -> Any:
        """Return rows, or the client's fault."""
        if site.index == 1:
            raise OSError("the disk of client 1")
        inputs, labels = super().train_data(site)
        return (inputs * 1e30 if site.index == 6 else inputs), labels


def test_a_fault_costs_its_client_only(capsys: pytest.CaptureFixture[str]) -> None:
    cohort = work(TaskTrainer(TorchTask()).arrays(), max_norm=0.9)
    found, expected = cohorts(Faulty()).reduce(cohort), Loop(Faulty()).reduce(cohort)
    assert found.report.verdicts.tolist() == expected.report.verdicts.tolist()
    assert set(found.report.verdicts) == {
        Verdict.COUNTED,
        Verdict.NOT_FINITE,
        Verdict.FAILED,
        Verdict.TOO_LONG,
    }
    assert found.weight == expected.weight
    assert np.abs(found.total - expected.total).max() <= 1e-5 * 2**36 * found.weight
    assert found.report.causes == expected.report.causes
    capsys.readouterr()


def test_torchs_generators_are_given_back_and_no_device_is_woken() -> None:
    cuda = torch.cuda.is_available()
    devices = torch.cuda.get_rng_state_all() if cuda else []
    before, woken = torch.get_rng_state(), torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    with isolated():
        torch.manual_seed(3)
        torch.rand(5, device="cuda" if cuda else "cpu")
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.cuda.is_initialized() == woken  # type: ignore[no-untyped-call]
    after = torch.cuda.get_rng_state_all() if cuda else []
    assert all(torch.equal(was, now) for was, now in zip(devices, after, strict=True))


class Normed(TorchTask):
    """Rows of a batch know of each other."""

    def layers(self) -> torch.nn.Module:
        """Return a batch norm."""
        return torch.nn.Sequential(torch.nn.Linear(12, 5), torch.nn.BatchNorm1d(5))


class Tied(TorchTask):
    """One parameter twice."""

    def layers(self) -> torch.nn.Module:
        """Return two layers of one weight."""
        made = torch.nn.Sequential(torch.nn.Linear(12, 12), torch.nn.Linear(12, 12))
        made[1].weight = made[0].weight
        return made


class OwnLoss(TorchTask):
    """A loss that is a function."""

    loss = staticmethod(lambda model, batch: model(batch[0]).sum())


class Patched(TorchTask):
    """A forward() that the object has and its class has not."""

    def layers(self) -> torch.nn.Module:
        """Return a layer that is called otherwise."""
        made = torch.nn.Linear(12, 5)
        made.forward = lambda x: 2 * torch.nn.Linear.forward(made, x)  # type: ignore[assignment]
        return torch.nn.Sequential(made)


class Masked(TorchTask):
    """A gradient that is changed on its way."""

    def layers(self) -> torch.nn.Module:
        """Return a layer half of whose weights stay."""
        made = torch.nn.Sequential(torch.nn.Linear(12, 5))
        made[0].weight.register_hook(lambda g: g * (g > 0))  # type: ignore[operator]
        return made


@pytest.mark.parametrize(
    ("task", "message"),
    [
        (Patched, r"model layer '0': expected its class's forward\(\)"),
        (Masked, "model: 0.weight: expected a gradient without hooks"),
        (Normed, r"model layer '1': expected one that sees each row alone, got 'BatchNorm1d'"),
        (Tied, "shared parameter"),
        (OwnLoss, r"task.loss: expected 'cross_entropy' or 'mse' by name"),
        (NumpyTask, r"task.model\(\): expected an nn.Module, got 'MLP'"),
    ],
)
def test_what_cannot_be_stacked_is_refused_in_one_line(task: type[Task], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        cohorts(task())


class Drawing(TorchTask):
    """Draws inside its model, beside Dropout."""

    def layers(self) -> torch.nn.Module:
        """Return a layer that draws."""
        return torch.nn.Sequential(torch.nn.Linear(12, 5), torch.nn.RReLU())


class Whole(TorchTask):
    """Data that are no pair."""

    def train_data(self, site: Site) -> Any:
        """Return a data set."""
        return torch.utils.data.TensorDataset(*super().train_data(site))


class Centred(torch.nn.Module):
    """Rows of a batch know of each other, in a module that torch does not know."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return what differs from the mean of the batch."""
        return x - x.mean(0)


class Counted(torch.nn.Module):
    """Keeps a mean of what it saw."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: torch.Tensor
        self.register_buffer("seen", torch.zeros(12))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the rows, and note their mean."""
        self.seen = 0.9 * self.seen + 0.1 * x.detach().mean(0)
        return x


class Choosing(torch.nn.Module):
    """Looks at its values to know what to do."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the rows."""
        return x if float(x[0, 0]) < 1e9 else -x


@pytest.mark.parametrize(
    ("first", "message"),
    [
        (torch.nn.RReLU, "outputs of each row alone, got 'ones that depend on other rows or on"),
        (Centred, "outputs of each row alone, got 'ones that depend on other rows or on chance'"),
        (Counted, "arrays that only training changes, got '0.seen changed'"),
        (Choosing, "vmap"),
    ],
)
def test_a_row_that_is_not_alone_fails_with_its_cause(
    first: type[torch.nn.Module], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    class Mixing(TorchTask):
        def layers(self) -> torch.nn.Module:
            return torch.nn.Sequential(first(), torch.nn.Linear(12, 5))

    reduced = cohorts(Mixing()).reduce(work(TaskTrainer(Mixing()).arrays()))
    assert set(reduced.report.verdicts) == {Verdict.FAILED}
    assert all(message in cause for cause in reduced.report.causes.values())
    capsys.readouterr()


def test_a_data_set_is_refused() -> None:
    with pytest.raises(SettingsError, match="a pair of arrays, got 'TensorDataset'"):
        cohorts(Whole()).reduce(work(TaskTrainer(Whole()).arrays()))
