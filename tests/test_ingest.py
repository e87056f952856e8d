"""Vectors on their way into the core: slots, offsets, and slots that rest."""

from __future__ import annotations

import hashlib
import math

import pytest

from umbel.protocol.errors import Malformed, PeerError
from umbel.protocol.frames import HEADER, PAYLOAD, Kind, frames
from umbel.server.core.world import World
from umbel.server.ingest import Ingest, Shape

CTX = bytes(range(32))
SIZE, SPLIT = 2 * PAYLOAD + 128, 2 * PAYLOAD
STALL = 15.0


def ingest(slots: int = 1) -> Ingest:
    return Ingest(World(slots), CTX, Shape(SIZE, SPLIT, STALL))


def parts(byte: int, start: int = 0, ctx: bytes = CTX) -> list[bytes]:
    return list(frames(Kind.UPLOAD, ctx, bytes([byte]) * SIZE, start))


def send(into: Ingest, node: str, byte: int, now: float = 0.0) -> None:
    assert into.wants(node, now) == 0
    whole = [into.accept(node, frame, now) for frame in parts(byte)]
    assert whole == [False, False, True]


def test_a_whole_vector_is_folded_once() -> None:
    made = ingest()
    send(made, "a", 1)
    assert made.digest("a") == hashlib.sha256(b"\x01" * SIZE).digest()
    assert list(made.folded) == []
    made.fold("a")
    assert list(made.folded) == ["a"]
    send(made, "b", 2)
    made.fold("b")
    assert bytes(made.sum.result()) == b"\x03" * SIZE
    assert list(made.folded) == ["a", "b"]


def test_what_comes_again_after_the_fold_is_passed_over() -> None:
    made = ingest()
    send(made, "a", 1)
    made.fold("a")
    assert made.wants("a", 0.0) is None
    assert not any(made.accept("a", frame, 0.0) for frame in parts(7))
    assert bytes(made.sum.result()) == b"\x01" * SIZE


def test_without_a_slot_nobody_is_wanted() -> None:
    made = ingest(slots=2)
    assert (made.wants("a", 0.0), made.wants("b", 0.0), made.wants("c", 0.0)) == (0, 0, None)
    with pytest.raises(PeerError, match="c: sent frames without having been given a slot"):
        made.accept("c", parts(3)[0], 0.0)
    made.discard("b")
    assert made.wants("c", 0.0) == 0


def test_a_broken_upload_goes_on_where_it_stopped() -> None:
    made = ingest()
    made.wants("a", 0.0)
    first, second, third = parts(5)
    made.accept("a", first, 0.0)
    made.accept("a", second, 0.0)
    assert made.wants("a", 1.0) == 2 * PAYLOAD
    assert not made.accept("a", second, 1.0)  # again, and the same
    assert made.accept("a", third, 1.0)


@pytest.mark.parametrize(
    ("frame", "what"),
    [
        (parts(1)[1], "frame offset"),
        (parts(1, ctx=bytes(32))[0], "frame subject"),
        (b"", "frame header"),
        (parts(1)[0][:-1], "frame payload"),
        (next(frames(Kind.MODEL, CTX, bytes(SIZE))), "frame kind"),
        (next(frames(Kind.UPLOAD, CTX, bytes(SIZE - 8))), "frame total"),
    ],
)
def test_a_frame_of_another_upload_is_malformed_by_name(frame: bytes, what: str) -> None:
    made = ingest()
    made.wants("a", 0.0)
    with pytest.raises(Malformed, match=f"^a: {what}"):
        made.accept("a", frame, 0.0)


def test_other_bytes_for_what_came_are_an_attack() -> None:
    made = ingest()
    made.wants("a", 0.0)
    made.accept("a", parts(1)[0], 0.0)
    with pytest.raises(PeerError, match=r"^a: sent other bytes for 0"):
        made.accept("a", parts(2)[0], 0.0)


def test_a_discarded_upload_leaves_nothing_and_may_start_again() -> None:
    made = ingest()
    made.wants("a", 0.0)
    made.accept("a", parts(9)[0], 0.0)
    made.discard("a")
    send(made, "b", 1)
    made.fold("b")
    send(made, "a", 2)
    made.fold("a")
    assert bytes(made.sum.result()) == b"\x03" * SIZE
    made.discard("a")  # too late: it is in the sum and stays there
    assert made.folded == ("b", "a")


def test_a_node_without_a_slot_has_no_bytes() -> None:
    made = ingest()
    made.wants("a", 0.0)
    with pytest.raises(PeerError, match="b: holds no slot"):
        made.slot("b")


# ---- slots that rest -------------------------------------------------------------------------


def test_a_slot_may_rest_while_nobody_waits() -> None:
    made = ingest()
    made.wants("a", 0.0)
    assert made.patient_until == math.inf
    assert made.stalled(1e9) == []


def test_a_slot_that_rests_too_long_is_named_when_somebody_waits() -> None:
    made = ingest()
    made.wants("a", 100.0)
    assert made.wants("b", 101.0) is None
    assert made.patient_until == 100.0 + STALL
    assert made.stalled(100.0 + STALL - 0.001) == []
    assert made.stalled(100.0 + STALL) == ["a"]


