"""Whom a round waits for, how long, and who says so: rounds over the link with an injected clock.

Deadline 100 s with masks on: 75 s for training, 5 s for shares, 10 s for uploads, 5 s for votes and
5 s for releases; training takes no time here, so uploads have at most 90 s.
"""

from __future__ import annotations

import io
from dataclasses import replace
from datetime import timedelta
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

from umbel.protocol import messages_pb2 as pb
from umbel.protocol.frames import HEADER, Kind, frames
from umbel.server.core.world import World
from umbel.simulation import report
from umbel.simulation.drops import Drop
from umbel.simulation.link import Link
from umbel.tests.rounds import NOW, Fixed, Stage, Still, matches, settings

if TYPE_CHECKING:
    from pathlib import Path

    from umbel.clients.session import Upload

# ---- nobody answers --------------------------------------------------------------------------


def test_when_every_device_hangs_the_round_closes_on_the_servers_clock(tmp_path: Path) -> None:
    run = settings(deadline=100.0, attempts=2)
    hang = [Drop("start", tuple(range(5)), 1, silent=True)]
    with Stage(tmp_path, 5, run, drops=hang) as stage:
        stage.play()
        assert stage.link.clock.now() == 2 * 75.0
        assert [record.outcome for record in stage.records] == ["aborted", "aborted"]
        assert stage.records[0].cause == "0 members are ready, at least 3 are needed"
        everybody = sorted([(i, "inviting") for i in range(5)] * 2)
        assert sorted(stage.told("waiting")) == sorted(stage.told("late")) == everybody


@pytest.mark.parametrize(
    ("boundary", "phase", "part"),
    [("roster", "sharing", 24.0), ("inbox", "summing", 48.0), ("start", "inviting", 240.0)],
)
def test_a_phase_names_who_is_silent_before_it_goes_on_without(
    boundary: str, phase: str, part: float, tmp_path: Path
) -> None:
    """A twentieth, a tenth and, with trips of 60 s, the rest of 480 s; a quarter of each."""
    times = {"deadline": 480.0, "trip": 60.0 if phase == "inviting" else None}
    heard: list[tuple[float, str, str]] = []
    with Stage(
        tmp_path, 5, settings(**times), drops=[Drop(boundary, (3,), 1, silent=True)]
    ) as stage:
        event = stage.directory.ledger.event

        def noted(kind: str, **fields: object) -> None:
            if kind not in {"memory", "clients"}:
                heard.append((stage.link.clock.now(), kind, str(fields["code"])))
            event(kind, **fields)  # type: ignore[arg-type]

        stage.directory.ledger.event = noted  # type: ignore[method-assign]
        stage.play()
        assert heard == [(part / 4, "waiting", phase), (part, "late", phase)]
        assert stage.told("waiting") == [(3, phase)]
        assert stage.outcomes() == [(1, 0, "finished", 4)]


WIDE = Fixed((32, 64))
"""Whose message is long enough to come in pieces."""


def test_a_trainer_that_hangs_costs_one_round_its_deadline_until_it_is_back(
    tmp_path: Path,
) -> None:
    hang = [Drop("start", (3,), 2, silent=True)]
    with Stage(tmp_path, 5, settings(rounds=6, deadline=100.0), drops=hang) as stage:
        stage.begin()
        while len(stage.records) < 4:
            stage.link.step()
        assert stage.link.clock.now() == 75.0  # in round 2, and in no other
        stage.link._lost.clear()
        stage.to_the_end()
        everybody, others = (0, 1, 2, 3, 4), (0, 1, 2, 4)
        rosters = [stage.indices(record.roster) for record in stage.records]
        assert rosters[:4] == [everybody, others, others, others]
        assert rosters[5] == everybody
        assert stage.link.clock.now() == 75.0
        assert stage.told("late") == [(3, "inviting")]


def test_the_live_output_says_whom_a_round_waits_for(tmp_path: Path) -> None:
    out, run = io.StringIO(), settings(deadline=480.0)
    with Stage(tmp_path, 5, run, drops=[Drop("roster", (3,), 1, silent=True)]) as stage:
        with report.Live(1, out) as live:
            stage.link.watch = live.watch
            stage.play()
        line = "round 1: no answer for long; sharing waits for client 3\n"
        assert out.getvalue() == line


# ---- uploads ---------------------------------------------------------------------------------


