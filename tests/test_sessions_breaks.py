"""Sessions when something breaks: streams, certificates, ServerApps; time is a number here."""

from __future__ import annotations

from typing import Any

import pytest

from umbel.protocol import messages_pb2 as pb
from umbel.server.endings import Ending
from umbel.server.sessions import GRACE, SUCCESSOR
from umbel.tests.door import KEY, OTHER_KEY, RUN, Gateway, downs, node, turned, up

# ---- a stream breaks -----------------------------------------------------------------------


def test_within_the_grace_nobody_has_left() -> None:
    gateway = Gateway()
    stream = gateway.enter()
    gateway.take()
    gateway.sessions.broken(stream, 100.0)
    gateway.sessions.tick(100.0 + GRACE - 0.01)
    assert gateway.take() == []
    gateway.sessions.tick(100.0 + GRACE)
    assert [(op, fields) for _, op, fields, _ in gateway.take()] == [("left", {"node": node()})]
    assert any(node() in line for line in gateway.lines)
    assert turned(gateway, resume=True)[0] is Ending.NOT_RESUMED


def test_a_resumed_session_gets_what_it_lacks_once_and_says_what_it_has() -> None:
    gateway = Gateway()
    first = gateway.enter()
    gateway.sessions.up(first, up(1, b"m1"))
    for word in (b"a", b"b", b"c"):
        gateway.sessions.post(RUN, node(), word)
    assert [down.message for down in downs(first)[1:]] == [b"a", b"b", b"c"]
    gateway.sessions.broken(first, 100.0)
    gateway.sessions.post(RUN, node(), b"d")
    gateway.take()
    second = gateway.enter(resume=True, ack=2)
    assert second.epoch == 2
    welcome, *rest = downs(second)
    assert (welcome.welcome.epoch, welcome.ack) == (2, 1)
    assert [(down.seq, down.message) for down in rest] == [(3, b"c"), (4, b"d")]
    gateway.sessions.up(second, up(1, b"m1", ack=4))
    gateway.sessions.up(second, up(2, b"m2", ack=4))
    events = [(op, payload) for _, op, _, payload in gateway.take()]
    assert events == [("joined", b"signing leaf of 1"), ("message", b"m2")]
    gateway.sessions.tick(1000.0)
    assert gateway.take() == []


def test_a_resume_while_the_old_stream_still_stands_takes_the_session_over() -> None:
    gateway = Gateway()
    first = gateway.enter()
    gateway.sessions.post(RUN, node(), b"a")
    downs(first)
    second = gateway.enter(resume=True, ack=0)
    assert first.ending is Ending.TAKEN_OVER
    assert [down.message for down in downs(second)[1:]] == [b"a"]
    gateway.sessions.broken(first, 5.0)  # the old one's end is not the session's
    gateway.sessions.tick(500.0)
    assert gateway.sessions.count() == 1


@pytest.mark.parametrize(
    "changes",
    [
        {"der": b"another leaf"},
        {"fingerprint": bytes([7]) * 32},
        {"ack": 2},
    ],
)
def test_another_certificate_or_other_numbers_resume_nothing(changes: dict[str, Any]) -> None:
    gateway = Gateway()
    stream = gateway.enter()
    gateway.sessions.post(RUN, node(), b"a")
    assert turned(gateway, resume=True, **changes)[0] is Ending.NOT_RESUMED
    assert stream.ending is None


def test_a_break_before_the_node_was_heard_costs_it_nothing() -> None:
    """It may not know of its session: the welcome was lost, and it says hello as before."""
    gateway = Gateway()
    first = gateway.enter()
    gateway.sessions.broken(first, 100.0)
    gateway.sessions.post(RUN, node(), b"start")
    gateway.take()
    second = gateway.enter()
    welcome, start = downs(second)
    assert (welcome.welcome.epoch, start.seq, start.message) == (2, 1, b"start")
    assert [fields["resumed"] for _, _, fields, _ in gateway.take()] == [True]


