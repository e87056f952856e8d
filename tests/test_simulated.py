"""The settings that only a simulation has: what they may be, and what each stands for."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

from umbel.protocol.errors import SettingsError
from umbel.protocol.plan import Params
from umbel.server.run_config import KEYS, SIMULATION
from umbel.server.settings import RunSettings
from umbel.simulation.simulated import Simulated

if TYPE_CHECKING:
    from pathlib import Path


def test_defaults_are_those_of_the_table() -> None:
    found = Simulated.of(KEYS, 7)
    assert (found.clients, found.tier, found.hand_over) == (7, "auto", "auto")
    assert found.workers == len(os.sched_getaffinity(0))
    assert (found.test_every, found.client_test_every) == (1, 0)


def test_each_arrives() -> None:
    said: dict[str, Any] = {
        "tier": "T1",
        "workers": 3,
        "hand-over": "rows",
        "test-every": 4,
        "client-test-every": 9,
    }
    found = Simulated.of({**KEYS, **said}, 7)
    assert [found.tier, found.workers, found.hand_over] == ["T1", 3, "rows"]
    assert [found.test_every, found.client_test_every] == [4, 9]
    assert set(said) <= set(SIMULATION)


def test_a_fleet_is_read_and_has_the_runs_clients(tmp_path: Path) -> None:
    file = tmp_path / "fleet.toml"
    file.write_text("[cohorts.all]\nshare = 1\nsamples = 10\nspeed = 0.5\nbandwidth = 1e6\n")
    said: dict[str, Any] = {"fleet": str(file), "buffer": 4, "staleness": "hinge 1 2"}
    found = Simulated.of({**KEYS, **said}, 7)
    assert (found.buffer, found.staleness) == (4, "hinge 1 2")
    devices = found.devices(3)
    assert devices is not None
    assert devices.clients == 7
    assert Simulated.of(KEYS, 7).devices(3) is None


def test_a_buffer_below_the_floor_is_refused() -> None:
    run = RunSettings(run="r", rounds=1, scheme="plain", params=Params(min_members=3))
    Simulated.of({**KEYS, "buffer": 4}, 7).check(run)
    with pytest.raises(SettingsError, match="buffer: expected at least 4, the run's floor, got 3"):
        Simulated.of({**KEYS, "buffer": 3}, 7).check(run)


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("tier", "t1", "one of T0, T1, T2, T3, auto"),
        ("hand-over", "", "one of auto, sum, rows"),
        ("workers", 1025, "0 to 1024"),
        ("test-every", -1, "0 to"),
        ("client-test-every", -1, "0 to"),
        ("buffer", -1, "0 to"),
        ("staleness", "linear", "constant, "),
    ],
)
def test_a_value_that_there_is_not_is_named(key: str, value: Any, expected: str) -> None:
    with pytest.raises(SettingsError, match=f"{key}: expected {expected}"):
        Simulated.of({**KEYS, key: value}, 7)
