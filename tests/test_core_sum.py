"""The open sum of the core: expected, granted, whole, folded; and the ways to be bad."""

from __future__ import annotations

import asyncio
import threading
from hashlib import sha256
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from umbel.protocol.errors import BadUpdate, PeerError
from umbel.protocol.frames import Kind, frames
from umbel.server.core.world import World
from umbel.server.core_sum import CoreSum
from umbel.server.endings import Ending, Turned
from umbel.server.ingest import Shape

CTX = bytes(range(32))
MIB = 1 << 20
SIZE = 2 * MIB + 64
A, B = "aa" * 16, "bb" * 16


class Told:
    """What the ServerApp was told."""

    def __init__(self, slots: int = 1, check: Any = None, size: int = SIZE) -> None:
        self.events: list[tuple[str, dict[str, object]]] = []
        self.sum = CoreSum(World(slots), CTX, Shape(size, size, 5.0), check, self._tell)

    def _tell(self, op: str, **fields: object) -> None:
        assert fields.pop("ctx") == CTX.hex()
        self.events.append((op, fields))


def vector(byte: int, size: int = SIZE) -> bytes:
    return bytes([byte]) * size


def digest(data: bytes) -> bytes:
    return sha256(data).digest()


def parts(data: bytes, start: int = 0) -> list[bytes]:
    return list(frames(Kind.UPLOAD, CTX, data, start))


def send(told: Told, node: str, data: bytes, now: float = 0.0) -> bool:
    return [told.sum.frame(node, frame, now) for frame in parts(data)][-1]


def turned(call: Any, *arguments: Any) -> Turned:
    with pytest.raises(Turned) as caught:
        call(*arguments)
    return caught.value


def test_a_vector_passes_through_its_states() -> None:
    told = Told()
    assert told.sum.grant(A, 0.0) is None
    assert not told.sum.expects(A)
    told.sum.expect(A, digest(vector(1)))
    assert told.sum.expects(A)
    assert told.sum.grant(A, 0.0) == 0
    assert [told.sum.frame(A, frame, 0.0) for frame in parts(vector(1))] == [False, False, True]
    assert told.events == [("whole", {"node": A})]
    assert told.sum.grant(A, 0.0) == SIZE
    told.sum.fold(A)
    assert told.sum.grant(A, 0.0) == SIZE
    assert bytes(told.sum._ingest.sum.result()) == vector(1)
    assert told.events == [("whole", {"node": A})]


@given(st.lists(st.integers(1, 700), min_size=1, max_size=6), st.integers(1, 5))
@settings(max_examples=30)
def test_the_hash_is_that_of_the_whole_however_often_frames_come(
    repeats: list[int], seed: int
) -> None:
    size = 640
    told, data = Told(size=size), bytes((seed * n) % 256 for n in range(size))
    told.sum.expect(A, digest(data))
    header_kind, pieces = Kind.UPLOAD, []
    for start in sorted({n % size for n in repeats} | {0}):
        pieces += list(frames(header_kind, CTX, data, start))
    for piece in reversed(pieces[:1]):
        assert told.sum.frame(A, piece, 0.0)
    for piece in pieces:  # and again, all of them
        assert told.sum.frame(A, piece, 0.0)
    assert told.events == [("whole", {"node": A})]
    told.sum.fold(A)
    assert bytes(told.sum._ingest.sum.result()) == data


def test_frames_of_a_node_that_is_not_expected_are_refused() -> None:
    told = Told()
    error = turned(told.sum.frame, A, parts(vector(1))[0], 0.0)
    assert error.ending is Ending.MALFORMED
    assert "without having been given a slot" in str(error)
    assert told.events == []


def test_without_a_free_slot_there_is_no_grant() -> None:
    told = Told()
    for node, byte in ((A, 1), (B, 2)):
        told.sum.expect(node, digest(vector(byte)))
    assert (told.sum.grant(A, 0.0), told.sum.grant(B, 0.0)) == (0, None)
    send(told, A, vector(1))
    assert told.sum.grant(B, 0.0) is None, "whole is not folded: the slot is taken"
    told.sum.fold(A)
    assert told.sum.grant(B, 0.0) == 0


@pytest.mark.parametrize(
    ("second", "why", "attack"),
    [
        (parts(vector(2))[0], "sent other bytes for 0", True),
        (parts(vector(1))[0][:-1], "frame payload", False),
        (b"", "frame header", False),
        (parts(vector(1))[2], "frame offset", False),
    ],
)
def test_a_bad_frame_frees_the_slot_and_ends_the_node(
    second: bytes, why: str, attack: bool
) -> None:
    told = Told()
    told.sum.expect(A, digest(vector(1)))
    told.sum.expect(B, digest(vector(2)))
    told.sum.frame(A, parts(vector(1))[0], 0.0)
    error = turned(told.sum.frame, A, second, 0.0)
    assert error.ending is Ending.MALFORMED
    ((op, fields),) = told.events
    assert (op, fields["node"], fields["attack"]) == ("bad", A, attack)
    assert why in str(fields["why"])
    assert A not in str(fields["why"])
    assert told.sum.grant(B, 0.0) == 0
    assert turned(told.sum.grant, A, 0.0).ending is Ending.NOT_WANTED
    send(told, B, vector(2))
    told.sum.fold(B)
    assert bytes(told.sum._ingest.sum.result()) == vector(2)


def test_a_vector_that_does_not_hash_to_what_was_signed_is_an_attack() -> None:
    told = Told()
    told.sum.expect(A, digest(vector(1)))
    with pytest.raises(Turned):
        send(told, A, vector(2))
    assert told.events == [
        (
            "bad",
            {"node": A, "why": "the update does not hash to what was signed", "attack": True},
        )
    ]
    with pytest.raises(PeerError, match="is not whole"):
        told.sum.fold(A)
    assert bytes(told.sum._ingest.sum.result()) == bytes(SIZE)