@pytest.mark.parametrize("heard", [up(1), pb.Up(ack=1)])
def test_a_node_that_was_heard_and_begins_anew_is_new(heard: pb.Up) -> None:
    gateway = Gateway()
    first = gateway.enter()
    gateway.sessions.post(RUN, node(), b"start")
    gateway.sessions.up(first, heard)
    gateway.sessions.broken(first, 100.0)
    gateway.take()
    second = gateway.enter()
    assert [down.seq for down in downs(second)] == [0]
    assert [fields["resumed"] for _, _, fields, _ in gateway.take()] == [False]


def test_another_certificate_is_new_though_the_node_was_never_heard() -> None:
    gateway = Gateway()
    gateway.sessions.broken(gateway.enter(), 100.0)
    gateway.take()
    gateway.enter(der=b"another leaf")
    assert [fields["resumed"] for _, _, fields, _ in gateway.take()] == [False]


def test_an_expired_certificate_ends_a_stream_that_lives() -> None:
    gateway = Gateway()
    stream = gateway.enter(until=50.0)
    gateway.enter(2, until=60.0)
    gateway.take()
    gateway.sessions.tick(49.9)
    assert stream.ending is None
    gateway.sessions.tick(50.0)
    assert stream.ending is Ending.EXPIRED
    assert [(op, fields["node"]) for _, op, fields, _ in gateway.take()] == [("left", node())]


# ---- the ServerApp -------------------------------------------------------------------------


def test_sessions_wait_a_minute_for_a_successor_and_then_get_goodbye() -> None:
    gateway = Gateway()
    stream = gateway.enter()
    downs(stream)
    gateway.sessions.desert(RUN, 10.0)
    assert gateway.sessions.tick(10.0 + SUCCESSOR - 0.01) == []
    assert stream.ending is None
    assert gateway.sessions.tick(10.0 + SUCCESSOR) == [RUN]
    assert stream.ending is Ending.GOODBYE
    (last,) = downs(stream)
    assert pb.ToClient.FromString(last.message).HasField("goodbye")
    assert gateway.sessions.runs() == ()
    ending, line = turned(gateway)
    assert ending is Ending.NO_RUN
    assert "is over" in line
    assert any("no ServerApp came" in line for line in gateway.lines)


def test_a_successor_hears_of_every_session_and_only_of_what_is_meant_for_it() -> None:
    gateway = Gateway()
    stream = gateway.enter()
    gateway.sessions.post(RUN, node(), b"start by the first")
    gateway.sessions.desert(RUN, 10.0)
    gateway.take()
    gateway.sessions.open(RUN, KEY)
    events = gateway.take()
    assert [(op, fields) for _, op, fields, _ in events] == [
        ("joined", {"node": node(), "resumed": False, "version": ""})
    ]
    gateway.sessions.up(stream, up(1, b"answer to the first", ack=1))
    assert gateway.take() == []
    gateway.sessions.post(RUN, node(), b"start by the second")
    gateway.sessions.up(stream, up(2, b"late answer to the first", ack=1))
    assert gateway.take() == []
    gateway.sessions.up(stream, up(3, b"answer to the second", ack=2))
    assert [payload for _, _, _, payload in gateway.take()] == [b"answer to the second"]
    assert gateway.sessions.tick(10.0 + 2 * SUCCESSOR) == []


def test_a_node_may_join_while_there_is_no_server_app() -> None:
    gateway = Gateway()
    gateway.sessions.desert(RUN, 0.0)
    gateway.enter()
    gateway.take()
    gateway.sessions.open(RUN, KEY)
    assert [op for _, op, _, _ in gateway.take()] == ["joined"]


def test_goodbye_is_the_last_message_and_ends_the_tickets() -> None:
    gateway = Gateway()
    streams = [gateway.enter(1), gateway.enter(2)]
    gateway.sessions.broken(gateway.enter(3), 0.0)
    gateway.sessions.post(RUN, node(1), b"last result")
    gateway.sessions.goodbye(RUN, 0.0)
    words = [down.message for down in downs(streams[0])[1:]]
    assert words[0] == b"last result"
    assert pb.ToClient.FromString(words[1]).HasField("goodbye")
    assert [s.ending for s in streams] == [Ending.GOODBYE] * 2
    assert gateway.sessions.count() == 0
    assert turned(gateway)[0] is Ending.NO_RUN


