"""A retried message counts once: the two ends of a stream that breaks anywhere."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from umbel.protocol.errors import Malformed, PeerError
from umbel.protocol.replay import (
    MAX_BYTES,
    MAX_MESSAGES,
    OWED_BYTES,
    OWED_MESSAGES,
    Inbox,
    Outbox,
)
from umbel.protocol.wire import MAX_MESSAGE


def test_messages_are_numbered_from_one_and_kept_until_acknowledged() -> None:
    out = Outbox("b")
    assert (out.sent, out.kept, out.kept_bytes) == (0, 0, 0)
    assert [out.add(b"a"), out.add(b"bc"), out.add(b"def")] == [1, 2, 3]
    assert (out.sent, out.kept, out.kept_bytes) == (3, 3, 6)
    assert out.after(0) == [(1, b"a"), (2, b"bc"), (3, b"def")]
    out.acked(2)
    assert out.after(0) == [(3, b"def")]
    assert (out.sent, out.kept, out.kept_bytes) == (3, 1, 3)
    assert out.after(3) == []


def test_an_acknowledgement_that_comes_late_or_again_changes_nothing() -> None:
    out = Outbox("b")
    for _ in range(3):
        out.add(b"x")
    for ack in (2, 2, 1, 0):
        out.acked(ack)
    assert out.after(0) == [(3, b"x")]


def test_what_was_never_sent_cannot_be_acknowledged() -> None:
    out = Outbox("node 7")
    out.add(b"x")
    with pytest.raises(Malformed, match="node 7: ack: expected at most 1, got 2"):
        out.acked(2)
    assert out.after(0) == [(1, b"x")]


def test_a_peer_that_does_not_read_is_named_and_nothing_more_is_kept() -> None:
    out = Outbox("node 7", max_messages=2)
    out.add(b"x")
    out.add(b"y")
    with pytest.raises(PeerError, match="node 7: does not read what it is sent"):
        out.add(b"z")
    assert (out.sent, out.after(0)) == (2, [(1, b"x"), (2, b"y")])
    out.acked(1)
    assert out.add(b"z") == 3


def test_bytes_are_bounded_and_the_largest_message_fits_an_empty_outbox() -> None:
    out = Outbox("b", max_bytes=10)
    assert out.add(bytes(MAX_MESSAGE)) == 1
    with pytest.raises(PeerError, match="at most 64 messages and 10 bytes"):
        out.add(b"")
    out.acked(1)
    assert [out.add(bytes(5)), out.add(bytes(5))] == [2, 3]
    with pytest.raises(PeerError):
        out.add(b"1")
    assert MAX_BYTES >= MAX_MESSAGE
    assert MAX_MESSAGES > OWED_MESSAGES, "else a reader that acknowledges when it owes is cut off"


def test_an_inbox_takes_each_number_once_and_in_order() -> None:
    inbox = Inbox("a")
    assert [inbox.accept(n, 1) for n in (1, 2, 2, 1, 3)] == [True, True, False, False, True]
    assert inbox.received == 3


@pytest.mark.parametrize("seq", [0, 3, 2**64 - 1])
def test_a_gap_is_no_stream(seq: int) -> None:
    inbox = Inbox("node 7")
    inbox.accept(1, 1)
    with pytest.raises(Malformed, match=rf"node 7: seq: expected 1\.\.2, got {seq}"):
        inbox.accept(seq, 1)
    assert inbox.received == 1


def test_many_or_large_messages_are_acknowledged_without_waiting() -> None:
    inbox = Inbox("a")
    for seq in range(1, OWED_MESSAGES):
        inbox.accept(seq, 1)
        assert not inbox.owes
    inbox.accept(OWED_MESSAGES, 1)
    assert inbox.owes
    assert inbox.ack() == OWED_MESSAGES
    assert not inbox.owes
    inbox.accept(OWED_MESSAGES + 1, OWED_BYTES)
    assert inbox.owes


def test_a_repeat_owes_nothing_new() -> None:
    inbox = Inbox("a")
    inbox.accept(1, 1)
    inbox.ack()
    for _ in range(20):
        inbox.accept(1, OWED_BYTES)
    assert not inbox.owes


@given(st.lists(st.binary(max_size=4), max_size=MAX_MESSAGES), st.data())
def test_after_gives_the_tail(messages: list[bytes], data: st.DataObject) -> None:
    out = Outbox("b")
    for message in messages:
        out.add(message)
    ack = data.draw(st.integers(0, len(messages)))
    seen = data.draw(st.integers(0, len(messages)))
    out.acked(ack)
    numbered = list(enumerate(messages, 1))
    assert out.after(seen) == numbered[max(ack, seen) :]


class BrokenStream(RuleBasedStateMachine):
    """Two ends and a stream that loses its tail whenever it breaks; ends keep their objects."""

    def __init__(self) -> None:
        super().__init__()
        self.out, self.inbox = Outbox("b", max_messages=10**6), Inbox("a")
        self.wire: list[tuple[int, bytes]] = []
        self.acks: list[int] = []
        self.said: list[bytes] = []
        self.heard: list[bytes] = []

    @rule(message=st.binary(max_size=8))
    def send(self, message: bytes) -> None:
        """Say a message."""
        self.said.append(message)
        self.wire.append((self.out.add(message), message))

    @rule()
    def receive(self) -> None:
        """Let the next message arrive."""
        if self.wire:
            seq, message = self.wire.pop(0)
            if self.inbox.accept(seq, len(message)):
                self.heard.append(message)

    @rule()
    def acknowledge(self) -> None:
        """Put an acknowledgement under way."""
        self.acks.append(self.inbox.ack())

    @rule()
    def hear_acknowledgement(self) -> None:
        """Let it arrive."""
        if self.acks:
            self.out.acked(self.acks.pop(0))

    @rule(told=st.booleans())
    def break_and_resume(self, told: bool) -> None:
        """What was under way is lost; with `told` the resumer says what it has."""
        self.acks.clear()
        if told:
            self.out.acked(self.inbox.ack())
        self.wire = list(self.out.after(0))

    @invariant()
    def heard_is_a_beginning_of_what_was_said(self) -> None:
        """Nothing twice, nothing missing, nothing out of order."""
        assert self.heard == self.said[: len(self.heard)]
        assert self.inbox.received == len(self.heard)

    def teardown(self) -> None:
        """After a last resume everything has come, once."""
        for seq, message in self.out.after(0):
            if self.inbox.accept(seq, len(message)):
                self.heard.append(message)
        assert self.heard == self.said


TestBrokenStream = BrokenStream.TestCase
