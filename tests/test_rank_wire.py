"""Frames between a supervisor and its ranks: any cut of the bytes, limits of sizes."""

from __future__ import annotations

import socket
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from umbel.protocol.errors import StateError
from umbel.server.core import rank_wire
from umbel.server.core.rank_wire import Frames, opening, send

HEADS = st.dictionaries(st.text(max_size=5), st.integers() | st.text(max_size=5), max_size=3)


@given(st.lists(st.tuples(HEADS, st.binary(max_size=40)), max_size=4), st.data())
def test_any_cut_gives_the_same_frames(
    sent: list[tuple[dict[str, Any], bytes]], data: st.DataObject
) -> None:
    stream = b"".join(opening(head, len(payload)) + payload for head, payload in sent)
    frames, came = Frames(), []
    while stream:
        size = data.draw(st.integers(1, len(stream)))
        came += list(frames.feed(stream[:size]))
        stream = stream[size:]
    assert [(head, bytes(payload)) for head, payload in came] == sent


def test_a_frame_is_two_sizes_and_two_parts() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        send(ours, opening({"op": "x"}, 3), b"key")
        head = b'{"op": "x"}'
        assert theirs.recv(100) == struct.pack("<II", len(head), 3) + head + b"key"


@pytest.mark.parametrize(
    "stream",
    [
        struct.pack("<II", rank_wire.MAX_HEAD + 1, 0),
        struct.pack("<II", 2, rank_wire.MAX_PAYLOAD + 1),
        struct.pack("<II", 2, 0) + b"{]",
    ],
)
def test_other_bytes_are_no_frame(stream: bytes) -> None:
    with pytest.raises(StateError, match="rank: expected"):
        list(Frames().feed(stream))


def test_what_is_too_large_is_not_begun() -> None:
    with pytest.raises(StateError, match="a frame of at most"):
        opening({"nodes": "x" * rank_wire.MAX_HEAD}, 0)
    with pytest.raises(StateError, match="a frame of at most"):
        opening({}, rank_wire.MAX_PAYLOAD + 1)
