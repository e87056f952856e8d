"""The short form of `make chaos`: seven kills, of the driver and of the core, in six phases."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from umbel.protocol import messages_pb2 as pb
from umbel.protocol.round_table import OVER, RoundPhase
from umbel.tests import chaos_moment, chaos_rounds
from umbel.tests.chaos_moment import PHASES, Executioner, Kill

if TYPE_CHECKING:
    from pathlib import Path

SHORT = (
    Kill(2, "keys", 3, ("driver",)),
    Kill(3, "shares", 3, ("core",)),
    Kill(4, "whole", 3, ("driver",)),
    Kill(5, "survivors", 5, ("driver",)),
    Kill(6, "release", 2, ("core",)),
    Kill(7, "stepped", 2, ("core",)),
    Kill(8, "written", 2, ("driver",)),
)


def test_a_run_whose_server_is_killed_in_every_phase_ends_with_the_bits_of_a_quiet_one() -> None:
    report, table = chaos_rounds.play(SHORT)
    assert report.broken == [], table
    assert report.kills == len(SHORT)
    assert report.wrong_aggregates == 0
    assert report.same_bits is (None if report.lost else True)


def test_the_full_plan_hits_every_phase_with_each_victim_fifty_times_in_all() -> None:
    plan = chaos_rounds.plan()
    alive = {phase.value for phase in RoundPhase if phase not in OVER} | {"finished"}
    for victim in ("driver", "core"):
        assert {kill.phase for kill in plan if victim in kill.who} == alive
    assert set(PHASES.values()) == alive
    assert [kill.round for kill in plan] == sorted(kill.round for kill in plan)
    assert sum(len(kill.who) for kill in plan) >= 50


# ---- moments -------------------------------------------------------------------------------------


class Run:
    """What an executioner asks of a coordinator."""

    round = 3


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a plan of two kills and nobody to be killed: signal 0 would be harmless."""
    chaos_moment.write(tmp_path, [Kill(3, "votes", 2, ()), Kill(3, "written", 1, ())])
    return tmp_path


def test_a_moment_is_counted_anew_in_each_attempt(folder: Path) -> None:
    due = Executioner(folder, folder / "core.json")
    due.run = Run()  # type: ignore[assignment]
    for attempt in (0, 1):
        due.start(pb.Start(round=3, attempt=attempt))
        due.passes("votes")
        assert chaos_moment.done(folder) == []
    due.passes("vote")
    due.passes("votes")
    (found,) = chaos_moment.done(folder)
    assert (found["at"], found["nth"], found["round"]) == ("votes", 2, 3)


def test_a_kill_is_not_repeated_by_the_next_process_and_the_order_is_kept(folder: Path) -> None:
    first = Executioner(folder, folder / "core.json")
    first.reached(3, "written", 1)  # not yet its turn
    assert chaos_moment.done(folder) == []
    first.reached(3, "votes", 2)
    second = Executioner(folder, folder / "core.json")
    second.reached(3, "votes", 2)
    assert len(chaos_moment.done(folder)) == 1
    second.reached(4, "written", 1)  # of another round
    assert len(chaos_moment.done(folder)) == 1
    second.reached(3, "written", 1)
    assert [row["at"] for row in chaos_moment.done(folder)] == ["votes", "written"]
