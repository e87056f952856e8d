"""The event beside a round's entry: when each of its clients answered."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from umbel.protocol import messages_pb2 as pb
from umbel.protocol.frames import MAGIC
from umbel.server.client_times import MOST, Answers, Told
from umbel.server.ledger import Event, Ledger
from umbel.simulation.drops import Drop
from umbel.simulation.link import Clock, Link
from umbel.tests.rounds import NOW, Stage, settings

if TYPE_CHECKING:
    from pathlib import Path

    from umbel.server.ledger import RoundRecord


class Stepped(Clock):
    """A clock that somebody moves."""

    def __init__(self) -> None:
        """Begin at a time that no default has."""
        super().__init__()
        self.time = 1000.0

    def now(self) -> float:
        """Return it."""
        return self.time

    def before(self, when: float) -> float:
        """Return it: the deadlines of these tests are far."""
        assert self.time < when
        return self.time

    def skip_to(self, when: float) -> None:
        """Go there."""
        self.time = max(self.time, when)


class Timed(Link):
    """A link on which everything takes its time, and which notes when things came."""

    def __init__(self, *drops: Drop) -> None:
        """Note nothing yet."""
        self.steps = Stepped()
        super().__init__(drops, self.steps)
        self.tap = self.passes
        self.ready, self.sent = dict[str, float](), dict[str, float]()

    def passes(self, way: str, node: str, data: bytes) -> None:
        """Let some time pass and look at the clock."""
        if way == "up" and data.startswith(MAGIC):
            self.steps.time += 0.003
            self.sent[node] = self.steps.time  # the last frame's is the one that stays
        elif way == "up":
            body = pb.ToServer.FromString(data).WhichOneof("body")
            if body in {"keys", "ready"}:
                self.steps.time += 0.25 + 0.125 * len(self.ready)
                self.ready[node] = self.steps.time


def told(stage: Stage) -> list[tuple[Event, RoundRecord]]:
    """Return each round's event with its record, and check the chain."""
    stage.directory.ledger.verify()
    events = [e for e in stage.directory.ledger.events() if e.kind == "clients"]
    return list(zip(events, stage.directory.ledger.rounds(), strict=True))


@pytest.mark.parametrize("scheme", ["A", "plain"])
def test_a_round_says_when_each_of_its_members_answered(tmp_path: Path, scheme: str) -> None:
    link = Timed()
    with Stage(tmp_path, 5, settings(scheme=scheme), link=link) as stage:
        stage.play()
        ((event, record),) = told(stage)
    assert (event.round, event.attempt, event.node, event.code) == (1, 0, "", "train")
    assert event.at == NOW.isoformat(timespec="milliseconds")
    frozen = max(link.ready.values())  # the last to be ready freezes the roster
    found = Told.of(event)
    assert found.ready == pytest.approx([link.ready[n] - 1000 for n in record.roster], abs=6e-4)
    assert found.sent == pytest.approx([link.sent[n] - frozen for n in record.roster], abs=6e-4)
    assert found.ready == pytest.approx([0.25, 0.625, 1.125, 1.75, 2.5], abs=6e-4)
    # Two players a site: 0 and 1, 2 and 3, 4.
    assert found.names == ("site-0", "site-1", "site-2")
    assert found.asked == (2, 2, 1)
    assert found.sites == tuple(stage.index[node] // 2 for node in record.roster)
    assert found.slow == ()


def test_who_was_not_waited_for_is_named(tmp_path: Path) -> None:
    """Seven are asked for five: the roster is frozen with the first five."""
    run = settings(cohort=5, dropout=0.2)
    with Stage(tmp_path, 7, run, link=Timed()) as stage:
        stage.play()
        ((event, record),) = told(stage)
    found = Told.of(event)
    assert sum(found.asked) > len(record.roster) == 5
    assert len(found.slow) == sum(found.asked) - 5
    assert not set(found.slow) & set(record.roster)
    assert set(found.slow) <= set(stage.index)


def test_a_vector_that_did_not_come_has_no_time(tmp_path: Path) -> None:
    link = Timed(Drop("inbox", (1,), 1))
    with Stage(tmp_path, 5, link=link) as stage:
        stage.play()
        ((event, record),) = told(stage)
    found = Told.of(event)
    missing = [n for n, s in zip(record.roster, found.sent, strict=True) if math.isnan(s)]
    assert [stage.index[node] for node in missing] == [1]
    assert "-" in str(event.detail["sent"]).split()


def test_an_attempt_without_a_roster_says_whom_it_asked(tmp_path: Path) -> None:
    drops = [Drop("start", (0, 1, 2), 1)]
    with Stage(tmp_path, 5, link=Timed(*drops)) as stage:
        stage.play()
        ((event, record),) = told(stage)
    assert (record.outcome, record.roster) == ("aborted", ())
    assert dict(event.detail) == {"names": '["site-0", "site-1", "site-2"]', "asked": "2 2 1"}


def test_event_and_entry_are_written_together_or_not_at_all(tmp_path: Path) -> None:
    with Stage(tmp_path, 5) as stage:
        stage.play()
        ((event, record),) = told(stage)
        ledger = stage.directory.ledger
        rows, again = ledger.verify(), replace(record, round=2)
        with pytest.raises(Exception, match="details among"):
            ledger.commit_round(again, replace(event, round=2, node="ab" * 16))
        assert ledger.verify() == rows
        assert [r.round for r in ledger.rounds()] == [1]
        ledger.commit_round(again, replace(event, round=2))
        with Ledger(ledger.path, read_only=True) as read:
            assert read.verify() == rows + 2


def test_large_rosters_have_no_single_times(tmp_path: Path) -> None:
    with Stage(tmp_path, 5) as stage:
        stage.begin()
        assert stage.coordinator.attempt is not None
        (joined, *_), answers = stage.coordinator.attempt.plan.cohort.values(), Answers(5.0)
    cohort = {f"{n:032x}": joined for n in range(MOST + 1)}
    for node in cohort:
        answers.ready(node, 6.0)
    assert answers.detail(cohort, list(cohort)[:MOST])["ready"].split() == ["1000"] * MOST
    assert answers.detail(cohort, list(cohort)).keys() == {"names", "asked"}


@pytest.mark.parametrize(
    "change",
    [
        {"ready": "1 2"}, {"sent": "1"}, {"sites": "0 0 7"}, {"asked": "1 2 3"},
        {"names": "{}"}, {"ready": "1 2 x"}, {"used": "1 2"},
    ],
)  # fmt: skip
def test_what_no_round_wrote_is_refused(change: dict[str, str]) -> None:
    sound = {"names": '["n"]', "asked": "3", "sites": "0 0 0", "ready": "1 2 3", "sent": "4 5 -"}
    event = Event(kind="clients", round=1, attempt=0, detail=sound)
    assert Told.of(event).ready == (0.001, 0.002, 0.003)
    with pytest.raises((ValueError, TypeError)):
        Told.of(replace(event, detail=sound | change))
