"""Frames: the header by hand, resuming, repeats, and everything a sender can get wrong."""

import struct
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from umbel.protocol.errors import Malformed, PeerError
from umbel.protocol.frames import HEADER, PAYLOAD, Assembly, Kind, frames

SUBJECT = bytes(range(32))


def receive(total: int) -> tuple[Assembly, bytearray]:
    out = bytearray(total)
    return Assembly(Kind.UPLOAD, SUBJECT, total, "node 7", out), out


def frame(offset: int, payload: bytes, total: int) -> bytes:
    """A frame written from the table of the specification, not by the module."""
    fields = (b"UMBF", 1, 1, SUBJECT, offset, total, len(payload), bytes(4))
    return struct.pack("<4sHH32sQQI4s", *fields) + payload


def test_the_header_byte_by_byte() -> None:
    (first,) = frames(Kind.MODEL, SUBJECT, b"0123456789", start=3)
    assert first == bytes.fromhex(
        "554d4246"  # UMBF
        "0100"  # version 1
        "0200"  # a model
        "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f"
        "0300000000000000"  # offset 3
        "0a00000000000000"  # of 10 bytes
        "07000000"  # 7 in this frame
        "00000000"
    ) + (b"3456789")
    assert HEADER == 64 == len(first) - 7


def test_a_payload_is_one_mebibyte_and_the_last_is_short() -> None:
    data = bytearray(2 * PAYLOAD + 5)
    assert [len(f) - HEADER for f in frames(1, SUBJECT, data)] == [2**20, 2**20, 5]
    assert list(frames(1, SUBJECT, data, start=len(data))) == []


@given(data=st.binary(min_size=1, max_size=200), cut=st.integers(0, 200))
def test_an_upload_that_broke_resumes_where_it_stopped(data: bytes, cut: int) -> None:
    cut = min(cut, len(data))
    assembly, out = receive(len(data))
    if cut:
        assert assembly.accept(frame(0, data[:cut], len(data))) is (cut == len(data))
    assert assembly.received == cut
    rest = list(frames(Kind.UPLOAD, SUBJECT, data, start=assembly.received))
    assert [assembly.accept(f) for f in rest] == [True] * len(rest)
    assert assembly.complete
    assert bytes(out) == data


def test_large_uploads_come_back_whole() -> None:
    data = bytes(range(256)) * 10_000
    assembly, out = receive(len(data))
    assert [assembly.accept(f) for f in frames(1, SUBJECT, data)] == [False, False, True]
    assert out == data


def test_the_same_bytes_again_are_accepted() -> None:
    assembly, out = receive(8)
    assembly.accept(frame(0, b"abcd", 8))
    assert assembly.accept(frame(0, b"abcd", 8)) is False
    assert assembly.received == 4
    # Half known, half new: what a sender does that starts again a little earlier.
    assert assembly.accept(frame(2, b"cdefgh", 8)) is True
    assert assembly.accept(frame(1, b"bc", 8)) is True
    assert out == b"abcdefgh"


@pytest.mark.parametrize(("offset", "payload"), [(0, b"abcX"), (3, b"Xefg"), (1, b"X")])
def test_other_bytes_for_the_same_place_are_named_as_an_attack(offset: int, payload: bytes) -> None:
    # Two maskings of one context would cancel each other's masks.
    assembly, out = receive(8)
    assembly.accept(frame(0, b"abcd", 8))
    with pytest.raises(PeerError, match=rf"node 7: sent other bytes for {offset}") as caught:
        assembly.accept(frame(offset, payload, 8))
    assert not isinstance(caught.value, Malformed)
    assert (bytes(out), assembly.received) == (b"abcd\0\0\0\0", 4)


def changed(start: int, new: bytes) -> Callable[[bytes], bytes]:
    return lambda good: good[:start] + new + good[start + len(new) :]


@pytest.mark.parametrize(
    ("damage", "what"),
    [
        (lambda good: b"", "frame header"),
        (lambda good: good[:63], "frame header"),
        (changed(0, b"UMBG"), "frame magic"),
        (changed(4, b"\x02\x00"), "frame version"),
        (changed(6, b"\x02\x00"), "frame kind"),
        (changed(8, b"\xff"), "frame subject"),
        (changed(40, b"\x05"), "frame offset"),
        (changed(40, b"\xff" * 8), "frame offset"),
        (changed(48, b"\x09"), "frame total"),
        (changed(48, b"\xff" * 8), "frame total"),
        (changed(56, b"\x05"), "frame payload"),
        (changed(56, b"\xff" * 4), "frame payload"),
        (changed(60, b"\x00\x00\x00\x01"), "frame padding"),
        (lambda good: good + b"x", "frame payload"),
        (lambda good: good[:-1], "frame payload"),
        (lambda good: frame(4, b"", 8), "frame payload"),
        (lambda good: frame(4, b"efghi", 8), "frame end"),
        (lambda good: frame(0, bytes(PAYLOAD + 1), 8), "frame payload"),
    ],
)
def test_a_frame_that_breaks_a_rule_is_refused_and_changes_nothing(
    damage: Callable[[bytes], bytes], what: str
) -> None:
    assembly, out = receive(8)
    assembly.accept(frame(0, b"abcd", 8))
    with pytest.raises(Malformed, match=f"node 7: {what}"):
        assembly.accept(damage(frame(4, b"efgh", 8)))
    assert (bytes(out), assembly.received) == (b"abcd\0\0\0\0", 4)
    assert assembly.accept(frame(4, b"efgh", 8)) is True


def test_nothing_left_to_receive_is_complete_at_once() -> None:
    assembly, _ = receive(0)
    assert assembly.complete


def test_the_receiver_brings_the_memory() -> None:
    with pytest.raises(ValueError, match="9 writable bytes, got 8"):
        Assembly(Kind.UPLOAD, SUBJECT, 9, "node 7", bytearray(8))
    with pytest.raises(ValueError, match="8 writable bytes"):
        Assembly(Kind.UPLOAD, SUBJECT, 8, "node 7", memoryview(bytes(8)))


def test_a_sender_cannot_start_outside_the_buffer() -> None:
    with pytest.raises(ValueError, match=r"start lies in 0\.\.3, got 4"):
        next(frames(1, SUBJECT, b"abc", start=4))
    with pytest.raises(ValueError, match="32 bytes, got 3"):
        next(frames(1, b"abc", b"abc"))
