"""Runs of the clock that keep to their plan, watched: how many are stopped, and how soon."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from umbel.cli import main
from umbel.server.cohort import invitations
from umbel.server.ledger import RoundRecord
from umbel.server.run_plan import RunPlan
from umbel.server.watch import Watch
from umbel.server.watch_terms import Group, Seen
from umbel.simulation.clock.decision import Outcome
from umbel.simulation.clock.synchronous import Synchronous, Terms
from umbel.simulation.fleet.devices import Load
from umbel.simulation.fleet.toml import read

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from umbel.simulation.clock.decision import Decision
    from umbel.simulation.fleet.profiles import ArrayFleet

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
FLEET = """seed = 3
[cohorts.a]
count = 12
site = "north"
samples = 50
speed = { lognormal = { median = 1.0, sigma = 0.3 } }
bandwidth = 1e6
spread = 0.25
dropout = 0.05
[cohorts.b]
count = 8
site = "south"
samples = 50
speed = { lognormal = { median = 1.5, sigma = 0.3 } }
bandwidth = 1e6
spread = 0.25
dropout = 0.1
[sites.north]
correlation = TIE
[sites.south]
correlation = TIE
"""
SITES = {"a": "north", "b": "south"}
CLIENTS, COHORT, DROPOUT, DEADLINE, QUORUM = 20, 12, 0.2, 600.0, 6
ROUNDS, RUNS = 1000, 40
PAUSES = ("duration", "participation", "site", "quorum")


def planned(folder: Path, tie: float) -> tuple[ArrayFleet, RunPlan]:
    """Return the devices and the plan of a thousand rounds among them."""
    file, plan = folder / "fleet.toml", folder / "plan.json"
    file.write_text(FLEET.replace("TIE", str(tie)))
    said = {"cohort": COHORT, "dropout": DROPOUT, "deadline": DEADLINE, "min-survivors": QUORUM}
    settings = [word for key, value in said.items() for word in ("-c", f"{key}={value}")]
    more = ["--parameters", "10000", "--rounds", str(ROUNDS), "--secure", "off", "-o", str(plan)]
    assert main(["plan", str(file), *settings, *more]) == 0
    return read(file).fleet(CLIENTS, 0), RunPlan.read(plan)


def rounds(devices: ArrayFleet, number: int) -> Iterator[tuple[Decision, Seen]]:
    """Yield the rounds of a run of its own: its numbers and its hours are no other run's."""
    terms = Terms(
        cohort=COHORT, invited=invitations(COHORT, DROPOUT), quorum=QUORUM, deadline=DEADLINE,
        load=Load(down=40_000, up=40_000), seed=number,
    )  # fmt: skip
    clock = Synchronous(devices, terms)
    clock.now = number * 1e7
    kinds = np.asarray(devices.cohort_of(np.arange(CLIENTS)))
    for n in range(1, ROUNDS + 1):
        one = clock.decide(number * ROUNDS + n)
        used, kind = one.outcomes == Outcome.USED, kinds[one.invited]
        cohorts = {
            name: Group(int((kind == k).sum()), int((used & (kind == k)).sum()))
            for k, name in enumerate(devices.cohorts)
        }
        record = RoundRecord(
            round=n, attempt=0, phase="train", outcome="aborted" if one.void else "finished"
        )
        sites = {SITES[name]: group for name, group in cohorts.items()}
        yield (
            one,
            Seen(record=record, seconds=one.closed - one.opened, cohorts=cohorts, sites=sites),
        )


@pytest.mark.parametrize("tie", [0.0, 0.1])
def test_few_runs_that_keep_to_their_plan_are_stopped(tie: float, tmp_path: Path) -> None:
    """At most 5 % are due: of 40 runs seven or more would be less likely than half a per cent."""
    devices, plan = planned(tmp_path, tie)
    assert (plan.expected.hourly is not None) == (tie > 0)
    stopped, took = 0, []
    for number in range(RUNS):
        watch = Watch(plan.expected, PAUSES, PAUSES, ROUNDS)
        for one, seen in rounds(devices, number):
            took.append(one.closed - one.opened)
            if watch.look(seen):
                stopped += 1
                break
    band = plan.expected.duration
    assert band is not None
    print(f"{stopped} of {RUNS} runs stopped; above p95 {np.mean(np.array(took) > band.high):.4f}")
    assert stopped <= 6


def test_a_fleet_that_takes_twice_as_long_is_found_within_few_rounds(tmp_path: Path) -> None:
    """The time of a round with twelve updates varies little: each is far outside."""
    devices, plan = planned(tmp_path, 0.0)
    for number in range(RUNS):
        watch = Watch(plan.expected, PAUSES, PAUSES, ROUNDS)
        for _, seen in rounds(devices, number):
            slow = Seen(record=seen.record, seconds=2 * (seen.seconds or 0.0), sites=seen.sites)
            if found := watch.look(slow):
                assert found[0].signal == "duration"
                assert found[0].round <= 5
                break