class Slowly(Link):
    """One member's vector comes in `pieces`, one every `pause` seconds; the others' at once."""

    def __init__(self, slow: int, pieces: int, pause: float) -> None:
        """Take whom it is about."""
        super().__init__((), Still())
        self._slow, self._pieces, self._pause = slow, pieces, pause
        self._rest: list[tuple[float, str, bytes]] = []

    def step(self) -> None:
        """Let the next piece come when nothing else is left to do."""
        attempt = self.server.attempt
        if self._queue or self._uploads or not self._rest:
            super().step()
            return
        when, node, frame = self._rest[0]
        if attempt is not None and attempt.due < when:
            super().step()
            return
        self._rest.pop(0)
        self.clock.skip_to(when)
        self.server.frame(node, frame, self.clock.now())
        if not self._rest:
            self._sessions[node].delivered()

    def _upload(self, node: str, upload: Upload, offset: int) -> None:
        if self._index[node] != self._slow:
            super()._upload(node, upload, offset)
            return
        size = len(upload.buffer)
        cuts = [size * i // self._pieces // 8 * 8 for i in range(self._pieces)] + [size]
        for number, (start, end) in enumerate(pairwise(cuts), start=1):
            frame = next(frames(Kind.UPLOAD, upload.subject, upload.buffer, start))
            length = (end - start).to_bytes(4, "little")
            cut = bytes(frame[:56]) + length + bytes(frame[60 : HEADER + end - start])
            self._rest.append((self.clock.now() + number * self._pause, node, cut))


def upload(home: Path, pieces: int, pause: float, slots: int = 5) -> tuple[Stage, float]:
    """Play a round in which member 4 uploads slowly; return the seconds of the uploads too."""
    stage = Stage(
        home, 5, settings(deadline=100.0), link=Slowly(4, pieces, pause), world=World(slots),
        trainer=WIDE,
    )  # fmt: skip
    stage.play()
    return stage, stage.records[0].seconds["summing"]


def test_an_upload_that_keeps_pace_is_waited_for_beyond_its_part(tmp_path: Path) -> None:
    stage, seconds = upload(tmp_path, 40, 2.0)
    with stage:
        assert seconds == 80.0
        assert stage.outcomes() == [(1, 0, "finished", 5)]
        matches(stage, 1, range(5), 5)
        assert stage.told("late") == stage.told("waiting") == []


def test_one_that_rests_is_late_as_soon_as_its_part_is_over(tmp_path: Path) -> None:
    """It rests for a quarter of 10 s at most: the piece of 9 s holds until 11.5 s."""
    stage, seconds = upload(tmp_path, 20, 3.0)
    with stage:
        assert seconds == 11.5
        assert stage.told("late") == [(4, "summing")]
        assert stage.outcomes() == [(1, 0, "finished", 4)]
        matches(stage, 1, range(4), 5)


def test_one_that_could_not_be_whole_before_the_votes_is_not_waited_for(tmp_path: Path) -> None:
    """90 s of 120 s: a quarter of it is missing in the end, and 2.5 s of rest are used up at 10."""
    stage, seconds = upload(tmp_path, 60, 2.0)
    with stage:
        assert 10.0 <= seconds <= 12.5
        assert stage.told("late") == [(4, "summing")]
        assert stage.outcomes() == [(1, 0, "finished", 4)]


# ---- whom the next round asks ----------------------------------------------------------------


def test_a_cohort_is_asked_with_as_many_more_as_earlier_rounds_lost(tmp_path: Path) -> None:
    """One of four did not get ready: P[Binomial(9, 3/4) >= 4] = 0.99001, and 0.973 with 8."""
    asked: dict[int, int] = {}
    run = settings(rounds=3, cohort=4, deadline=100.0)
    with Stage(tmp_path, 12, run) as stage:
        mute: set[str] = set()

        def tap(way: str, node: str, data: bytes) -> None:
            if way == "down" and pb.ToClient.FromString(data).HasField("start"):
                attempt = stage.coordinator.attempt
                assert attempt is not None
                asked[stage.coordinator.round] = len(attempt.plan.cohort)
                if not mute:
                    mute.add(node)
                    stage.link._lost.add(node)

        stage.link.tap = tap
        stage.play()
        assert [len(record.roster) for record in stage.records] == [3, 4, 4]
        assert (asked[1], asked[2]) == (4, 9)


def test_who_could_not_finish_a_round_is_not_asked_and_is_named(tmp_path: Path) -> None:
    with Stage(tmp_path, 5, settings(rounds=2, deadline=100.0)) as stage:
        stage.join()
        node = stage.players[2].node
        joined = stage.coordinator._roll._nodes[node]
        ends = replace(joined.member, not_after=NOW + timedelta(seconds=99))
        stage.coordinator._roll._nodes[node] = joined._replace(member=ends)
        stage.coordinator.begin(0.0)
        stage.to_the_end()
        assert [stage.indices(record.roster) for record in stage.records] == [(0, 1, 3, 4)] * 2
        assert stage.told("left out") == [(2, "its certificate ends before the round may")]
        assert stage.told("refused") == []


def test_a_clock_shortly_before_the_end_of_every_certificate_says_so_and_asks_nobody(
    tmp_path: Path,
) -> None:
    with Stage(tmp_path, 5, settings(attempts=3)) as stage:
        stage.join()
        wrong = NOW + timedelta(days=6, hours=23, minutes=55)
        planner = stage.coordinator._planner
        planner._around = replace(planner._around, wall=lambda: wrong)
        stage.coordinator.begin(0.0)
        stage.to_the_end()
        assert str(stage.coordinator.failure) == (
            "round 1 aborted; 5 of 5 members here have certificates that end within 600 s, the "
            "deadline of a round; 3 others are needed: renew them, or set this machine's clock; "
            "the model is that of round 0"
        )
        assert sorted(index for index, _ in stage.told("left out")) == [0, 1, 2, 3, 4]
        assert stage.outcomes() == []


def test_a_clock_that_jumps_by_years_in_a_run_ends_nothing(tmp_path: Path) -> None:
    with Stage(tmp_path, 5, settings(rounds=2)) as stage:
        stage.join()
        planner = stage.coordinator._planner
        planner._around = replace(planner._around, wall=lambda: NOW + timedelta(days=3650))
        stage.coordinator.begin(0.0)
        stage.to_the_end()
        assert [outcome[2:] for outcome in stage.outcomes()] == [("finished", 5)] * 2
        assert stage.told("left out") == []
