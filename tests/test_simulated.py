"""The settings that only a simulation has: what they may be, and what each stands for."""

from __future__ import annotations

import os
from typing import Any

import pytest

from umbel.protocol.errors import SettingsError
from umbel.server.run_config import KEYS, SIMULATION
from umbel.simulation.simulated import Simulated


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


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("tier", "t1", "one of T0, T1, T2, T3, auto"),
        ("hand-over", "", "one of auto, sum, rows"),
        ("workers", 1025, "0 to 1024"),
        ("test-every", -1, "0 to"),
        ("client-test-every", -1, "0 to"),
    ],
)
def test_a_value_that_there_is_not_is_named(key: str, value: Any, expected: str) -> None:
    with pytest.raises(SettingsError, match=f"{key}: expected {expected}"):
        Simulated.of({**KEYS, key: value}, 7)
