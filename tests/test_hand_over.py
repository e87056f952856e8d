"""Which runs need a row of every client, which get by with the sum, and what the log says of it."""

from __future__ import annotations

from typing import Any

import pytest

from umbel.protocol.errors import SettingsError
from umbel.server.settings import RunSettings
from umbel.simulation.engine.hand_over import HandOver, hand_over
from umbel.strategies.robust_rules import Robust
from umbel.strategies.server_rules import RULES, FedAvg


def run(**changes: Any) -> RunSettings:
    """Return the settings of a run."""
    return RunSettings(run="r", rounds=1, **({"scheme": "plain"} | changes))


@pytest.mark.parametrize("name", sorted(RULES))
def test_no_rule_over_the_mean_needs_rows(name: str) -> None:
    found = hand_over(run(rule=RULES[name]()))
    assert (found.kind, found.sessions) == ("sum", False)
    assert str(found) == f"hand-over sum: {name} needs no single update"


MEDIAN = FedAvg(robust=Robust(rule="median", byzantine=1))
NEEDS: dict[str, tuple[dict[str, Any], dict[str, bool], str]] = {
    "masks": ({"scheme": "A"}, {}, "rows over sessions: secure aggregation masks each update"),
    "rule": ({"rule": MEDIAN}, {}, "rows: median compares single updates"),
    "policy": ({}, {"policy": True}, "rows over sessions: a device's policy checks and clips its"),
    "losses": ({}, {"drops": True}, "rows over sessions: clients are lost between messages"),
    "both": ({"rule": MEDIAN}, {"drops": True}, "rows over sessions: clients are lost between"),
}


@pytest.mark.parametrize("case", sorted(NEEDS))
def test_what_needs_rows_gets_them_and_refuses_a_sum(case: str) -> None:
    changes, more, said = NEEDS[case]
    for wanted in ("auto", "rows"):
        assert str(hand_over(run(**changes), wanted, **more)).startswith(f"hand-over {said}")
    because = said.partition(": ")[2]
    with pytest.raises(SettingsError, match=f"hand-over: expected rows, because {because}"):
        hand_over(run(**changes), "sum", **more)


def test_rows_may_be_asked_for() -> None:
    assert hand_over(run(), "rows") == HandOver("rows", sessions=True, why="asked for")
    assert hand_over(run(), "sum").kind == "sum"
    with pytest.raises(SettingsError, match="one of auto, sum, rows, got 'all'"):
        hand_over(run(), "all")