def test_every_frame_gives_the_slot_more_time() -> None:
    made = ingest()
    made.wants("a", 0.0)
    made.wants("b", 0.0)
    made.accept("a", parts(1)[0], 14.0)
    assert made.patient_until == 14.0 + STALL
    assert made.stalled(20.0) == []


def test_a_slot_that_fills_drop_by_drop_is_named_when_somebody_waits() -> None:
    """Half of the vector, and then the same frame again and again: half of the trip and a rest."""
    made = ingest()
    made.wants("a", 0.0)
    made.wants("b", 0.0)
    frame = parts(1)[0]
    half = STALL + 4 * STALL * PAYLOAD / SIZE
    for now in (0.0, 14.0, 28.0, 42.0):
        made.accept("a", frame, now)
        assert made.patient_until == min(now + STALL, half)
    assert made.stalled(half) == ["a"]


@pytest.mark.parametrize("seconds", [1.0, 4 * STALL])
def test_whoever_needs_no_more_than_the_trip_is_never_stalled(seconds: float) -> None:
    made = ingest()
    made.wants("a", 0.0)
    made.wants("b", 0.0)
    whole = bytes([1]) * SIZE
    for step in range(1, 101):
        now = seconds * step / 100
        assert made.stalled(now) == []
        end = SIZE * step // 100
        start = made.wants("a", now)
        assert start is not None
        made.accept("a", _cut(next(frames(Kind.UPLOAD, CTX, whole, start)), end - start), now)
    assert made.digest("a") == hashlib.sha256(whole).digest()


def _cut(frame: bytes, size: int) -> bytes:
    """Return a frame with the first `size` bytes of its payload."""
    return frame[:56] + size.to_bytes(4, "little") + frame[60 : HEADER + size]


def test_only_the_resting_one_of_several_is_named() -> None:
    made = ingest(slots=2)
    made.wants("a", 0.0)
    made.wants("b", 0.0)
    made.wants("c", 0.0)
    made.accept("a", parts(1)[0], 10.0)
    assert made.stalled(15.0) == ["b"]
    assert made.stalled(25.0) == ["a", "b"]


def test_who_got_a_slot_or_left_waits_no_more() -> None:
    made = ingest()
    made.wants("a", 0.0)
    made.wants("b", 0.0)
    made.wants("c", 0.0)
    made.discard("a")
    assert made.wants("b", 5.0) == 0
    assert made.patient_until == 5.0 + STALL  # c still waits
    made.discard("c")
    assert made.patient_until == math.inf


def test_closing_ends_all_patience() -> None:
    made = ingest()
    made.wants("a", 0.0)
    made.wants("b", 0.0)
    made.close()
    assert made.stalled(1e9) == []


def test_a_whole_vector_rests_no_more_whoever_waits() -> None:
    made = ingest()
    send(made, "a", 1)
    assert made.wants("b", 0.0) is None
    assert made.patient_until == math.inf
    assert made.stalled(1e9) == []


def test_who_waits_no_longer_puts_nobody_under_pressure() -> None:
    made = ingest()
    made.wants("a", 0.0)
    made.wants("b", 0.0)
    assert made.patient_until == STALL
    made.unwait("b")
    assert made.patient_until == math.inf
    made.unwait("c")


# ---- pace ------------------------------------------------------------------------------------


def paced(slots: int, members: int) -> Ingest:
    """A rest of 15 s, so a trip of 60 s; 600 s for all uploads."""
    return Ingest(World(slots), CTX, Shape(SIZE, SPLIT, STALL, 600.0, members))


def test_an_upload_keeps_pace_while_it_would_be_whole_in_the_time_for_all_of_them() -> None:
    made = paced(1, 1)
    assert made.alive_until == -math.inf
    made.wants("a", 100.0)
    assert made.alive_until == 115.0
    made.accept("a", parts(1)[0], 114.0)
    assert made.alive_until == 129.0
    half = 115.0 + 600.0 * PAYLOAD / SIZE
    made.accept("a", parts(1)[0], half - 1.0)  # nothing new in it
    assert made.alive_until == half
    made.accept("a", parts(1)[1], half)
    assert made.alive_until == half + 15.0
    made.accept("a", parts(1)[2], half + 1)
    assert made.alive_until == -math.inf


def test_the_best_of_several_counts_and_who_is_gone_does_not() -> None:
    made = paced(2, 2)
    made.wants("a", 0.0)
    made.wants("b", 10.0)
    assert made.alive_until == 25.0
    made.discard("b")
    assert made.alive_until == 15.0
    made.close()
    assert made.alive_until == -math.inf


@pytest.mark.parametrize(
    ("slots", "members", "turn"),
    [(1, 1, 600.0), (1, 4, 150.0), (4, 5, 300.0), (4, 4, 600.0), (1, 100, 60.0), (4, 0, 600.0)],
)
def test_while_others_wait_it_must_keep_up_with_its_turn(
    slots: int, members: int, turn: float
) -> None:
    """600 s divided by the turns that the slots need, and no less than the trip of 60 s."""
    made = paced(slots, members)
    for number in range(slots + 1):
        made.wants(str(number), 0.0)
    late = STALL + turn * PAYLOAD / SIZE
    for now in (14.0, late - 1.0):
        made.accept("0", parts(1)[0], now)
    assert "0" not in made.stalled(late - 0.001)
    assert "0" in made.stalled(late)
