"""Sessions: tickets, newest connections, messages that count once, calls beside the session."""

from __future__ import annotations

from typing import Any

import pytest

from umbel.protocol import messages_pb2 as pb
from umbel.protocol.replay import MAX_MESSAGES
from umbel.protocol.verification import Peer
from umbel.server.endings import Ending, Turned
from umbel.server.sessions import GRACE
from umbel.tests.door import KEY, NOW, OTHER_KEY, RUN, Gateway, downs, entry, node, turned, up

# ---- hello ---------------------------------------------------------------------------------


def test_a_ticket_lets_its_node_in() -> None:
    gateway = Gateway()
    stream = gateway.enter(version="0.1.0")
    fields = {"node": node(), "resumed": False, "version": "0.1.0"}
    assert gateway.take() == [(RUN, "joined", fields, b"signing leaf of 1")]
    (welcome,) = downs(stream)
    assert (welcome.seq, welcome.ack, welcome.welcome.epoch) == (0, 0, 1)
    assert downs(stream) == []


@pytest.mark.parametrize(
    ("changes", "ending", "words"),
    [
        ({"key": OTHER_KEY}, Ending.TICKET, "forged or damaged"),
        ({"ticket_run": "r-2"}, Ending.TICKET, "another run"),
        ({"ticket_node": 9}, Ending.TICKET, "another node"),
        ({"ticket_fingerprint": bytes(32)}, Ending.TICKET, "another certificate"),
        ({"ticket_gateway": "evil.example.org"}, Ending.TICKET, "another gateway"),
        ({"lives": -1}, Ending.TICKET, "has expired"),
        ({"run": "r-2"}, Ending.NO_RUN, "'r-2', which is not served here"),
        ({"member": 9}, Ending.CERTIFICATE, "signing certificate of " + node(9)),
        ({"resume": True}, Ending.NOT_RESUMED, "not there"),
    ],
)
def test_whoever_may_not_come_in_is_named(
    changes: dict[str, Any], ending: Ending, words: str
) -> None:
    gateway = Gateway()
    got, line = turned(gateway, **changes)
    assert got is ending
    assert words in line
    assert node() in line
    assert gateway.take() == []
    assert gateway.sessions.count() == 0


def test_a_session_of_another_run_is_known() -> None:
    gateway = Gateway()
    gateway.sessions.open("r-2", OTHER_KEY)
    gateway.enter()
    assert gateway.sessions.elsewhere("r-2", node()) == RUN
    assert gateway.sessions.elsewhere(RUN, node()) == ""  # its own is none
    assert gateway.sessions.elsewhere("r-2", node(9)) == ""
    gateway.sessions.goodbye(RUN, 0.0)
    assert gateway.sessions.elsewhere("r-2", node()) == ""


def test_no_line_and_no_status_holds_the_ticket_or_its_key() -> None:
    gateway = Gateway()
    made = entry(key=OTHER_KEY)
    with pytest.raises(Turned) as caught:
        gateway.sessions.enter(made, lambda: None, NOW, 0.0)
    said = f"{caught.value!r} {caught.value} {caught.value.ending.value}"
    for secret in (KEY, OTHER_KEY, made.hello.ticket, made.hello.ticket[-32:]):
        assert secret.hex() not in said
        assert repr(secret)[2:-1] not in said


def test_a_ticket_admits_for_any_number_of_connections_and_the_newest_wins() -> None:
    gateway = Gateway()
    first = gateway.enter()
    second = gateway.enter()
    third = gateway.enter()
    assert [s.epoch for s in (first, second, third)] == [1, 2, 3]
    assert (first.ending, second.ending, third.ending) == (
        Ending.TAKEN_OVER,
        Ending.TAKEN_OVER,
        None,
    )
    assert [line for line in gateway.lines if node() in line and "newer" in line]
    assert [fields["resumed"] for _, _, fields, _ in gateway.take()] == [False] * 3
    assert gateway.sessions.count() == 1


def test_what_an_older_stream_still_sends_is_dropped() -> None:
    gateway = Gateway()
    first = gateway.enter()
    gateway.enter()
    gateway.take()
    gateway.sessions.up(first, up(1))
    gateway.sessions.broken(first, 5.0)
    assert gateway.sessions.tick(5.0 + GRACE) == []
    assert gateway.take() == []
    assert gateway.sessions.count() == 1


def test_what_an_older_stream_does_wrong_is_not_the_newer_ones_fault() -> None:
    gateway = Gateway()
    first = gateway.enter()
    second = gateway.enter()
    gateway.take()
    gateway.sessions.up(first, up(7))
    gateway.sessions.expel(first, Ending.MALFORMED, "bytes that are none")
    assert gateway.take() == []
    assert (first.ending, second.ending) == (Ending.TAKEN_OVER, None)
    assert gateway.sessions.holds(second.session)


