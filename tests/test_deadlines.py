"""One deadline a round: its parts, what extends them, who is named, who is asked."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from umbel.protocol.errors import SettingsError
from umbel.protocol.plan import Params
from umbel.protocol.round_table import ROUND_TABLE, RoundPhase
from umbel.server.deadlines import TRIPS, Deadlines, PhaseClock, Times, times
from umbel.server.ledger import Event, RoundRecord
from umbel.server.settings import RunSettings

SECURE = ("sharing", "summing", "voting", "unmasking")
seconds = st.floats(0.001, 1e6)
slowest = st.dictionaries(st.sampled_from(["inviting", *SECURE]), st.floats(0, 1e7))
schemes = st.sampled_from(["A", "plain"])


def settings(**changes: Any) -> RunSettings:
    return RunSettings(**{"run": "r", "rounds": 1, **changes})


def record(number: int = 1, phase: str = "train", **changes: Any) -> RoundRecord:
    return RoundRecord(round=number, attempt=0, phase=phase, outcome="finished", **changes)


# ---- the parts -------------------------------------------------------------------------------


def test_the_trips_are_the_phases_of_the_round_table_that_wait_after_the_training() -> None:
    waits = {str(phase) for phase, _ in ROUND_TABLE} - {"inviting", "summed"}
    assert set(TRIPS["A"]) == waits
    assert set(TRIPS["plain"]) == {"summing"} < waits
    order = [str(phase) for phase in RoundPhase]
    assert [name for name in order if name in TRIPS["A"]] == list(TRIPS["A"])


def test_ten_minutes_are_seven_and_a_half_for_training_one_for_uploads_half_for_each_trip() -> None:
    made = times(600.0, None, "A")
    assert made.trips == {"sharing": 30.0, "summing": 60.0, "voting": 30.0, "unmasking": 30.0}
    assert made.of("inviting") == 450.0
    plain = times(600.0, None, "plain")
    assert (plain.trips, plain.of("inviting")) == ({"summing": 60.0}, 540.0)
    assert made.of("finished") == math.inf


def test_what_the_user_says_of_a_trip_is_every_trip_and_is_not_changed_by_what_was_timed() -> None:
    made = times(100.0, 8.0, "A", {"sharing": 0.1, "summing": 90.0})
    assert made.trips == dict.fromkeys(SECURE, 8.0)
    assert made.of("inviting") == 68.0
    assert times(100.0, 8.0, "plain").of("inviting") == 92.0


def test_a_timed_trip_has_four_times_its_slowest_but_fifteen_seconds_and_never_more() -> None:
    made = times(6000.0, None, "A", {"sharing": 0.2, "summing": 10.0, "voting": 99.0})
    assert made.trips == {"sharing": 15.0, "summing": 40.0, "voting": 300.0, "unmasking": 300.0}
    assert made.of("inviting") == 6000 - 15 - 40 - 300 - 300
    assert times(100.0, None, "A", {"sharing": 0.2}).trips["sharing"] == 5.0


@given(seconds, schemes, slowest)
def test_the_parts_add_up_to_the_deadline(
    deadline: float, scheme: str, typical: dict[str, float]
) -> None:
    made = times(deadline, None, scheme, typical)
    parts = [made.of("inviting"), *made.trips.values()]
    assert math.isclose(sum(parts), deadline)
    assert min(parts) > 0
    first = times(deadline, None, scheme)
    assert made.of("inviting") >= first.of("inviting") * (1 - 1e-12)
    assert all(made.trips[name] <= first.trips[name] for name in first.trips)


@given(seconds, seconds, schemes, slowest)
def test_a_longer_deadline_shortens_no_part(
    one: float, other: float, scheme: str, typical: dict[str, float]
) -> None:
    short, long = (times(d, None, scheme, typical) for d in sorted((one, other)))
    for name in ("inviting", *short.trips):
        assert short.of(name) <= long.of(name) * (1 + 1e-12)


@given(seconds, slowest, st.sampled_from(SECURE), st.floats(0, 1e6))
def test_a_slower_trip_gets_no_less(
    deadline: float, typical: dict[str, float], name: str, more: float
) -> None:
    slower = typical | {name: typical.get(name, 0.0) + more}
    before, after = (times(deadline, None, "A", t) for t in ({name: 0.0} | typical, slower))
    assert after.trips[name] >= before.trips[name]


@given(seconds, slowest)
def test_what_comes_later_is_what_is_left(deadline: float, typical: dict[str, float]) -> None:
    made = times(deadline, None, "A", typical)
    for before, name in zip(("inviting", *SECURE), SECURE, strict=False):
        assert math.isclose(made.after(before), made.of(name) + made.after(name))
    assert made.after("unmasking") == 0


@pytest.mark.parametrize(
    ("deadline", "trip", "scheme", "said"),
    [
        (
            10.0, 3.0, "A",
            "deadline: expected more than 4 trips of 3 s = 12 s, got 10.0; "
            "that leaves -2 s for training: raise deadline, or lower trip",
        ),
        (
            2.5, 2.5, "plain",
            "deadline: expected more than 1 trip of 2.5 s = 2.5 s, got 2.5; "
            "that leaves 0 s for training: raise deadline, or lower trip",
        ),
    ],
)  # fmt: skip
def test_trips_that_leave_nothing_for_the_training_are_refused_with_the_sum(
    deadline: float, trip: float, scheme: str, said: str
) -> None:
    with pytest.raises(SettingsError) as caught:
        settings(deadline=deadline, trip=trip, scheme=scheme)
    assert str(caught.value) == said


# ---- one attempt's clock ---------------------------------------------------------------------

HUNDRED = times(100.0, None, "A")
"""75 s for training, 5 s for shares, 10 s for uploads, 5 s for votes and 5 s for releases."""
LONGER = times(480.0, None, "A")
"""360 s for training, 24 s for shares, 48 s for uploads, 24 s for votes and 24 s for releases."""


def at(phase: str, now: float = 0.0, began: float = 0.0, parts: Times = HUNDRED) -> PhaseClock:
    clock = PhaseClock(parts, began)
    if phase != "inviting":
        clock.enter(phase, now)
    return clock


def test_a_phase_ends_after_its_part_whenever_it_began() -> None:
    clock = at("inviting", began=1000.0)
    assert not clock.over(1074.9)
    assert clock.over(1075.0)
    clock.enter("sharing", 1003.0)
    assert (clock.over(1007.9), clock.over(1008.0)) == (False, True)
    assert clock.seconds == {"inviting": 3.0}


def test_uploads_that_keep_pace_go_on_until_the_votes_need_the_rest() -> None:
    clock = at("summing", 20.0)
    assert clock.latest == 90.0
    clock.alive(31.5)
    assert (clock.over(30.0), clock.over(31.5)) == (False, True)
    clock.alive(500.0)
    assert (clock.over(89.9), clock.over(90.0)) == (False, True)
    clock.alive(25.0)  # nothing comes any more: the part that they have anyway
    assert (clock.over(29.9), clock.over(30.0)) == (False, True)


@pytest.mark.parametrize("phase", ["inviting", "sharing", "voting", "unmasking"])
def test_nothing_else_is_extended_by_an_upload(phase: str) -> None:
    clock = at(phase)
    clock.alive(1e9)
    assert clock.over(HUNDRED.of(phase))


def test_a_quiet_phase_names_once_whom_it_waits_for() -> None:
    clock = at("inviting")
    assert clock.quiet(["b", "a", "c"], 0.0) == ()
    assert clock.due == 75 / 4
    assert clock.quiet(["b", "a"], 10.0) == ()  # one has answered
    assert clock.due == 10 + 75 / 4
    assert clock.quiet(["b", "a"], 28.7) == ()
    assert clock.quiet(["b", "a"], 28.75) == ("a", "b") == clock.named
    assert clock.quiet(["b", "a"], 70.0) == ()
    assert clock.due == 75.0


def test_each_phase_is_quiet_by_itself_and_for_five_seconds_at_least() -> None:
    clock = at("inviting", parts=LONGER)
    clock.quiet(["a"], 0.0)
    assert clock.quiet(["a"], 60.0) == ("a",)
    clock.enter("sharing", 61.0)
    assert clock.named == ()
    clock.quiet(["a"], 61.0)
    assert clock.quiet(["a"], 66.9) == ()
    assert clock.quiet(["a"], 67.0) == ("a",)
    assert (HUNDRED.quiet("sharing"), HUNDRED.quiet("inviting")) == (5.0, 75 / 4)


def test_a_minute_is_long_unless_a_phase_is_known_to_take_longer() -> None:
    assert times(6000.0, None, "A").quiet("inviting") == 60.0
    assert times(6000.0, None, "A", {"inviting": 200.0}).quiet("inviting") == 400.0
    assert times(6000.0, None, "A", {"inviting": 2.0}).quiet("inviting") == 60.0
    assert times(6000.0, None, "A", {"inviting": 4500.0}).quiet("inviting") == 2250.0


def test_a_phase_is_not_quiet_while_an_upload_keeps_pace() -> None:
    clock = at("summing", parts=LONGER)
    clock.quiet(["a"], 0.0)
    clock.alive(14.0)
    assert clock.quiet(["a"], 13.0) == ()
    clock.alive(14.0)
    assert clock.quiet(["a"], 14.0) == ("a",)


def test_when_a_phase_is_over_nobody_is_said_to_be_waited_for() -> None:
    clock = at("sharing")
    clock.quiet(["a"], 0.0)
    assert clock.quiet(["a"], 5.0) == ()


# ---- what earlier attempts showed ------------------------------------------------------------


def test_the_slowest_of_the_last_ten_attempts_counts_for_each_phase_of_its_own_kind() -> None:
    known = Deadlines(settings(deadline=6000.0))
    known.record(record(seconds={"sharing": 50.0, "summing": 30.0}))
    assert known.times("train").trips["sharing"] == 200.0
    assert known.times("evaluate").trips["sharing"] == 300.0
    for number in range(2, 12):
        known.record(record(number, seconds={"sharing": 1.0, "summing": 30.0}))
    assert known.times("train").trips["sharing"] == 15.0
    assert known.times("train").trips["summing"] == 120.0


def test_a_trip_that_ran_out_gets_four_times_as_long_again() -> None:
    known = Deadlines(settings(deadline=6000.0))
    parts = list[float]()
    for number in range(1, 4):
        known.record(record(number, seconds={"sharing": 15.0 if number == 1 else parts[-1]}))
        parts.append(known.times("train").trips["sharing"])
    assert parts == [60.0, 240.0, 300.0]


def test_as_many_more_are_asked_as_did_not_get_ready() -> None:
    known = Deadlines(settings(cohort=10, params=settings().params))
    assert (known.dropout, known.asked(10)) == (0.0, 10)
    for kind, code in [("late", "inviting"), ("lost", "inviting"), ("refused", "REASON_POLICY")]:
        known.event(kind, "n", code)
    for kind, code in [("late", "sharing"), ("lost", "summing"), ("expelled", "inviting")]:
        known.event(kind, "n", code)
    known.record(record(roster=tuple("abcdefghijkl")))
    assert known.dropout == 3 / 15
    assert known.asked(10) == 18  # invite(10, 20 %), as published
    known.record(record(2, roster=tuple("abcdefghijklmno")))
    assert known.dropout == 3 / 30
    assert known.asked(10) == 14
    assert known.asked(0) == 0


def test_a_dropout_that_the_user_gives_stands() -> None:
    known = Deadlines(settings(dropout=0.3))
    for _ in range(9):
        known.event("late", "n", "inviting")
    known.record(record(roster=("a",)))
    assert (known.dropout, known.asked(10)) == (0.3, 21)


def test_nine_tenths_are_the_most_that_is_believed() -> None:
    known = Deadlines(settings())
    for _ in range(99):
        known.event("lost", "n", "inviting")
    known.record(record(roster=("a",)))
    assert known.dropout == 0.9


def test_a_resumed_run_knows_what_its_ledger_knows() -> None:
    live = Deadlines(settings(deadline=6000.0))
    records, events = [], []
    for number in (1, 2, 3):
        events.append(Event(kind="late", round=number, attempt=0, node="n", code="inviting"))
        live.event("late", "n", "inviting")
        seconds = {"inviting": 9.0, "voting": 10.0 * number}
        records.append(record(number, roster=("a", "b"), seconds=seconds))
        live.record(records[-1])
    again = Deadlines(settings(deadline=6000.0), records, events)
    assert again.dropout == live.dropout == 3 / 9
    assert again.times("train") == live.times("train")
    assert again.times("train").trips["voting"] == 120.0


# ---- who is waited for -----------------------------------------------------------------------


def test_who_was_late_with_its_training_is_not_waited_for_until_it_is_heard() -> None:
    known = Deadlines(settings(params=Params(min_members=3, min_survivors=3)))
    assert known.needed(6, "abcdef") == 6
    known.event("late", "a", "inviting")
    known.event("late", "b", "sharing")
    known.event("lost", "c", "inviting")
    assert known.needed(6, "abcdef") == 5
    assert known.needed(5, "bcdef") == 5
    assert known.needed(4, "abcdef") == 4  # five are awake, and enough
    known.heard("a")
    assert known.needed(6, "abcdef") == 6
    for node in "abcdef":
        known.event("late", node, "inviting")
    assert known.needed(6, "abcdef") == 3  # fewer are no round
    assert known.needed(6, "ab") == 2


# ---- certificates ----------------------------------------------------------------------------


def test_a_member_whose_certificate_ends_before_the_round_may_is_left_out_and_named_once() -> None:
    wall = datetime(2026, 1, 1, tzinfo=UTC)

    def joined(seconds: float) -> Any:
        return SimpleNamespace(member=SimpleNamespace(not_after=wall + timedelta(seconds=seconds)))

    known, told = Deadlines(settings(deadline=600.0)), list[tuple[str, str, str]]()

    def note(kind: str, node: str, code: str) -> None:
        told.append((kind, node, code))

    nodes = {"a": joined(600.0), "b": joined(599.0), "c": joined(0.0), "d": joined(-1.0)}
    assert known.ending(nodes, wall, note) == {"b", "c"}
    assert known.ending(nodes, wall, note) == {"b", "c"}
    why = "its certificate ends before the round may"
    assert told == [("left out", "b", why), ("left out", "c", why)]
    assert known.ending({"b": joined(9999.0)}, wall, note) == set()
    assert len(told) == 2
