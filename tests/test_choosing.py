"""Which tier trains: what cannot is named with its cause, what is forced is forced."""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from umbel.protocol.errors import SettingsError
from umbel.simulation.engine.choosing import Candidate, choose
from umbel.simulation.engine.loop import Loop
from umbel.simulation.engine.tiers import candidates
from umbel.strategies.trainer import TaskTrainer
from umbel.tests.engine_works import NumpyTask, work
from umbel.tests.torch_works import TorchTask

if TYPE_CHECKING:
    from umbel import Site, Task
    from umbel.simulation.engine.work import Reduced, Work


class Named(Loop):
    """The loop under another name, slower by `pause` seconds a work."""

    def __init__(self, name: str, pause: float = 0.0) -> None:
        """Build the model."""
        super().__init__(NumpyTask())
        self.name, self.pause, self.closed = name, pause, False

    def reduce(self, work: Work) -> Reduced:
        """Train after a pause."""
        time.sleep(self.pause)
        return super().reduce(work)

    def close(self) -> None:
        """Note it."""
        self.closed = True


class Failing(Named):
    """Every client fails in it."""

    def reduce(self, work: Work) -> Reduced:
        """Train clients that there are not."""
        return super().reduce(replace(work, clients=work.clients + 10**5, partitions=10**6))


def sample() -> Work:
    return work(TaskTrainer(NumpyTask()).arrays())


def refuses() -> Any:
    raise SettingsError("model layer '3'", "a layer that has a kernel", "LSTM")


def test_the_faster_of_two_is_chosen_and_the_other_closed() -> None:
    slow, fast = Named("T3", 0.3), Named("T0")
    found = choose({"T3": Candidate(lambda: slow), "T0": Candidate(lambda: fast)}, sample())
    assert found.tier is fast
    assert (slow.closed, fast.closed) == (True, False)
    assert found.name == "T0"
    assert found.reason.startswith("tier T0 (native kernels): ")
    assert "; T3 " in found.reason
    assert found.figures["T0"].rate > found.figures["T3"].rate > 0


def test_who_cannot_says_why_and_who_was_not_tried_too() -> None:
    made: list[str] = []
    found = choose(
        {
            "T0": Candidate(refuses),
            "T1": Candidate(lambda: made.append("T1"), slow=True),  # type: ignore[arg-type,return-value]
            "T2": Candidate(lambda: made.append("T2"), skip="no GPU"),  # type: ignore[arg-type,return-value]
            "T3": Candidate(lambda: Named("T3")),
        },
        sample(),
        trainings=10,
    )
    assert found.name == "T3"
    assert "a layer that has a kernel, got 'LSTM'" in found.reason
    assert "T2 no GPU" in found.reason
    assert "T1 not tried, the run takes less than 60 s without" in found.reason
    assert made == []
    assert "\n" not in found.reason


def test_a_slow_one_is_tried_where_the_run_is_long() -> None:
    found = choose(
        {
            "T1": Candidate(lambda: Named("T1"), slow=True),
            "T3": Candidate(lambda: Named("T3", 0.2)),
        },
        sample(),
        trainings=10**6,
    )
    assert found.name == "T1"


def test_a_tier_at_which_all_fail_is_not_fast(capsys: pytest.CaptureFixture[str]) -> None:
    failing = Failing("T0")
    found = choose(
        {"T0": Candidate(lambda: failing), "T3": Candidate(lambda: Named("T3"))}, sample()
    )
    assert found.name == "T3"
    assert "T0 cannot" in found.reason
    assert failing.closed
    capsys.readouterr()


class Raising(NumpyTask):
    """Its data are there for some clients only."""

    def __init__(self, *there: int) -> None:
        """Name the clients that have data."""
        self.there = there

    def train_data(self, site: Site) -> Any:
        """Return one client's rows."""
        if site.index not in self.there:
            raise OSError(f"no file of client {site.index}")
        return super().train_data(site)


