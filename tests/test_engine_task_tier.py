"""Tier T3 in worker processes: the bits of the loop, whoever trains and whoever dies."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from umbel import Site, Task
from umbel.clients.child import Child
from umbel.protocol.errors import Refused
from umbel.simulation.engine import pool_task
from umbel.simulation.engine.loop import Loop
from umbel.simulation.engine.reducing import Sum, count_values, row_dtype
from umbel.simulation.engine.task_tier import TaskTier
from umbel.simulation.engine.work import Verdict, Work
from umbel.strategies.app import AppRef, load_task
from umbel.strategies.trainer import Settings, TaskTrainer
from umbel.tests.engine_works import SIZES, NumpyTask, NumpyTask64, examples, work
from umbel.tests.test_engine_loop import Drawing, Faulty

if TYPE_CHECKING:
    from collections.abc import Iterator

EVERYBODY = tuple(range(len(SIZES)))
DIGITS = Path(__file__).parents[1] / "examples" / "digits"


@pytest.fixture
def tiers() -> Iterator[list[TaskTier]]:
    """Return a list whose tiers are closed in the end."""
    found: list[TaskTier] = []
    yield found
    for tier in found:
        tier.close()


def same(tier: TaskTier, cohort: Work, loop: Loop) -> None:
    """Compare sum, rows and reports of a tier with the loop's, bit for bit."""
    expected, got = loop.reduce(cohort), tier.reduce(cohort)
    assert np.array_equal(got.total, expected.total)
    assert (got.exponent, got.weight) == (expected.exponent, expected.weight)
    shape = (len(cohort.clients), count_values(cohort.models[0]))
    rows, own = (np.full(shape, 7, row_dtype(cohort.models[0])) for _ in range(2))
    reports = [(got.report, expected.report), (tier.rows(cohort, rows), loop.rows(cohort, own))]
    assert rows.tobytes() == own.tobytes()
    for mine, theirs in reports:
        assert mine.causes == theirs.causes
        assert mine.metrics.keys() == theirs.metrics.keys()
        for name in ("verdicts", "weights", "examples", "losses"):
            np.testing.assert_array_equal(getattr(mine, name), getattr(theirs, name), name)
        for name, values in mine.metrics.items():
            assert np.array_equal(values, theirs.metrics[name]), name


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_any_number_of_workers_gives_the_bits_of_the_loop(
    tiers: list[TaskTier], workers: int
) -> None:
    for task in (NumpyTask64(), Drawing()):
        model = TaskTrainer(task).arrays()
        other = {name: array + array.dtype.type(0.1) for name, array in model.items()}
        tiers.append(tier := TaskTier(task, workers))
        same(tier, work(model, EVERYBODY, evaluate=True), Loop(task))
        late = Work(
            clients=np.array([4, 4, 6]),
            partitions=len(SIZES),
            models=[model, other],
            model_of=np.array([0, 1, 1]),
            launches=np.array([5, 9, 9]),
            factors=np.array([1.0, 0.5, 0.25]),
            settings=Settings(round=3, seed=11, lr=0.05, epochs=2),
            weight_cap=9,
            agree=lambda own: own + 10**12,
        )
        same(tier, late, Loop(task))


def test_rows_have_the_bits_of_a_devices_child_wherever_they_come_from(
    tiers: list[TaskTier],
) -> None:
    app = AppRef.read(DIGITS)
    task = load_task(app)
    model, settings = TaskTrainer(task).arrays(1), Settings(round=1, seed=1)
    cohort = Work(clients=np.arange(6), partitions=6, models=[model], settings=settings)
    out = np.zeros((2, 6, count_values(model)), np.float32)
    tiers.extend([TaskTier(app, 2), TaskTier(task, 1)])
    reports = [tier.rows(cohort, rows) for tier, rows in zip(tiers, out, strict=True)]
    with Child(app) as device:
        for client in range(6):
            alone = device.train(model, Site(client, 6), settings)
            flat = np.concatenate([delta.ravel() for delta in alone.deltas.values()])
            assert out[0, client].tobytes() == out[1, client].tobytes() == flat.tobytes()
            for report in reports:
                assert report.losses[client] == alone.metrics["train.loss"]
                assert report.weights[client] == alone.weight


def test_what_a_task_raises_costs_its_client_only(
    tiers: list[TaskTier], capfd: pytest.CaptureFixture[str]
) -> None:
    cohort = work(TaskTrainer(NumpyTask()).arrays())
    with np.errstate(all="ignore"):  # warnings are errors in the workers, too
        tiers.append(tier := TaskTier(Faulty(), 2))
        same(tier, cohort, Loop(Faulty()))
    assert tier.reduce(cohort).report.causes[2] == "OSError: the disk of client 1"
    assert "the disk of client 1" in capfd.readouterr().err


class Deadly(NumpyTask):
    """Client 6 ends its process while its data are asked for the second time, client 1 at once."""

    def train_data(self, site: Site) -> Any:
        """Return rows, or die."""
        if site.index == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return Rows6(*examples(site.index)) if site.index == 6 else examples(site.index)


