"""Sessions that a tier trains by the cohort publish the bits of sessions that train by themselves.

What a client sends is compared with federations in which every session calls `TaskTrainer.train`
itself, here and in a child process. `Each` is a tier of this page: clients one after another by the
same `train`, so whatever differs is the seats' doing.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import umbel
from umbel.clients.child import Child, InProcess, boundary
from umbel.protocol import messages_pb2 as pb
from umbel.protocol.errors import Refused, reason_text
from umbel.protocol.plan import Params
from umbel.server.settings import RunSettings
from umbel.simulation import run as run_module
from umbel.simulation.drops import Drop
from umbel.simulation.engine.choosing import Choice
from umbel.simulation.engine.loop import Loop
from umbel.simulation.engine.work import Report, Verdict
from umbel.simulation.federation import Federation
from umbel.simulation.run import plan
from umbel.simulation.seats import Cohort, deltas, refusal
from umbel.strategies.app import AppRef, load_task
from umbel.strategies.trainer import Settings, load
from umbel.tests.apps import naughty

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from umbel.simulation.engine.work import Arrays, Reduced, Work
    from umbel.simulation.federation import Result


class Points(umbel.Task):
    """A small network whose sites differ in size; some sites fail in the ways that `bad` says."""

    optimizer = umbel.SGD(lr=0.3, momentum=0.5)

    def __init__(self, **bad: int) -> None:
        """Take who fails, by how."""
        self.bad = bad

    def model(self) -> Any:
        """Return a small network."""
        return umbel.MLP(8, 6, 3)

    def train_data(self, site: umbel.Site) -> Any:
        """Return 24 points and one more for each index, others in every round."""
        if site.index == self.bad.get("raises"):
            raise ValueError("no examples today")
        count = 0 if site.index == self.bad.get("empty") else 24 + site.index
        x = np.random.default_rng([site.index, site.round]).normal(size=(count, 8))
        if site.index == self.bad.get("huge"):
            x *= 1e30
        return x.astype(np.float32), (x[:, 0] > 0).astype(np.int64)

    def test_data(self) -> Any:
        """Return 60 points."""
        return self.train_data(umbel.Site(partition=36, partitions=37))


class Each:
    """A tier: one client after another by `TaskTrainer.train`; it notes whom it was given."""

    name = "T3"

    def __init__(self, task: umbel.Task) -> None:
        """Train nothing yet."""
        self.trainer = load(task)
        self.works: list[list[int]] = []

    def rows(self, work: Work, out: NDArray[Any]) -> Report:
        """Train everybody."""
        self.works.append(work.clients.tolist())
        count = len(work.clients)
        verdicts, numbers = np.zeros(count, np.uint8), np.zeros((3, count))
        metrics: dict[str, NDArray[np.float64]] = {}
        causes: dict[int, str] = {}
        for i in range(count):
            settings = replace(work.settings, round=work.round_of(i))
            try:
                with boundary():
                    found = self.trainer.train(work.model(i), work.site(i), settings)
            except Refused as error:
                verdicts[i], causes[i] = Verdict.FAILED, str(error)
                continue
            out[i] = np.concatenate([d.reshape(-1) for d in found.deltas.values()])
            numbers[:, i] = found.weight, found.weight, found.metrics["train.loss"]
            for name, value in found.metrics.items():
                if name.startswith("eval."):
                    metrics.setdefault(name[5:], np.zeros(count))[i] = value
            if not np.isfinite(out[i]).all():
                verdicts[i], out[i] = Verdict.NOT_FINITE, 0
        weights, examples = numbers[:2].astype(np.int64)
        return Report(
            verdicts=verdicts, weights=weights, examples=examples, losses=numbers[2],
            metrics=metrics, causes=causes,
        )  # fmt: skip

    def reduce(self, work: Work) -> Reduced:
        """Refuse: sessions need rows."""
        raise NotImplementedError

    def close(self) -> None:
        """Do nothing."""


def federate(home: Path, trainer: Any, scheme: str, clients: int = 6, **changes: Any) -> Result:
    """Run three rounds and an evaluation."""
    drops = changes.pop("drops", ())
    given: dict[str, Any] = {
        "run": f"run-{len(list(home.iterdir()))}",
        "rounds": 3,
        "scheme": scheme,
        "params": Params(min_members=3, min_survivors=3, value_range=0.5, weight_cap=40),
        "config": {"lr": 0.3, "seed": 5, "local-epochs": 2},
        "seed": 5,
        **changes,
    }
    home = home / given["run"]
    home.mkdir()
    run = RunSettings(**given)
    return Federation(trainer, run, clients=clients, home=home, drops=drops).run()


def essence(result: Result) -> list[tuple[object, ...]]:
    """Return what of the rounds does not depend on who trains: all but times and lengths."""
    return [
        (r.round, r.phase, r.outcome, sorted(r.roster), sorted(r.survivors), r.model,
         dict(r.metrics))
        for r in result.records
    ]  # fmt: skip


@pytest.mark.parametrize(("scheme", "window"), [("A", 1 << 28), ("plain", 1400), ("plain", 1)])
def test_a_cohort_publishes_the_bits_of_its_sessions(
    tmp_path: Path, scheme: str, window: int
) -> None:
    task, tier = Points(), Each(Points())
    alone = federate(tmp_path, InProcess(task), scheme)
    cohort = Cohort(tier, task, InProcess(task), window=window)
    together = federate(tmp_path, cohort, scheme)
    assert essence(together) == essence(alone)
    assert len({r.model for r in together.records}) == 3
    for name, array in together.model.items():
        assert array.tobytes() == alone.model[name].tobytes()
    # 75 numbers of 4 bytes a row: one at a time, four and two, all at once.
    sizes = {1: [1] * 6, 1400: [4, 2], 1 << 28: [6]}[window]
    assert [len(clients) for clients in tier.works] == sizes * 3


def test_the_loop_over_a_cohort_gives_the_bits_of_a_child_process(tmp_path: Path) -> None:
    """T3 as it is shipped against the training child of a device: what it prints, goes and all."""
    ref = AppRef.read(naughty(tmp_path / "app"))
    home = tmp_path / "home"
    home.mkdir()
    with Child(ref) as child:
        alone = federate(home, child, "A")
        task = load_task(ref)
        together = federate(home, Cohort(Loop(task), task, child), "A")
    assert essence(together) == essence(alone)


@pytest.mark.parametrize("secure", [True, False])
def test_a_run_whose_tier_is_named_trains_its_sessions_by_it(tmp_path: Path, secure: bool) -> None:
    said: list[str] = []
    given: dict[str, Any] = {"clients": 6, "rounds": 2, "secure": secure, "home": tmp_path}
    rows: dict[str, Any] = {"hand-over": "rows", "test-every": 2}
    alone = umbel.simulate(Points(), umbel.Options(run="alone", settings=rows, **given))
    tiers = umbel.Options(run="tier", settings={**rows, "tier": "T3"}, **given)
    together = plan(Points(), tiers).run(say=said.append)
    assert essence(together) == essence(alone)
    assert ["test.accuracy" in r.metrics for r in together.records] == [False, True, False]
    assert any(line.startswith("hand-over rows over sessions: ") for line in said)
    assert any(line.startswith("tier T3 ") for line in said)


def test_a_large_run_chooses_who_trains_its_sessions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def tier_for(task: umbel.Task, *_: object, wanted: str, **__: object) -> Choice:
        asked.append(wanted)
        return Choice(Loop(task), "", {})

    monkeypatch.setattr(run_module, "tier_for", tier_for)
    models = set()
    for most in (7, 6):
        monkeypatch.setattr(run_module, "MANY", most)
        given: dict[str, Any] = {"clients": 6, "rounds": 1, "home": tmp_path}
        result = umbel.simulate(Points(), umbel.Options(run=f"r{most}", **given))
        models.add(result.records[0].model)
        assert asked == ["auto"] * (7 - most)
    assert len(models) == 1


def test_a_cohort_of_some_trains_only_those(tmp_path: Path) -> None:
    task, tier = Points(), Each(Points())
    alone = federate(tmp_path, InProcess(task), "plain", 9, cohort=4)
    together = federate(tmp_path, Cohort(tier, task, InProcess(task)), "plain", 9, cohort=4)
    assert essence(together) == essence(alone)
    assert [len(set(clients)) for clients in tier.works] == [4, 4, 4]


@pytest.mark.parametrize("how", ["raises", "empty", "huge"])
def test_a_client_that_fails_refuses_in_its_own_session(
    tmp_path: Path, how: str, capfd: pytest.CaptureFixture[str]
) -> None:
    task = Points(**{how: 2})
    alone = federate(tmp_path, InProcess(task), "plain", rounds=1)
    together = federate(tmp_path, Cohort(Each(task), task, InProcess(task)), "plain", rounds=1)
    assert essence(together) == essence(alone)
    assert together.refusals == alone.refusals
    assert all("client 2: refused: " in line for line in together.refusals)
    assert len(together.refusals) == 2  # the training and the evaluation
    capfd.readouterr()


@pytest.mark.parametrize("boundary_", ["start", "masked"])
def test_who_is_lost_is_trained_only_if_its_session_is(tmp_path: Path, boundary_: str) -> None:
    task, tier, drop = Points(), Each(Points()), Drop(boundary_, (4,), 2)
    alone = federate(tmp_path, InProcess(task), "plain", 8, drops=[drop])
    together = federate(tmp_path, Cohort(tier, task, InProcess(task)), "A", 8, drops=[drop])
    assert essence(together) == essence(alone)
    assert [4 in clients for clients in tier.works] == [True, boundary_ != "start", False]


def test_a_second_attempt_trains_again_what_was_used(tmp_path: Path) -> None:
    task, tier = Points(), Each(Points())
    lost = tuple(range(3))  # of eight, where the code bears two
    drops = [Drop("shares", lost, 2)]
    alone = federate(tmp_path, InProcess(task), "A", 8, drops=drops, attempts=2)
    together = federate(
        tmp_path, Cohort(tier, task, InProcess(task)), "A", 8, drops=drops, attempts=2
    )
    assert essence(together) == essence(alone)
    assert [r.outcome for r in together.records] == ["finished", "aborted", *["finished"] * 3]
    assert [len(clients) for clients in tier.works] == [8, 8, 5, 5]


# ---- rows and models -------------------------------------------------------------------------


def _row(tier: Each, model: Arrays, cohort: Cohort, settings: Settings) -> dict[str, Any]:
    seat = cohort.seats(3)[0]
    site = umbel.Site(partition=0, partitions=3, settings={"a": 1})
    found = seat.train(model, site, settings)
    alone = tier.trainer.train(model, site, settings)
    assert found.metrics == alone.metrics
    assert found.weight == alone.weight
    return {n: (d.tobytes(), alone.deltas[n].tobytes()) for n, d in found.deltas.items()}


def test_a_row_counts_for_one_model_and_its_numbers_only() -> None:
    task, tier = Points(), Each(Points())
    cohort = Cohort(tier, task, InProcess(task))
    cohort.ahead = lambda: [0, 1, 2]
    model = cohort.arrays(0)
    other = {name: array + np.float32(1) for name, array in model.items()}
    numbers = Settings(round=1, seed=3, epochs=2)
    for given, settings in ((model, numbers), (other, numbers), (other, replace(numbers, round=2))):
        for one, alone in _row(tier, given, cohort, settings).values():
            assert one == alone
    assert tier.works == [[0, 1, 2]] * 3


def test_values_come_back_in_the_shape_and_dtype_of_their_arrays() -> None:
    model: dict[str, NDArray[Any]] = {
        "w": np.zeros((2, 3)),
        "steps": np.zeros(4, np.int64),
        "h": np.zeros((1, 2), np.float16),
        "b": np.zeros((), np.float32),
    }
    row = np.arange(9) / 8
    found = deltas(row, model)
    assert {n: (d.dtype.name, d.tolist()) for n, d in found.items()} == {
        "w": ("float64", [[0, 0.125, 0.25], [0.375, 0.5, 0.625]]),
        "h": ("float32", [[0.75, 0.875]]),
        "b": ("float32", 1.0),
    }


@pytest.mark.parametrize("reason", pb.Reason.values())
def test_a_cause_is_the_refusal_that_it_names(reason: pb.Reason) -> None:
    said = str(Refused(reason, "more: words"))
    found = refusal(said)
    assert (found.reason, str(found)) == (reason, said)
    assert refusal("more").reason == pb.REASON_TASK_FAILED
    assert reason_text(refusal("").reason) == "task failed"