def test_a_task_that_fails_for_every_client_ends_the_trial() -> None:
    slower = Named("T0")
    table = {**candidates(Raising(), sample(), 1), "T0": Candidate(lambda: slower)}
    message = r"^task: expected a client that it can train, got .8 that fail: .*no file of client 0"
    with pytest.raises(SettingsError, match=message):
        choose(table, sample())
    assert slower.closed
    forced = choose(table, sample(), "T3")
    with closing(forced.tier) as tier:
        assert not tier.reduce(sample()).report.counted.any()


def test_a_task_that_fails_for_the_first_clients_goes_on_and_they_are_not_fast() -> None:
    task = Raising(7)
    first = replace(sample(), clients=np.array([0, 1, 2], np.int64))
    found = choose(candidates(task, first, 1), first)
    found.tier.close()
    assert found.name == "T3"
    assert found.figures["T3"].rate == 0


def test_forced_is_not_timed() -> None:
    said: list[str] = []
    found = choose({"T3": Candidate(lambda: Named("T3", 60))}, sample(), "T3", say=said.append)
    assert found.reason == "tier T3 (the task itself): asked for"
    assert said == ["making tier T3 (the task itself)"]


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ("T0", r"--tier T0: expected a task that it can train, got .*LSTM.*; --tier auto"),
        ("T9", r"--tier: expected one of T0, T3, auto, got 'T9'"),
    ],
)
def test_what_cannot_be_forced(wanted: str, message: str) -> None:
    table = {"T0": Candidate(refuses), "T3": Candidate(lambda: Named("T3"))}
    with pytest.raises(SettingsError, match=message):
        choose(table, sample(), wanted)


def test_no_tier_at_all_is_said() -> None:
    with pytest.raises(SettingsError, match="LSTM"):
        choose({"T0": Candidate(refuses)}, sample())


def test_workers_are_not_started_to_be_timed() -> None:
    pool, probe = Named("T3"), Named("T3")
    started: list[Named] = []

    def start() -> Named:
        started.append(pool)
        return pool

    table = {
        "T0": Candidate(lambda: Named("T0", 0.2)),
        "T3": Candidate(start, probe=lambda: probe, workers=3),
    }
    found = choose(table, sample())
    assert found.tier is pool
    assert probe.closed
    assert not pool.closed
    started.clear()
    table = {
        "T0": Candidate(lambda: Named("T0")),
        "T3": Candidate(start, probe=lambda: Named("T3", 0.2), workers=3),
    }
    assert choose(table, sample()).name == "T0"
    assert started == []


@pytest.mark.parametrize(("task", "others"), [(NumpyTask, {"T1", "T2"}), (TorchTask, {"T2"})])
def test_a_tasks_own_tiers_and_a_trial_that_leaves_nothing_behind(
    task: type[Task], others: set[str]
) -> None:
    cohort = work(TaskTrainer(task()).arrays())
    before = {name: array.copy() for name, array in cohort.models[0].items()}
    found = choose(candidates(task(), cohort, 2), cohort, trainings=100)
    with closing(found.tier) as tier:
        total = tier.reduce(cohort).total
    assert all(np.array_equal(before[name], array) for name, array in cohort.models[0].items())
    expected = Loop(task()).reduce(cohort)
    bound = 1e-5 * expected.weight * 2.0**expected.exponent
    assert np.abs(total - expected.total).max() <= bound
    assert {name for name, figure in found.figures.items() if figure.rate == 0} >= others
    assert set(found.figures) == {"T0", "T1", "T2", "T3"}


@pytest.mark.parametrize("wanted", ["T1", "T2"])
def test_a_model_of_numpy_has_no_torch_tier(wanted: str) -> None:
    table = candidates(NumpyTask(), sample(), 1)
    with pytest.raises(SettingsError, match=f"--tier {wanted}.*an nn.Module, got 'MLP'"):
        choose(table, sample(), wanted)