class Rows6(tuple[Any, Any]):
    """Data that can be counted and not used."""

    __slots__ = ()

    def __new__(cls, inputs: Any, labels: Any) -> Rows6:
        """Take the rows and hide that they end the process."""
        return super().__new__(cls, (inputs, Labels(labels)))


class Labels:
    """Labels that end the process which looks at one of them."""

    def __init__(self, labels: Any) -> None:
        self.labels = labels

    def __len__(self) -> int:
        return len(self.labels)

    def __array__(self, *_: Any, **__: Any) -> Any:
        os._exit(3)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_worker_that_dies_is_named_and_the_others_go_on(
    tiers: list[TaskTier], workers: int
) -> None:
    model = TaskTrainer(NumpyTask()).arrays()
    tiers.append(tier := TaskTier(Deadly(), workers))
    found = tier.reduce(work(model, EVERYBODY))
    survivors = [client for client in EVERYBODY if client not in {1, 6}]
    lost = sorted(found.report.causes)
    assert lost == [1, 6]
    assert "was killed by SIGKILL (out of memory?)" in found.report.causes[1]
    assert "exited with status 3" in found.report.causes[6]
    assert found.report.verdicts[lost].tolist() == [Verdict.FAILED] * 2
    healthy = Loop(NumpyTask()).rows(work(model, survivors), np.zeros((6, 167), np.float32))
    assert np.array_equal(found.report.losses[survivors], healthy.losses)
    terms = np.zeros((6, 167), np.float32)
    Loop(NumpyTask()).rows(work(model, survivors), terms)
    weights = healthy.weights[:, None] * 2.0**found.exponent
    assert np.array_equal(
        found.total, np.rint(terms.astype(np.float64) * weights).astype(np.int64).sum(axis=0)
    )
    again = tier.rows(work(model, (0, 6, 2)), np.zeros((3, 167), np.float32))
    assert again.counted.tolist() == [True, False, True]


@pytest.mark.parametrize("moment", ["in the sum", "before it is said"])
def test_a_sum_that_a_death_has_spoilt_is_made_again(
    tiers: list[TaskTier], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, moment: str
) -> None:
    whole, spoil = Sum.take, tmp_path / "spoilt"

    def die_once() -> None:
        if not spoil.exists():
            spoil.touch()
            os.kill(os.getpid(), signal.SIGKILL)

    def take(self: Sum, index: int, trained: Any) -> None:
        whole(self, index, trained)
        if index == 3 and moment == "in the sum":
            die_once()

    def said(trained: Any, verdict: Verdict) -> Any:
        if trained.examples == SIZES[3]:
            die_once()
        return answer(trained, verdict)

    answer = pool_task._said
    cohort = work(TaskTrainer(NumpyTask()).arrays(), EVERYBODY)
    expected = Loop(NumpyTask()).reduce(cohort)
    monkeypatch.setattr(Sum, "take", take)
    if moment != "in the sum":
        monkeypatch.setattr(pool_task, "_said", said)
    tiers.append(tier := TaskTier(NumpyTask(), 1))
    found = tier.reduce(cohort)
    assert sorted(found.report.causes) == [3]
    own = np.zeros((1, 167), np.float32)
    weight = int(Loop(NumpyTask()).rows(work(cohort.models[0], [3]), own).weights[0])
    missing = np.rint(own[0].astype(np.float64) * weight * 2.0**found.exponent).astype(np.int64)
    assert np.array_equal(found.total, expected.total - missing)


def test_an_app_that_cannot_be_imported_is_refused(tmp_path: Path) -> None:
    (tmp_path / "broken_task.py").write_text("raise OSError('no such sensor')\n", "utf-8")
    with pytest.raises(Refused, match="task failed: OSError: no such sensor"):
        TaskTier(AppRef(tmp_path, "broken_task:Task"), 2)


def test_a_task_without_a_model_is_refused() -> None:
    with pytest.raises(Refused, match="task failed: NotImplementedError: Task defines no model"):
        TaskTier(Task(), 1)


THREADED = """
import threading, time
from umbel.tests.engine_works import NumpyTask

threading.Thread(target=time.sleep, args=(600,), daemon=True, name="sensor").start()


class Threaded(NumpyTask):
    def train_data(self, site):
        assert any(t.name == "sensor" for t in threading.enumerate())
        return super().train_data(site)
"""


def test_an_app_with_threads_is_imported_by_each_worker(
    tiers: list[TaskTier], tmp_path: Path
) -> None:
    (tmp_path / "threaded_task.py").write_text(THREADED, "utf-8")
    tiers.append(tier := TaskTier(AppRef(tmp_path, "threaded_task:Threaded"), 1))
    cohort = work(TaskTrainer(NumpyTask()).arrays())
    assert np.array_equal(tier.reduce(cohort).total, Loop(NumpyTask()).reduce(cohort).total)
