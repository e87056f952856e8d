"""Tier T3 in this process: what a device does, and what a task's faults cost."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from umbel import Site, Task
from umbel.simulation.engine import examples as examples_module
from umbel.simulation.engine.loop import Loop
from umbel.simulation.engine.reducing import count_values, row_dtype
from umbel.simulation.engine.work import Verdict, Work
from umbel.strategies.trainer import Settings, TaskTrainer
from umbel.tests.engine_works import SIZES, NumpyTask, NumpyTask64, examples, work


def rows_of(tier: Any, cohort: Work) -> tuple[np.ndarray, Any]:
    out = np.zeros(
        (len(cohort.clients), count_values(cohort.models[0])), row_dtype(cohort.models[0])
    )
    return out, tier.rows(cohort, out)


@pytest.mark.parametrize("task", [NumpyTask, NumpyTask64])
def test_rows_are_what_a_devices_trainer_hands_over(task: type[Task]) -> None:
    trainer = TaskTrainer(task())
    model = trainer.arrays()
    cohort = work(model, evaluate=True)
    out, report = rows_of(Loop(task()), cohort)
    for index, client in enumerate(cohort.clients):
        site = Site(partition=int(client), partitions=len(SIZES))
        alone = trainer.train(model, site, Settings(round=3, seed=11))
        flat = np.concatenate([delta.ravel() for delta in alone.deltas.values()])
        assert out[index].tobytes() == flat.tobytes()
        assert report.weights[index] == alone.weight == SIZES[client]
        assert report.losses[index] == alone.metrics["train.loss"]
        assert report.metrics["correct"][index] == alone.metrics["eval.correct"]
    assert out.dtype == (np.float64 if task is NumpyTask64 else np.float32)
    assert np.abs(out).max() > 0.05


def test_the_sum_is_that_of_the_rows() -> None:
    cohort = work(TaskTrainer(NumpyTask()).arrays())
    tier = Loop(NumpyTask())
    out, report = rows_of(tier, cohort)
    reduced = tier.reduce(cohort)
    terms = np.rint(out.astype(np.float64) * report.weights[:, None] * 2.0**reduced.exponent)
    assert np.array_equal(reduced.total, terms.astype(np.int64).sum(axis=0))
    assert reduced.weight == sum(SIZES[c] for c in cohort.clients)


def test_shares_of_a_round_add_up_to_its_bits() -> None:
    """Two works that agree on the round's weight: heavy enough that the exponent is not 36."""
    model = TaskTrainer(NumpyTask()).arrays()
    heavy = 5_000_000
    tier, whole = Loop(NumpyTask()), work(model, agree=lambda own: own + heavy)
    asked: list[int] = []

    def agree(own: int) -> int:
        asked.append(own)
        return sum(SIZES[c] for c in whole.clients) + heavy

    parts = [work(model, clients, agree=agree) for clients in ((4, 0, 1), (6, 3))]
    shares = [tier.reduce(part) for part in parts]
    together = tier.reduce(whole)
    assert together.exponent == shares[0].exponent == 62 - 10 - 23 < 36
    assert np.array_equal(shares[0].total + shares[1].total, together.total)
    assert asked == [SIZES[4] + SIZES[0] + SIZES[1], SIZES[6] + SIZES[3]]


class Faulty(NumpyTask):
    """Client 0 has no data, client 1 raises, client 6 diverges."""

    def train_data(self, site: Site) -> Any:
        """Return rows, or the client's fault."""
        inputs, labels = examples(site.index)
        if site.index == 1:
            raise OSError("the disk of client 1")
        if site.index == 6:
            return inputs * 1e30, labels
        return (inputs[:0], labels[:0]) if site.index == 0 else (inputs, labels)