def test_one_node_can_be_dismissed_and_let_in_again_with_a_new_ticket() -> None:
    gateway = Gateway()
    first, second = gateway.enter(1), gateway.enter(2)
    gateway.sessions.goodbye(RUN, 0.0, node(1))
    assert (first.ending, second.ending) == (Ending.GOODBYE, None)
    ending, line = turned(gateway)
    assert ending is Ending.TICKET
    assert "after goodbye" in line
    gateway.sessions.welcome_back(RUN, node(1))
    gateway.enter(1)
    assert gateway.sessions.count() == 2


def test_a_run_that_was_over_can_be_served_again() -> None:
    gateway = Gateway()
    gateway.sessions.goodbye(RUN, 0.0)
    gateway.sessions.open(RUN, OTHER_KEY)
    assert turned(gateway)[0] is Ending.TICKET
    gateway.enter(key=OTHER_KEY)


def test_who_was_cut_off_at_goodbye_may_come_back_for_it_and_for_nothing_else() -> None:
    gateway = Gateway()
    cut, whole = gateway.enter(1), gateway.enter(2)
    downs(cut)
    gateway.sessions.up(cut, up(1))
    gateway.sessions.broken(cut, 99.0)
    gateway.sessions.post(RUN, node(1), b"last result")
    gateway.take()
    gateway.sessions.goodbye(RUN, 100.0)
    assert sorted(str(f["node"]) for _, op, f, _ in gateway.take() if op == "left") == [
        node(1),
        node(2),
    ]
    downs(whole)
    gateway.sessions.broken(whole, 100.1)
    assert turned(gateway, number=3)[0] is Ending.NO_RUN
    assert turned(gateway)[0] is Ending.NO_RUN, "a new session is none that comes back"
    gateway.sessions.tick(100.0 + GRACE - 0.01)
    back = gateway.enter(resume=True, ack=0)
    words = downs(back)
    assert [down.seq for down in words] == [0, 1, 2]
    assert words[1].message == b"last result"
    assert pb.ToClient.FromString(words[2].message).HasField("goodbye")
    assert back.ending is Ending.GOODBYE
    gateway.sessions.up(back, up(2))
    gateway.sessions.broken(back, 101.0)
    gateway.sessions.tick(101.0 + GRACE)
    assert turned(gateway, resume=True)[0] is Ending.NO_RUN
    assert gateway.take() == []


def test_who_was_cut_off_before_its_welcome_comes_back_for_its_goodbye() -> None:
    """It does not know that it had a session, so it does not say that it resumes one."""
    gateway = Gateway()
    cut = gateway.enter()
    gateway.sessions.goodbye(RUN, 100.0)
    gateway.sessions.broken(cut, 100.1)  # before anything was written, or while it was on its way
    assert turned(gateway, der=b"another leaf")[0] is Ending.NO_RUN
    back = gateway.enter()
    words = downs(back)
    assert [down.seq for down in words] == [0, 1]
    assert pb.ToClient.FromString(words[1].message).HasField("goodbye")
    assert back.ending is Ending.GOODBYE
    gateway.sessions.broken(back, 101.0)
    gateway.sessions.tick(101.0 + GRACE)
    assert turned(gateway)[0] is Ending.NO_RUN


def test_a_run_that_begins_again_waits_for_nobody_of_its_past() -> None:
    gateway = Gateway()
    stream = gateway.enter()
    gateway.sessions.goodbye(RUN, 100.0)
    gateway.take()
    gateway.sessions.open(RUN, OTHER_KEY)
    assert gateway.take() == []
    gateway.sessions.broken(stream, 100.5)
    gateway.enter(key=OTHER_KEY)
    gateway.sessions.tick(200.0)
    assert [op for _, op, _, _ in gateway.take()] == ["joined"]
    assert gateway.sessions.runs() == (RUN,)
