"""Whole runs whose server tests its models: `umbel.train` over a real core, sessions and processes.

The order of things is read off the ledger and made by files, never by the clock.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import umbel
from umbel.clients.child import InProcess
from umbel.protocol.errors import StateError
from umbel.server.flower_train import train
from umbel.server.ledger import Ledger
from umbel.server.run_feed import RunFeed
from umbel.strategies.app import load_task
from umbel.tests.test_flower_train import Nodes, federation, home, rows
from umbel.tests.tested_app import written

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import pytest

    from umbel.simulation.dev_federation import DevFederation
    from umbel.strategies.app import AppRef

__all__ = ["federation", "home"]  # pytest's


class Gated(InProcess):
    """A device that begins its second training when the server has begun a test."""

    def __init__(self, app: AppRef) -> None:
        """Do not watch this one's own evaluations."""
        task: Any = load_task(app)
        task.watched = False
        super().__init__(task)
        self._seen = app.directory / "seen"

    def train(self, arrays: Any, site: Any, settings: Any) -> Any:
        """Wait, and train."""
        while settings.round > 1 and not self._seen.exists():
            time.sleep(0.01)
        return super().train(arrays, site, settings)


def when(ledger: Path, holds: Callable[[Ledger], bool], then: Callable[[], object]) -> None:
    """Do something as soon as a run's ledger says something."""

    def look() -> None:
        while True:
            time.sleep(0.02)
            with suppress(StateError), Ledger(ledger, read_only=True) as opened:  # being made
                if holds(opened):
                    break
        then()

    threading.Thread(target=look, daemon=True).start()


def run(federation: DevFederation, app: AppRef, rounds: int) -> Any:
    """Run the app of three devices."""
    config = {"clients": 3, "rounds": rounds, "lr": 0.3, "weight-cap": 40}
    grid = Nodes(federation, lambda: Gated(app))
    return train(grid, umbel.FedAvg(), task=load_task(app), config=config)


def test_rounds_go_on_while_a_slow_test_runs(
    federation: DevFederation, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UMBEL_RUN", "slow")
    app = written(tmp_path, "tested_app_of_a_slow_run")
    (tmp_path / "hold").touch()
    ledger = home / "runs" / "slow" / "ledger.sqlite"
    when(ledger, lambda of: 3 in of.models(), (tmp_path / "hold").unlink)
    result = run(federation, app, 5)
    with Ledger(ledger, read_only=True) as opened:
        assert opened.run().config["server-test"] is True
    ((first,),) = rows(result.path, "SELECT seq FROM event WHERE kind = 'tested' AND round = 1")
    ((third,),) = rows(result.path, "SELECT seq FROM round WHERE round = 3 AND phase = 'train'")
    assert first > third  # the test of round 1 ended after round 3
    tested = [r.round for r in result.records if "test.accuracy" in r.metrics]
    assert tested[0] == 1
    assert tested[-1] == 5
    assert 2 not in tested  # it waited, and 3 took its place
    ((finished,),) = rows(result.path, "SELECT count(*) FROM round WHERE outcome = 'finished'")
    assert finished == 6


def test_a_last_model_that_was_not_tested_is_tested_on_resume(
    federation: DevFederation, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UMBEL_RUN", "again")
    app = written(tmp_path, "tested_app_of_a_stopped_run")
    (tmp_path / "hold").touch()
    ledger = home / "runs" / "again" / "ledger.sqlite"
    when(
        ledger,
        lambda of: bool(of.finished("evaluate")),
        lambda: os.kill(os.getpid(), signal.SIGTERM),
    )
    first = run(federation, app, 1)
    assert "test.accuracy" not in first.records[0].metrics
    with RunFeed.of(home, "again") as feed:
        assert not feed.over
    (tmp_path / "hold").unlink()
    monkeypatch.setenv("UMBEL_RESUME", "1")
    second = run(federation, app, 1)
    assert [(r.round, r.phase) for r in second.records] == [(1, "train"), (1, "evaluate")]
    assert 0 < second.records[0].metrics["test.accuracy"] <= 1
    with RunFeed.of(home, "again") as feed:
        assert feed.over