def test_there_is_a_most_of_sessions() -> None:
    gateway = Gateway(limit=2)
    gateway.enter(1)
    gateway.enter(2)
    assert turned(gateway, number=3)[0] is Ending.FULL
    gateway.enter(2)  # who is in may come again


# ---- messages ------------------------------------------------------------------------------


def test_messages_come_once_and_are_acknowledged() -> None:
    gateway = Gateway()
    stream = gateway.enter()
    gateway.take()
    downs(stream)
    for seq in (1, 1, 2, 1, 2):
        gateway.sessions.up(stream, up(seq, b"m%d" % seq))
    events = gateway.take()
    assert [(op, payload) for _, op, _, payload in events] == [
        ("message", b"m1"),
        ("message", b"m2"),
    ]
    gateway.sessions.post(RUN, node(), b"down")
    (sent,) = downs(stream)
    assert (sent.seq, sent.ack, sent.message) == (1, 2, b"down")


def test_an_acknowledgement_travels_alone_when_it_is_owed() -> None:
    gateway = Gateway()
    woken: list[int] = []
    stream = gateway.enter(1, lambda: woken.append(1))
    downs(stream)
    woken.clear()
    gateway.sessions.up(stream, up(1, bytes(20_000)))
    assert woken
    (sent,) = downs(stream)
    assert (sent.seq, sent.ack, sent.WhichOneof("body")) == (0, 1, None)
    assert downs(stream) == []


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (up(3), "seq"),
        (up(1, ack=1), "ack"),
        (pb.Up(hello=pb.Hello(run=RUN)), "hello twice"),
    ],
)
def test_a_breach_ends_the_session_by_name(message: pb.Up, words: str) -> None:
    gateway = Gateway()
    stream = gateway.enter()
    gateway.take()
    gateway.sessions.up(stream, message)
    assert stream.ending is Ending.MALFORMED
    assert [(op, fields) for _, op, fields, _ in gateway.take()] == [("left", {"node": node()})]
    assert any(words in line and node() in line for line in gateway.lines)
    gateway.sessions.up(stream, up(1))
    assert gateway.take() == []


def test_a_peer_that_does_not_read_is_ended_by_name() -> None:
    gateway = Gateway()
    stream = gateway.enter()
    for _ in range(MAX_MESSAGES):
        gateway.sessions.post(RUN, node(), b"x")
    assert stream.ending is None
    gateway.sessions.post(RUN, node(), b"x")
    assert stream.ending is Ending.UNREAD
    assert gateway.take()[-1][1] == "left"
    assert any("does not read" in line and node() in line for line in gateway.lines)
    gateway.sessions.post(RUN, node(), b"x")  # nobody there any more: nothing happens


def test_a_peer_that_acknowledges_is_sent_any_number() -> None:
    gateway = Gateway()
    stream = gateway.enter()
    downs(stream)
    for seq in range(1, 500):
        gateway.sessions.post(RUN, node(), bytes(100_000))
        assert [down.seq for down in downs(stream)] == [seq]
        if seq % 8 == 0:
            gateway.sessions.up(stream, pb.Up(ack=seq))
    assert stream.ending is None


# ---- calls beside the session --------------------------------------------------------------


def test_calls_act_for_a_session_of_the_same_certificate_only() -> None:
    gateway = Gateway()
    stream = gateway.enter()
    peer = Peer(bytes([1]) * 16, bytes([1]) * 32, NOW)
    assert gateway.sessions.live(RUN, peer) is stream.session
    gateway.sessions.broken(stream, 0.0)  # within the grace an upload may go on
    assert gateway.sessions.live(RUN, peer) is stream.session
    for run, other, ending in (
        (RUN, peer._replace(fingerprint=bytes(32)), Ending.NO_SESSION),
        (RUN, peer._replace(id=bytes(16)), Ending.NO_SESSION),
        ("r-2", peer, Ending.NO_RUN),
    ):
        with pytest.raises(Turned) as caught:
            gateway.sessions.live(run, other)
        assert caught.value.ending is ending
    assert gateway.sessions.holds(stream.session)
    gateway.sessions.tick(GRACE)
    assert not gateway.sessions.holds(stream.session)


def test_a_stopping_process_ends_every_stream_and_forgets_nothing() -> None:
    gateway = Gateway()
    stream = gateway.enter()
    gateway.sessions.shut_down()
    assert stream.ending is Ending.SHUTDOWN


def test_two_runs_on_one_gateway_do_not_meet() -> None:
    gateway = Gateway()
    gateway.sessions.open("r-2", OTHER_KEY)
    gateway.enter()
    other = gateway.enter(run="r-2", ticket_run="r-2", key=OTHER_KEY)
    assert other.epoch == 1
    gateway.sessions.goodbye(RUN, 0.0)
    assert other.ending is None
    assert gateway.sessions.count() == 1


def test_fixed_texts_name_no_node_run_or_cause() -> None:
    for ending in Ending:
        status, text = ending.value
        assert status.isupper()
        assert "{" not in text
        assert "%" not in text
