"""What a run watches: what it says of it, and what it refuses to wait for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from umbel.protocol.errors import SettingsError
from umbel.server.alarms import false_pause, limit
from umbel.server.run_plan import RunPlan
from umbel.server.watching import introduction
from umbel.tests.test_watched_runs import EXAMPLE, LOST, fleet, ledger, planned, run

if TYPE_CHECKING:
    from pathlib import Path


def test_a_run_does_not_wait_for_what_its_plan_does_not_know(tmp_path: Path) -> None:
    blind = str(planned(tmp_path, expect={"duration": None}))
    said = {**LOST, "fleet": str(fleet(tmp_path)), "plan": blind, "pause-on": "site,duration"}
    with pytest.raises(SettingsError) as caught:
        run(tmp_path, said)
    assert str(caught.value) == (
        "pause-on: expected signals of which the plan says what to expect, got 'duration'; "
        "leave it out: it cannot pause"
    )
    assert not ledger(tmp_path).exists()


def test_a_simulation_in_which_no_time_passes_does_not_pause_on_it(tmp_path: Path) -> None:
    timeless = str(planned(tmp_path))
    said = {"clients": 20, "cohort": 12, "rounds": 3, "plan": timeless, "pause-on": "duration"}
    with pytest.raises(SettingsError, match=r"pause-on: .*, got 'duration'; no time passes"):
        run(tmp_path, said)


def test_a_run_says_what_it_watches_and_how_often_in_vain() -> None:
    plan = RunPlan.read(EXAMPLE)
    # Half of 5 % for two sides of a duration, half for two sites; a try of 1,000 misses its quorum.
    chance = 4 * false_pause(1002, limit(1002, 0.05 / 2 / 2))
    assert introduction(plan, ("duration", "site"), 1000) == (
        "watched: duration, participation, site, rejections, accuracy, quorum, retries, bytes; "
        f"pauses on duration, site, by chance with at most {chance:.2%} in 1000 rounds; "
        "any other signal is raised by chance with 70.8%"
    )
    assert introduction(None, ("accuracy",), 10) == "watched: accuracy; pauses on accuracy"
    assert introduction(None, (), 10) == ""
