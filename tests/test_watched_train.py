"""A watched run over a real core and sessions: it pauses with its devices, and goes on or ends."""

from __future__ import annotations

import time
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any

import pytest

import umbel
from umbel.clients.child import InProcess
from umbel.protocol.errors import RoundFailed
from umbel.server.flower_train import train
from umbel.server.ledger import Ledger
from umbel.server.run_feed import RunFeed
from umbel.strategies.app import load_task
from umbel.tests.deciders import WHY, deciding
from umbel.tests.test_flower_train import Nodes, federation, home
from umbel.tests.tested_app import written

if TYPE_CHECKING:
    from pathlib import Path

    from umbel.simulation.dev_federation import DevFederation
    from umbel.strategies.app import AppRef

__all__ = ["federation", "home"]  # pytest's


class Patient(InProcess):
    """A device that trains so long that a test of the last model is done before."""

    def __init__(self, app: AppRef) -> None:
        """Do not watch this one's own evaluations."""
        task: Any = load_task(app)
        task.watched = False
        super().__init__(task)

    def train(self, arrays: Any, site: Any, settings: Any) -> Any:
        """Wait, and train."""
        time.sleep(0.05)
        return super().train(arrays, site, settings)


def run(grid: Nodes, app: AppRef, values: list[float]) -> Any:
    """Run the app of three devices; the server's tests find these accuracies, then the last."""
    found = chain(values, repeat(values[-1]))
    config: dict[str, Any] = {"clients": 3, "rounds": 12, "weight-cap": 40, "pause-on": "accuracy"}
    return train(
        grid, umbel.FedAvg(), task=load_task(app), config=config,
        evaluate=lambda _arrays: {"accuracy": next(found)},
    )  # fmt: skip


def test_accuracy_that_falls_pauses_a_deployment_and_its_sessions_stay(
    federation: DevFederation, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UMBEL_RUN", "watched")
    app = written(tmp_path, "tested_app_of_a_watched_run")
    grid = Nodes(federation, lambda: Patient(app))
    path = home / "runs" / "watched" / "ledger.sqlite"
    with deciding(path, True) as found:
        result = run(grid, app, [0.5, 0.9, 0.6, 0.6, 0.6])
    (item,) = found
    assert (item.signal, item.value) == ("accuracy", 0.6)
    assert item.low == pytest.approx(0.85)
    assert [r.outcome for r in result.records if r.phase == "train"] == ["finished"] * 12
    assert {len(record.survivors) for record in result.records} == {3}
    assert len(grid.devices) == 3  # nobody was invited twice: each waited in its session
    with Ledger(path, read_only=True) as ledger:
        kinds = ("review", "paused", "decision", "went on")
        assert [e.kind for e in ledger.events() if e.kind in kinds] == list(kinds)
        ledger.verify()


def test_a_rejected_item_ends_a_deployment_with_its_cause(
    federation: DevFederation, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UMBEL_RUN", "rejected")
    app = written(tmp_path, "tested_app_of_a_rejected_run")
    grid = Nodes(federation, lambda: Patient(app))
    path = home / "runs" / "rejected" / "ledger.sqlite"
    with (
        deciding(path, False),
        pytest.raises(RoundFailed, match=rf"ann rejected item 1, .*accuracy 0.6.*{WHY}"),
    ):
        run(grid, app, [0.9, 0.6])
    with RunFeed.of(home, "rejected") as feed:
        assert not feed.over
        assert feed.said[0].startswith("item 1, round ")
        assert feed.said[1] == f"item 1: ann rejected it: {WHY}"
        assert feed.items[0].state == "rejected"