def test_a_second_header_changes_nothing() -> None:
    told = Told()
    told.sum.expect(A, digest(vector(1)))
    told.sum.expect(A, digest(vector(2)))
    assert send(told, A, vector(1))


def test_an_unmasked_vector_that_the_firewall_refuses_is_bad_but_no_attack() -> None:
    def check(node: str, slot: memoryview) -> None:
        raise BadUpdate(node, "L2 norm of the delta", "at most 1", slot[0])

    told = Told(check=check)
    told.sum.expect(A, digest(vector(9)))
    with pytest.raises(Turned):
        send(told, A, vector(9))
    ((op, fields),) = told.events
    assert (op, fields["attack"]) == ("bad", False)
    assert fields["why"] == "L2 norm of the delta", "its number is one client's"


def test_discarded_is_discarded_also_when_it_was_whole() -> None:
    told = Told()
    told.sum.expect(A, digest(vector(1)))
    send(told, A, vector(1))
    told.sum.discard(A)
    told.sum.discard(A)
    with pytest.raises(PeerError, match="is not whole"):
        told.sum.fold(A)
    assert turned(told.sum.frame, A, parts(vector(1))[0], 0.0).ending is Ending.NOT_WANTED


def test_a_folded_vector_stays_whatever_comes_after() -> None:
    told = Told()
    told.sum.expect(A, digest(vector(1)))
    send(told, A, vector(1))
    told.sum.fold(A)
    told.sum.discard(A)
    assert bytes(told.sum._ingest.sum.result()) == vector(1)


def test_a_slot_rests_only_while_frames_are_awaited_and_somebody_waits() -> None:
    told = Told()
    for node in (A, B):
        told.sum.expect(node, digest(vector(1)))
    told.sum.frame(A, parts(vector(1))[0], 10.0)
    told.sum.tick(100.0)
    assert told.events == []
    assert told.sum.grant(B, 10.0) is None
    assert told.sum.due == 15.0
    told.sum.tick(14.9)
    assert told.events == []
    told.sum.tick(15.0)
    assert told.events == [
        (
            "bad",
            {
                "node": A,
                "why": "its upload stalled while others waited for the slot",
                "attack": False,
            },
        )
    ]
    assert told.sum.grant(B, 15.0) == 0


def test_a_whole_vector_does_not_rest() -> None:
    told = Told()
    for node in (A, B):
        told.sum.expect(node, digest(vector(1)))
    send(told, A, vector(1), 10.0)
    assert told.sum.grant(B, 10.0) is None
    told.sum.tick(1e6)
    assert told.events == [("whole", {"node": A})]


def test_the_serverapp_hears_until_when_an_upload_keeps_pace_and_only_news() -> None:
    """A rest of 5 s; the whole, three frames, in 40 s: two frames may take 5 + 2/3 of 40 s."""
    told = Told(slots=2)
    told.sum = CoreSum(World(2), CTX, Shape(SIZE, SIZE, 5.0, 40.0, 2), None, told._tell)
    told.sum.say_progress(0.0)
    assert told.events == []
    for node in (A, B):
        told.sum.expect(node, digest(vector(1)))
    told.sum.grant(A, 1.0)
    told.sum.say_progress(1.25)
    told.sum.say_progress(1.5)
    assert told.events == [("progress", {"left": 4.75})]
    first, second, third = parts(vector(1))
    told.sum.frame(A, first, 3.0)
    told.sum.grant(B, 3.0)
    told.sum.say_progress(3.5)
    told.sum.say_progress(7.99)
    assert told.events[1:] == [("progress", {"left": 4.5})]
    told.sum.say_progress(8.0)  # both rest: nothing to say
    told.sum.frame(A, second, 10.0)
    told.sum.frame(A, third, 10.1)
    told.sum.say_progress(10.2)  # whole, and not waited for any more
    assert told.events[2:] == [("whole", {"node": A})]


def test_who_gives_up_waiting_puts_nobody_under_pressure() -> None:
    told = Told()
    for node in (A, B):
        told.sum.expect(node, digest(vector(1)))
    told.sum.frame(A, parts(vector(1))[0], 0.0)
    told.sum.grant(B, 0.0)
    told.sum.give_up(B)
    told.sum.tick(1e6)
    assert told.events == []


def test_a_frozen_sum_takes_nothing_and_blames_nobody() -> None:
    told = Told()
    told.sum.expect(A, digest(vector(1)))
    told.sum.frame(A, parts(vector(1))[0], 0.0)
    told.sum.unmask([(bytes(32), 1)])
    assert turned(told.sum.frame, A, parts(vector(1))[1], 0.0).ending is Ending.NOT_WANTED
    assert told.events == []


def test_a_close_waits_for_the_thread_that_works_on_the_buffers() -> None:
    world = World(1)
    told = CoreSum(world, CTX, Shape(64, 64, 5.0), None, lambda *_, **__: None)
    go_on = threading.Event()
    held: list[bytes] = []

    def work() -> None:
        assert go_on.wait(10)
        held.append(bytes(told._ingest.sum.result()))

    async def play() -> None:
        working = asyncio.create_task(told.in_thread(work))
        await asyncio.sleep(0.05)
        told.close()
        assert len(told._ingest.sum.result()) == 64, "its buffer is not given back yet"
        go_on.set()
        await working
        assert len(told._ingest.sum.result()) == 0

    asyncio.run(play())
    assert held == [bytes(64)]