def test_a_fault_costs_its_client_only(capsys: pytest.CaptureFixture[str]) -> None:
    cohort = work(TaskTrainer(NumpyTask()).arrays())
    with np.errstate(all="ignore"):
        reduced = Loop(Faulty()).reduce(cohort)
    failed, counted = Verdict.FAILED, Verdict.COUNTED
    expected = [counted, failed, failed, Verdict.NOT_FINITE, counted]
    assert reduced.report.verdicts.tolist() == expected
    assert reduced.weight == SIZES[4] + SIZES[3]
    assert reduced.report.causes[1] == "train_data(site) returned no examples"
    assert reduced.report.causes[2] == "OSError: the disk of client 1"
    assert "the disk of client 1" in capsys.readouterr().err
    healthy = Loop(NumpyTask()).reduce(work(cohort.models[0], (4, 3)))
    assert np.array_equal(healthy.total, reduced.total)


class Drawing(NumpyTask):
    """Draws its data from the global generators."""

    def train_data(self, site: Site) -> Any:
        """Return rows with noise."""
        inputs, labels = examples(site.index)
        noise = np.random.normal(size=inputs.shape) + random.random()  # noqa: S311 - what is tested
        return (inputs + noise).astype(np.float32), labels


def test_global_generators_are_the_clients_own_and_given_back() -> None:
    model = TaskTrainer(NumpyTask()).arrays()
    random.seed(5)
    np.random.seed(6)
    before = random.getstate(), np.random.get_state()[1].tobytes()  # type: ignore[index]
    forth, _ = rows_of(Loop(Drawing()), work(model, (4, 0, 6)))
    assert before == (random.getstate(), np.random.get_state()[1].tobytes())  # type: ignore[index]
    random.seed(99)
    back, _ = rows_of(Loop(Drawing()), work(model, (6, 4)))
    assert np.array_equal(forth[[2, 0]], back)
    assert not np.array_equal(forth[0][: len(forth[2])], forth[2])


def test_examples_that_are_not_held_are_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    cohort = work(TaskTrainer(NumpyTask()).arrays())
    held = Loop(Drawing()).reduce(cohort)
    monkeypatch.setattr(examples_module, "HELD", 1500)
    assert np.array_equal(Loop(Drawing()).reduce(cohort).total, held.total)


class Growing(NumpyTask):
    """Has a row more whenever it is asked."""

    def __init__(self) -> None:
        """Begin with the usual ones."""
        super().__init__()
        self.asked = 0

    def train_data(self, site: Site) -> Any:
        """Return rows, the last of them again and again."""
        inputs, labels = examples(site.index)
        self.asked += 1
        more = np.minimum(np.arange(len(inputs) + self.asked), len(inputs) - 1)
        return inputs[more], labels[more]


def test_a_client_that_is_heavier_when_asked_again_has_no_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(examples_module, "HELD", 0)
    report = Loop(Growing()).reduce(work(TaskTrainer(NumpyTask()).arrays(), (4, 6))).report
    assert set(report.verdicts) == {Verdict.FAILED}
    assert report.causes[0] == (
        f"train_data(site): expected {SIZES[4] + 1} examples, as before, got {SIZES[4] + 3}"
    )


def test_each_client_starts_from_its_own_model_and_launch() -> None:
    first = TaskTrainer(NumpyTask()).arrays()
    second = {name: array + np.float32(0.1) for name, array in first.items()}
    cohort = Work(
        clients=np.array([4, 4, 6]),
        partitions=len(SIZES),
        models=[first, second],
        model_of=np.array([0, 1, 1]),
        launches=np.array([5, 9, 7]),
        settings=Settings(round=3, seed=11),
    )
    out, _ = rows_of(Loop(NumpyTask()), cohort)
    alone = TaskTrainer(NumpyTask()).train(
        second, Site(partition=4, partitions=8), Settings(round=9, seed=11)
    )
    flat = np.concatenate([delta.ravel() for delta in alone.deltas.values()])
    assert out[1].tobytes() == flat.tobytes()
    assert not np.array_equal(out[0], out[1])
