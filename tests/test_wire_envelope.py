"""The envelope of a session's streams, and the request for a model: every limit at its edge."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from umbel.protocol import messages_pb2 as pb
from umbel.protocol.errors import Malformed
from umbel.protocol.wire import MAX_ENVELOPE, MAX_MESSAGE, parse_down, parse_fetch, parse_up

if TYPE_CHECKING:
    from google.protobuf.message import Message

HELLO = pb.Hello(run="r-1", ticket=b"t", certificate=b"c")


def hello(**changes: Any) -> pb.Up:
    fields = {"run": "r-1", "ticket": b"t", "certificate": b"c"} | changes
    return pb.Up(hello=pb.Hello(**fields))


GOOD_UP: list[pb.Up] = [
    hello(),
    hello(run="r" * 128, ticket=bytes(4096), certificate=bytes(4096), resume=True),
    hello(version="0.2.0rc1+local-7_x.y"),
    pb.Up(hello=HELLO, ack=2**64 - 1),
    pb.Up(seq=1, message=b"m"),
    pb.Up(seq=2**64 - 1, ack=2**64 - 1, message=bytes(MAX_MESSAGE)),
    pb.Up(ack=7),
    pb.Up(),
]
BAD_UP: list[tuple[pb.Up, str]] = [
    (hello(version="1" * 33), "hello.version"),
    (hello(version="0.1 <b>"), "hello.version"),
    (hello(run=""), "run, characters"),
    (hello(run="r" * 129), "run, characters"),
    (hello(ticket=b""), "hello.ticket"),
    (hello(ticket=bytes(4097)), "hello.ticket"),
    (hello(certificate=b""), "hello.certificate"),
    (hello(certificate=bytes(4097)), "hello.certificate"),
    (pb.Up(seq=1, hello=HELLO), "seq"),
    (pb.Up(seq=1), "seq"),
    (pb.Up(message=b"m"), "seq"),
    (pb.Up(seq=1, message=b""), "message, bytes"),
    (pb.Up(seq=1, message=bytes(MAX_MESSAGE + 1)), "message, bytes"),
    (pb.Up(seq=1, message=bytes(MAX_ENVELOPE)), "message: expected at most 2097216 bytes"),
]


@pytest.mark.parametrize("up", GOOD_UP)
def test_what_is_within_the_limits_passes_up(up: pb.Up) -> None:
    assert parse_up(up.SerializeToString(), "n") == up


@pytest.mark.parametrize(("up", "words"), BAD_UP)
def test_what_is_beyond_a_limit_is_malformed(up: pb.Up, words: str) -> None:
    with pytest.raises(Malformed, match="node 7: ") as caught:
        parse_up(up.SerializeToString(), "node 7")
    assert words in str(caught.value)


def test_the_largest_message_fits_the_envelope_with_its_numbers() -> None:
    largest = pb.Up(seq=2**64 - 1, ack=2**64 - 1, message=bytes(MAX_MESSAGE))
    assert MAX_MESSAGE < largest.ByteSize() <= MAX_ENVELOPE


@pytest.mark.parametrize(
    "down",
    [
        pb.Down(welcome=pb.Welcome(epoch=1), ack=4),
        pb.Down(seq=1, message=b"m"),
        pb.Down(ack=9),
    ],
)
def test_what_is_within_the_limits_passes_down(down: pb.Down) -> None:
    assert parse_down(down.SerializeToString()) == down


@pytest.mark.parametrize(
    ("down", "words"),
    [
        (pb.Down(welcome=pb.Welcome()), "welcome.epoch"),
        (pb.Down(seq=1, welcome=pb.Welcome(epoch=1)), "seq"),
        (pb.Down(seq=1), "seq"),
        (pb.Down(message=b"m"), "seq"),
        (pb.Down(seq=1, message=bytes(MAX_MESSAGE + 1)), "message, bytes"),
    ],
)
def test_a_gateway_is_held_to_the_same(down: pb.Down, words: str) -> None:
    with pytest.raises(Malformed, match="gateway: ") as caught:
        parse_down(down.SerializeToString())
    assert words in str(caught.value)


def test_a_fetch_names_run_and_digest() -> None:
    good = pb.FetchRequest(run="r", digest=bytes(32), offset=2**64 - 1)
    assert parse_fetch(good.SerializeToString(), "n") == good
    for run, digest in (("", bytes(32)), ("r" * 129, bytes(32)), ("r", b""), ("r", bytes(33))):
        with pytest.raises(Malformed, match="n: "):
            parse_fetch(pb.FetchRequest(run=run, digest=digest).SerializeToString(), "n")


VALID: list[Message] = [*GOOD_UP[:4], pb.Down(seq=3, ack=1, message=b"abc"), HELLO]


@settings(max_examples=400, deadline=None)
@given(
    st.binary(max_size=200) | st.sampled_from([m.SerializeToString() for m in VALID]),
    st.integers(0, 200),
    st.binary(max_size=5),
)
def test_any_bytes_are_malformed_or_a_message(data: bytes, at: int, piece: bytes) -> None:
    mutated = data[:at] + piece + data[at + len(piece) :]
    for parse in (parse_up, parse_down, parse_fetch):
        with suppress(Malformed):
            parse(mutated, "n")
