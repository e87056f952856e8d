"""A real `umbel up` that is watched: accuracy falls, it pauses, a person decides, twice."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from umbel.protocol.errors import StateError
from umbel.server.run_directory import RunDirectory, list_runs
from umbel.tests.deciders import waiting
from umbel.tests.test_up_survives import _pid

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
UMBEL = (sys.executable, "-m", "umbel")
PROJECT = """[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
[project]
name = "watched"
version = "1.0.0"
[tool.hatch.build.targets.wheel]
packages = ["watched"]
[tool.flwr.app]
publisher = "example"
[tool.flwr.app.components]
serverapp = "watched.app:server"
clientapp = "watched.app:client"
[tool.umbel]
task = "watched.app:Points"
rounds = 400
pause-on = ["accuracy"]
"""
CODE = """
import time
from pathlib import Path

import numpy as np

import umbel

SAID = Path({said!r})


class Points(umbel.Task):
    optimizer = umbel.SGD(lr=0.1)

    def model(self):
        return umbel.MLP(4, 3, 2)

    def train_data(self, site):
        time.sleep(0.1)  # a round is longer than a test
        x = np.random.default_rng(site.index).normal(size=(24, 4)).astype(np.float32)
        return x, (x[:, 0] > 0.2).astype(np.int64)

    def test_data(self):
        return np.zeros((1, 4), np.float32), np.zeros(1, np.int64)

    def evaluate(self, model, data):
        correct = int(SAID.read_text())
        return umbel.Metrics(examples=100, correct=correct, loss=0.0)


client = umbel.client_app(Points)
server = umbel.server_app(Points, umbel.FedAvg())
"""


@pytest.fixture
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A state directory in which nothing runs at the end."""
    folder = tmp_path_factory.mktemp("h")
    yield folder
    subprocess.run([*UMBEL, "down"], env=_env(folder), check=False, capture_output=True)


def _env(home: Path) -> dict[str, str]:
    return os.environ | {"UMBEL_HOME": str(home)}


def _until(holds: Callable[[], Any], up: subprocess.Popen[str], seconds: float = 180.0) -> Any:
    end = time.monotonic() + seconds
    while not (found := holds()):
        assert up.poll() is None, "`umbel up` has ended"
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.1)
    return found


def _review(home: Path, *arguments: str) -> str:
    said = subprocess.run(
        [*UMBEL, "runs", "review", *arguments], env=_env(home), check=True, capture_output=True,
        text=True,
    )  # fmt: skip
    return said.stdout


def _tested(home: Path, at_least: int, accuracy: float) -> bool:
    """Tell whether so many models were found to have this accuracy."""
    for run in list_runs(home):
        with suppress(StateError), RunDirectory.open(home, run) as directory:
            found = [r.metrics.get("test.accuracy") for r in directory.ledger.rounds()]
            return found.count(accuracy) >= at_least
    return False


def _kinds(home: Path, run: str) -> list[str]:
    """Return the kinds of what the ledger says of waiting and deciding, in order."""
    with RunDirectory.open(home, run) as directory:
        kinds = [event.kind for event in directory.ledger.events()]
    return [kind for kind in kinds if kind in {"paused", "decision", "went on"}]


def _waits(home: Path, run: str) -> None:
    """Check that no round begins for two seconds, and that every device keeps its session."""
    with RunDirectory.open(home, run) as directory:
        rounds = directory.ledger.rounds()
        time.sleep(2)
        assert len(directory.ledger.rounds()) == len(rounds)
        assert not [event for event in directory.ledger.events() if event.kind == "lost"]


def _app(folder: Path, said: Path) -> Path:
    (folder / "watched").mkdir(parents=True)
    (folder / "pyproject.toml").write_text(PROJECT)
    (folder / "watched" / "__init__.py").write_text("")
    (folder / "watched" / "app.py").write_text(CODE.format(said=str(said)))
    return folder


def test_a_federation_pauses_goes_on_pauses_and_ends_by_two_decisions(home: Path) -> None:
    said = home / "accuracy"
    said.write_text("90")
    arguments = ["up", str(_app(home / "app", said)), "--edge", "3", "--gpu", "0"]
    with subprocess.Popen(
        [*UMBEL, *arguments], env=_env(home), cwd=home, text=True, start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    ) as up:  # fmt: skip
        try:
            _until(lambda: _tested(home, 2, 0.9), up)
            (run,) = list_runs(home)
            ledger = home / "runs" / run / "ledger.sqlite"
            said.write_text("60")
            (first,) = _until(lambda: waiting(ledger), up)
            assert (first.signal, first.number, first.value) == ("accuracy", 1, 0.6)
            _waits(home, run)
            said.write_text("92")
            told = json.loads(_review(home, run, "--format", "json"))
            assert told["waits"]
            _review(home, run, "--approve", "1", "--why", "the test set was exchanged")
            _until(lambda: _tested(home, 2, 0.92), up)
            said.write_text("50")
            (second,) = _until(lambda: waiting(ledger), up)
            assert second.number == 2
            os.kill(_until(lambda: _pid(home, "serverapp"), up), signal.SIGKILL)
            _until(lambda: _kinds(home, run).count("paused") == 3, up)  # its successor waits, too
            assert [item.number for item in waiting(ledger)] == [2]
            _review(home, run, "--reject", "2", "--why", "so be it", "--by", "ann")
            output = up.communicate(timeout=120)[0]
        finally:
            up.kill()
    assert up.returncode == 3, output[-2000:]
    assert "the run was ended: ann rejected item 2" in output.splitlines()[-1]
    assert "paused before round" in output
    with RunDirectory.open(home, run) as directory:
        directory.ledger.verify()
        done = [r for r in directory.ledger.rounds() if r.outcome == "finished"]
        assert {len(record.survivors) for record in done} == {3}
    assert _kinds(home, run) == [
        "paused", "decision", "went on", "paused", "paused", "decision"
    ]  # fmt: skip
