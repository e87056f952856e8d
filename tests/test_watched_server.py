"""A real `umbel server up --plan`: it leaves its plan, is killed while it waits, and goes on."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest

from umbel.server.run_directory import RunDirectory
from umbel.tests import test_joining
from umbel.tests.test_joining import (
    DIGITS,
    UP,
    Place,
    hosts,
    joined,
    places,
    refused,
    until,
)

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["hosts", "places"]  # pytest's
pytestmark = [*test_joining.pytestmark, pytest.mark.timeout(600)]
FLEET = """
[cohorts.presses]
count = 3
site = "hall"
samples = 10
speed = 10.0
bandwidth = 1e6
[sites.hall]
"""
"""A device would train for a hundred seconds: the real one takes a tenth of one."""


def items(server: Place, run: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(
        server.call("runs", "review", run, "--format", "json")
    )["items"]
    return found


def waits(server: Place, run: str) -> bool:
    told: bool = json.loads(server.call("runs", "review", run, "--format", "json"))["waits"]
    return told


def test_a_server_with_a_plan_pauses_is_killed_waits_again_and_goes_on(
    places: tuple[Place, tuple[Place, ...]], tmp_path: Path
) -> None:
    (server, devices), log = places, tmp_path / "server.log"
    fleet, plan = tmp_path / "fleet.toml", tmp_path / "plan.json"
    fleet.write_text(FLEET)
    floors = ("--clients", "3", "-c", "min-members=3", "-c", "min-survivors=3")
    server.call(
        "plan", str(fleet), "--app", str(DIGITS), *floors, "-c", "rounds=12", "-o", str(plan)
    )
    said = refused(server, "server", "up", "--names", "10.213.78.1", "--plan", str(plan))
    assert said.startswith("umbel: --plan: expected an app")
    others = [word if word != "3" else "4" for word in UP]
    said = refused(server, "server", "up", *others, "-c", "rounds=12", "--plan", str(plan))
    assert "plan: clients: expected that of the run, 4, got 3" in said

    watched = ("-c", "rounds=12", "-c", "pause-on=duration", "--plan", str(plan))
    command = ("server", "up", *UP, *watched)
    running = server.start(log, *command)
    joined(devices, log)
    until(lambda: "paused before round" in log.read_text(), "the pause", log, 180.0)
    (run,) = re.findall(r"^(digits-\S+): 3 clients", log.read_text(), re.MULTILINE)
    assert "watched: duration" in log.read_text()
    assert waits(server, run)
    (item,) = [item for item in items(server, run) if item["pauses"]]
    assert (item["signal"], item["round"]) == ("duration", 2)  # far below the plan, twice
    running.kill()
    running.wait()
    before = log.read_text()

    running = server.start(log, *command)
    until(
        lambda: "paused before round" in log.read_text().removeprefix(before),
        "the pause",
        log,
        240.0,
    )
    assert waits(server, run)
    server.call(
        "runs", "review", run, "--approve", str(item["number"]), "--always", "--why",
        "the plan was made for slower presses", "--by", "ann",
    )  # fmt: skip
    until(lambda: f"{run} is over" in log.read_text(), "the run's end", log, 120.0)
    assert [one for one in items(server, run) if one["pauses"]] == [
        item | {"state": "approved", "decision": items(server, run)[item["number"] - 1]["decision"]}
    ]
    check(server.home, run, json.loads(plan.read_text())["digest"])


def check(home: Path, run: str, digest: str) -> None:
    """Check that a run of twelve rounds among three devices is whole, and kept its plan."""
    with RunDirectory.open(home, run) as directory:
        directory.ledger.verify()
        kept = directory.ledger.run().config["plan"]
        assert kept["digest"] == digest
        done = [r for r in directory.ledger.rounds() if r.outcome == "finished"]
        assert [r.round for r in done if r.phase == "train"] == list(range(1, 13))
        assert {len(record.survivors) for record in done} == {3}
