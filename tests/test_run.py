"""`umbel.simulate`: who sets a setting, what is refused before anything is written, what comes."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import umbel
from umbel.clients.policy import Policy
from umbel.protocol.errors import SettingsError, TooFewMembers
from umbel.server import run_rule
from umbel.server.run_config import KEYS, TRAINING
from umbel.server.run_directory import RunDirectory
from umbel.simulation.run import plan

if TYPE_CHECKING:
    from pathlib import Path


class Blobs(umbel.Task):
    """Two classes on a line."""

    optimizer = umbel.SGD(lr=0.3)

    def model(self) -> umbel.LogisticRegression:
        """Return three inputs, two classes."""
        return umbel.LogisticRegression(3, 2)

    def train_data(self, site: umbel.Site) -> tuple[Any, Any]:
        """Return 40 points."""
        return self._points(40, site.partition or 0)

    def test_data(self) -> tuple[Any, Any]:
        """Return 200 points."""
        return self._points(200, 99)

    @staticmethod
    def _points(count: int, seed: int) -> tuple[Any, Any]:
        rng = np.random.default_rng([5, seed])
        labels = rng.integers(2, size=count)
        centres = np.stack([2.0 * labels - 1] * 3, axis=1)
        return (centres + rng.normal(size=(count, 3))).astype(np.float32), labels


def app(folder: Path, config: str = "", own: str = "") -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "pyproject.toml").write_text(
        f'[tool.flwr.app.config]\n{config}\n[tool.umbel]\ntask = "x:T"\n{own}\n'
    )
    return folder


# ---- a task, in this process -----------------------------------------------------------------


def test_a_task_runs_where_it_is(tmp_path: Path) -> None:
    seen: list[int] = []
    options = umbel.Options(clients=4, rounds=3, run="blobs", home=tmp_path)
    result = umbel.simulate(Blobs(), options, lambda record: seen.append(record.round))
    assert isinstance(result, umbel.Result)
    assert result.failure is None
    assert seen == [1, 2, 3, 3]  # the last is the evaluation of the last model
    assert result.accuracy is not None
    assert result.accuracy > 0.9  # the best is Phi(sqrt(3)) = 0.958
    assert result.security == "on (development CA)"
    assert result.path == tmp_path / "runs" / "blobs"
    assert len(result.model) == 2


def test_a_run_id_begins_with_the_tasks_name() -> None:
    assert plan(Blobs()).settings.run.startswith("Blobs-")
    assert plan(Blobs()).settings.run != plan(Blobs()).settings.run


@pytest.mark.parametrize(
    ("folder", "start"),
    [
        ("my app", "myapp-2"),
        ("_hidden", "hidden-2"),
        ("-x", "x-2"),
        ("été", "t-2"),
        ("日本", "run-2"),
        ("x" * 99, "x" * 40 + "-2"),
    ],
)
def test_any_directorys_name_gives_an_id(folder: str, start: str, tmp_path: Path) -> None:
    run = plan(app(tmp_path / folder)).settings.run
    assert run.startswith(start)
    assert len(run) <= 64


@pytest.mark.parametrize("wrong", [Blobs, 7, None])
def test_what_is_no_app_is_named(wrong: Any) -> None:
    with pytest.raises(SettingsError, match=r"app: expected an app directory or a umbel\.Task"):
        umbel.simulate(wrong)


# ---- precedence ------------------------------------------------------------------------------


def rounds(folder: Path, options: umbel.Options | None = None) -> int:
    return plan(folder, options).settings.rounds


def test_flag_over_umbels_table_over_flowers_over_default(tmp_path: Path) -> None:
    folder = tmp_path / "a"
    assert rounds(app(folder)) == KEYS["rounds"] == 10
    assert rounds(app(folder, "rounds = 2")) == 2
    assert rounds(app(folder, "rounds = 2", "rounds = 3")) == 3
    given = umbel.Options(settings={"rounds": 4})
    assert rounds(app(folder, "rounds = 2", "rounds = 3"), given) == 4
    both = umbel.Options(rounds=5, settings={"rounds": 4})
    assert rounds(app(folder, "rounds = 2", "rounds = 3"), both) == 5


@pytest.mark.parametrize(
    ("key", "value", "where"),
    [
        ("seed", 7, lambda p: p.settings.seed),
        ("cohort", 4, lambda p: p.settings.cohort),
        ("attempts", 2, lambda p: p.settings.attempts),
        ("deadline", 60.0, lambda p: p.settings.deadline),
        ("trip", 6.0, lambda p: p.settings.trip),
        ("dropout", 1e-9, lambda p: p.settings.dropout),
        ("rejoin", 5.0, lambda p: p.settings.rejoin),
        ("value-range", 0.5, lambda p: p.settings.params.value_range),
        ("weight-cap", 64, lambda p: p.settings.params.weight_cap),
        ("min-members", 4, lambda p: p.settings.params.min_members),
        ("min-survivors", 4, lambda p: p.settings.params.min_survivors),
        ("alpha", 0.2, lambda p: p.settings.params.alpha),
        ("delta", 0.05, lambda p: p.settings.params.delta),
        ("server-learning-rate", 0.5, lambda p: p.settings.rule.server_learning_rate),
        ("clients", 6, lambda p: p.clients),
        ("rounds", 6, lambda p: p.settings.rounds),
        ("test-every", 5, lambda p: p.simulated.test_every),
        ("client-test-every", 5, lambda p: p.simulated.client_test_every),
    ],
)
def test_every_setting_arrives(key: str, value: Any, where: Any, tmp_path: Path) -> None:
    default = where(plan(Blobs()))
    assert default == ((KEYS[key] or None) if key in {"cohort", "trip"} else KEYS[key])
    assert where(plan(Blobs(), umbel.Options(settings={key: value}))) == value
    assert where(plan(app(tmp_path / "a", own=f"{key} = {value}"))) == value


def test_no_setting_is_left_out() -> None:
    (mark,) = test_every_setting_arrives.pytestmark
    step = set(run_rule.KEYS) - {"server-learning-rate"}  # these are test_run_rule.py's
    assert {key for key, _, _ in mark.args[1]} == set(KEYS) - step - {
        *("evaluators",),  # a server's
        *("histogram", "count-clipped"),  # test_counted.py's
        *("plan", "pause-on"),  # test_watched_runs.py's
        *("tier", "workers", "hand-over", "fleet", "buffer", "staleness"),  # test_simulated.py's
    }


def test_the_rest_is_the_tasks_and_travels(tmp_path: Path) -> None:
    folder = app(tmp_path / "a", 'lr = 0.5\ncolour = "red"\n[tool.flwr.app.config.deep]\nx = 1')
    found = plan(folder, umbel.Options(seed=3, settings={"deep.x": 2, "batch-size": 4}))
    config = {"lr": 0.5, "colour": "red", "deep.x": 2, "batch-size": 4, "seed": 3}
    assert found.settings.config == config
    assert set(TRAINING) == {"lr", "local-epochs", "batch-size", "proximal-mu"}


# ---- what is refused, before anything is written ---------------------------------------------


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"bogus": 1}, "run-config: expected one of alpha, .*, workers, got 'bogus'"),
        ({"round": 1}, "got 'round'"),
        ({"rounds": 2.5}, "rounds: expected int, got 2.5"),
        ({"rounds": "2"}, "rounds: expected int, got '2'"),
        ({"rounds": True}, "rounds: expected int, got True"),
        ({"deadline": "soon"}, "deadline: expected float, got 'soon'"),
        ({"deadline": False}, "deadline: expected float, got False"),
        ({"rounds": 0}, "rounds: expected 1 or more, got 0"),
        ({"attempts": 0}, "attempts: expected 1 or more, got 0"),
        ({"deadline": 0}, r"deadline: expected seconds above 0, got 0\.0"),
        ({"clients": 0}, "clients: expected at least 3, .*, got 0"),
        ({"clients": 2}, "clients: expected at least 3, .*, got 2"),
        ({"cohort": 6}, "clients: expected at least 6, .*, got 5"),
        ({"cohort": 2}, "cohort: expected at least min-members, 3, got 2"),
        ({"lr": "fast"}, r"config\.lr: expected a finite number above 0, got 'fast'"),
        ({"lr": 0}, r"config\.lr: expected a finite number above 0, got 0"),
        ({"lr": float("nan")}, r"config\.lr: expected a finite number above 0, got nan"),
        ({"local-epochs": 0}, r"config\.local-epochs: expected an integer of at least 1, got 0"),
        ({"batch-size": 1.5}, r"config\.batch-size: expected an integer of at least 1, got 1\.5"),
        ({"seed": -1}, r"config\.seed: expected an integer of at least 0, got -1"),
        ({"alpha": 1.0}, r"params\.alpha: expected a share in \[0, 1\), got 1\.0"),
        ({"weight-cap": 0}, "params.weight-cap: expected 1 or more, got 0"),
        ({"value-range": -1.0}, "params.value-range: expected a number above 0"),
        ({"server-learning-rate": 0.0}, "learning"),
    ],
)
def test_a_bad_value_is_named(settings: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=words):
        umbel.simulate(Blobs(), umbel.Options(settings=settings, home=tmp_path))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("run", ["", "a/b", ".hidden", "a b", "x" * 65])
def test_a_bad_run_id_is_named(run: str, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="run"):
        umbel.simulate(Blobs(), umbel.Options(run=run or "-", home=tmp_path))


def test_a_bad_drop_is_named(tmp_path: Path) -> None:
    options = umbel.Options(drops=["masked:1@11"], home=tmp_path)
    with pytest.raises(SettingsError, match="--drop-at: expected a round from 1 to 10, got 11"):
        umbel.simulate(Blobs(), options)
    assert list(tmp_path.iterdir()) == []


# ---- how a run ends --------------------------------------------------------------------------


def test_a_named_abort_is_a_result_with_its_cause(tmp_path: Path) -> None:
    options = umbel.Options(clients=4, rounds=3, drops=["masked:1"], run="r", home=tmp_path)
    result = umbel.simulate(Blobs(), options)
    assert isinstance(result.failure, TooFewMembers)
    assert "4 members tolerate 0 losses" in str(result.failure)
    assert [record.outcome for record in result.records] == ["finished", "aborted"]
    with RunDirectory.open(tmp_path, "r") as directory:
        assert directory.latest() == 1
        stored = directory.read_round(1)
    assert all(np.array_equal(stored[name], result.model[name]) for name in stored)


def test_a_policy_is_every_clients(tmp_path: Path) -> None:
    strict = Policy(min_members=10, min_survivors=3)
    result = umbel.simulate(Blobs(), umbel.Options(policy=strict, home=tmp_path))
    assert result.failure is not None
    words = "refused: policy: the run has 3, secure.min_members is 10"
    assert sorted(result.refusals) == [f"client {i}: {words}" for i in range(5)]


def test_an_app_runs_in_a_child_unless_told_otherwise(tmp_path: Path) -> None:
    folder = app(tmp_path / "a")
    (folder / "x.py").write_text(PIDS)
    pids = []
    for here in (False, True):
        umbel.simulate(folder, umbel.Options(rounds=1, in_process=here, home=tmp_path / f"{here}"))
        pids.append({int(line) for line in (folder / "pids").read_text().split()})
        (folder / "pids").unlink()
    assert len(pids[0]) == 1
    assert pids == [pids[0] - {os.getpid()}, {os.getpid()}]


PIDS = """
import os, pathlib
import numpy as np
import umbel

class T(umbel.Task):
    def model(self):
        return umbel.LogisticRegression(2, 2)

    def train_data(self, site):
        with open(pathlib.Path(__file__).parent / "pids", "a") as file:
            print(os.getpid(), file=file)
        return np.ones((4, 2), np.float32), np.zeros(4, int)
"""
