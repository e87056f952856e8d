"""The event beside a simulated round's entry: the fleet's cohorts and the clock's times."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from umbel.protocol.layout import MessageLayout
from umbel.protocol.manifest import Manifest
from umbel.server.client_times import Told
from umbel.server.run_directory import RunDirectory
from umbel.simulation.clock.decision import Decision, Outcome
from umbel.simulation.engine.answers import Groups, answers
from umbel.simulation.federation import node_id
from umbel.simulation.fleet.devices import Load
from umbel.simulation.fleet.toml import read
from umbel.strategies.trainer import TaskTrainer
from umbel.tests.simulated_runs import Points, run

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from umbel.server.ledger import Event, RoundRecord

FLEET = """
seed = 3
[cohorts.phones]
count = 15
samples = { uniform = [20, 60] }
speed = 0.05
downlink = 2e3
uplink = 5e2
dropout = 0.1
crash = 0.1
[cohorts.servers]
count = 5
samples = 30
speed = 0.02
bandwidth = 1e4
"""


def ran(home: Path, settings: dict[str, Any]) -> list[tuple[Event, RoundRecord]]:
    (home / "fleet.toml").write_text(FLEET)
    known = {"rounds": 6, "cohort": 8, "dropout": 0.3, "fleet": str(home / "fleet.toml")}
    run(home, known | settings)
    with RunDirectory.open(home, "r") as directory:
        directory.ledger.verify()
        events = [e for e in directory.ledger.events() if e.kind == "clients"]
        return list(zip(events, directory.ledger.rounds(), strict=True))


def test_times_are_those_of_the_devices(tmp_path: Path) -> None:
    found = ran(tmp_path, {"local-epochs": 2})
    fleet = read(tmp_path / "fleet.toml").fleet(20, 0)
    number = {node_id(0, client).hex(): client for client in range(20)}
    trainer, late = TaskTrainer(Points()), 0
    message = MessageLayout(Manifest.of(trainer.arrays(0)), trainer.declared("train"), "train")
    load = Load(down=message.manifest.total_bytes, up=message.total_bytes, epochs=2)
    for event, record in found:
        told = Told.of(event)
        ids = np.array([number[node] for node in record.roster])
        asked, metrics = sum(told.asked), record.metrics
        times = fleet.times(ids, record.round, load)
        assert told.ready == pytest.approx((times.down + times.train).tolist(), abs=6e-4)
        assert told.sent == pytest.approx(times.up.tolist(), abs=6e-4)
        spent = np.array(told.ready) + np.array(told.sent)
        length = metrics["clock.closed"] - metrics["clock.opened"]
        assert spent.max() == pytest.approx(length, abs=2e-3)
        assert told.names == ("phones", "servers")
        assert told.sites == tuple(int(client >= 15) for client in ids)
        for name, counts in told.fates.items():
            assert sum(counts) == metrics[f"clients.{name}"]
        assert asked == metrics["clients.invited"]
        assert told.fates["lost"][1] == told.fates["crashed"][1] == 0
        assert len(told.slow) == metrics["clients.late"]
        assert not set(told.slow) & set(record.roster)
        late += len(told.slow)
    assert late


def test_an_asynchronous_round_has_counts_only(tmp_path: Path) -> None:
    for event, record in ran(tmp_path, {"buffer": 4, "dropout": 0.0}):
        assert set(event.detail) == {"names", "asked", *(o.name.lower() for o in Outcome)}
        assert sum(Told.of(event).fates["used"]) == len(record.roster) == 4


def test_no_time_says_nothing_and_one_fleet_is_one_group() -> None:
    ids = np.arange(3)
    outcomes = np.array([Outcome.USED, Outcome.USED, Outcome.LATE], np.uint8)
    seconds, sending = np.array([1.0, 2.5, 2.5]), np.array([0.25, 0.5, 9.0])
    base: dict[str, Any] = {
        "round": 1, "invited": ids, "outcomes": outcomes, "seconds": seconds,
        "received": ids, "sent": ids,
    }  # fmt: skip

    def names(clients: Sequence[int]) -> tuple[str, ...]:
        return tuple(map(str, clients))

    assert answers(Decision(opened=0.0, closed=0.0, **base), Groups(), names) == {}
    timed = Decision(opened=4.0, closed=6.5, sending=sending, **base)
    assert answers(timed, Groups(), names) == {
        "names": '[""]', "asked": "3", "used": "2", "late": "1", "lost": "0", "offline": "0",
        "crashed": "0", "sites": "0 0", "ready": "750 2000", "sent": "250 500", "slow": "2",
    }  # fmt: skip
