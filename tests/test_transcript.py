"""What a server keeps of an open attempt: bytes that come back, no secret, no other spelling."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from umbel.protocol import messages_pb2 as pb
from umbel.protocol.errors import Malformed
from umbel.protocol.transcript import LIMIT, MAGIC, Transcript
from umbel.tests.actors import Game
from umbel.tests.transcript import lp

GAME = Game(5).to_masked(lost=(4,))
GAME.server.end_uploads()
KEPT = GAME.server.transcript({who.id: who.certificate for who in GAME.people}.__getitem__)
DATA = KEPT.pack()


def test_it_comes_back_as_it_was() -> None:
    again = Transcript.unpack(DATA)
    assert again == KEPT
    assert [der for der, _ in again.members] == [who.certificate for who in GAME.people]
    assert sorted(again.shares) == [0, 1, 2, 3, 4]
    assert dict(again.headers) == {i: GAME.headers[i] for i in range(4)}


def test_no_sealed_share_is_in_it() -> None:
    blobs = [sealed.blob for box in GAME.inboxes.values() for sealed in box.blobs]
    assert len(blobs) == 5 * 4
    assert not [blob for blob in blobs if blob in DATA or blob[:16] in DATA]
    hashes = [sealed.seed_share_hash for box in GAME.inboxes.values() for sealed in box.blobs]
    assert all(found in DATA for found in hashes)


def test_its_form_is_the_documented_one() -> None:
    """lp(magic) lp(ctx0) lp(ctx) lp(count) ..., then the SHA-256 of all that."""
    begin = lp(MAGIC, GAME.server.ctx0, GAME.server.ctx, b"5", GAME.people[0].certificate)
    assert DATA.startswith(begin)
    assert DATA[-32:] == hashlib.sha256(DATA[:-32]).digest()
    assert lp(b"5", b"0", KEPT.shares[0].SerializeToString()) in DATA
    assert lp(b"4", b"0", KEPT.headers[0].SerializeToString()) in DATA


@given(st.integers(0, len(DATA) - 1), st.integers(1, 255))
def test_one_other_byte_is_no_transcript(at: int, change: int) -> None:
    other = bytearray(DATA)
    other[at] ^= change
    with pytest.raises(Malformed, match="a text whose hash is behind it"):
        Transcript.unpack(bytes(other))


def signed(*fields: bytes) -> bytes:
    """Return fields with the right hash behind them."""
    body = lp(*fields)
    return body + hashlib.sha256(body).digest()


@pytest.mark.parametrize(
    "fields",
    [
        (),
        (b"umbel/transcript/2", bytes(32), bytes(32), b"0", b"0", b"0"),
        (MAGIC, bytes(32), bytes(32), b"1", b"0", b"0"),
        (MAGIC, bytes(32), bytes(32), b"-1", b"0", b"0"),
        (MAGIC, bytes(32), bytes(32), b"00", b"0", b"0"),
        (MAGIC, bytes(32), bytes(32), b"0", b"0", b"0", b"more"),
        (MAGIC, bytes(32), bytes(32), b"0", b"1", b"0", b"", b"0"),
        (MAGIC, bytes(32), bytes(32), b"1", b"der", b"\xff", b"0", b"0"),
        (MAGIC, bytes(32), bytes(32), b"1", b"der", b"", b"0", b"1", b"0", b""),
        (MAGIC, bytes(32), bytes(32), "\u0661".encode(), b"der", b"", b"0", b"0"),
    ],
    ids=("empty", "other", "short", "negative", "zeros", "more", "place", "wire", "U2", "digit"),
)
def test_well_hashed_nonsense_is_none_either(fields: tuple[bytes, ...]) -> None:
    with pytest.raises(Malformed, match="transcript: file: expected"):
        Transcript.unpack(signed(*fields))


def test_the_least_of_it_is_read() -> None:
    found = Transcript.unpack(signed(MAGIC, bytes(32), bytes(32), b"1", b"der", b"", b"0", b"0"))
    assert found.members == ((b"der", pb.Keys()),)
    assert len(DATA) < LIMIT


def test_a_length_beyond_the_end_is_none() -> None:
    body = lp(MAGIC) + (2**62).to_bytes(8, "little")
    with pytest.raises(Malformed, match="the fields of a transcript"):
        Transcript.unpack(body + hashlib.sha256(body).digest())
