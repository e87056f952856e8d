"""How fast this device's line to its gateway is, by the gateway's method `Measure`.

First a call without bytes, which sets up the connection and times the way there and back; then a
little, and where that was quick, as much as the gateway takes.
"""

from __future__ import annotations

import struct
import time
from typing import TYPE_CHECKING, NamedTuple

import grpc

from .grpc_line import SERVICE, dial

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .device_files import TlsFiles

    Method = grpc.StreamStreamMultiCallable[bytes, bytes]

MEASURE_S = 20.0
"""Seconds for all of it."""
LITTLE, MUCH = 1 << 18, 4 << 20
"""Bytes each way of the two calls."""
PIECE = 1 << 16
_QUICK_S = 0.5
_HEAD = struct.Struct("<QQ")


class Speed(NamedTuple):
    """What was measured."""

    trip: float = 0.0
    """Seconds there and back."""
    up: float = 0.0
    """Bytes a second."""
    down: float = 0.0
    skew: float = 0.0
    """Seconds by which this clock is ahead of the gateway's, which says whole seconds."""
    refused: str = ""
    """Why the gateway does not talk to this device; then nothing was measured."""


class _Took(NamedTuple):
    """One call."""

    up: float
    down: float
    """Seconds until the gateway's word, and after it."""
    skew: float


def speed(
    address: str, files: TlsFiles, bound: float = MEASURE_S, most: int = MUCH
) -> Speed | None:
    """Measure, with so many bytes each way; None where no gateway measures with this device."""
    until = time.monotonic() + bound
    try:
        with dial(address, files) as channel:
            method: Method = channel.stream_stream(f"{SERVICE}/Measure")
            _call(method, 0, until)  # sets up the connection
            empty = _call(method, 0, until)
            moved, took = LITTLE, _call(method, LITTLE, until)
            if took.up + took.down < _QUICK_S and most > LITTLE:
                moved, took = most, _call(method, most, until)
    except grpc.RpcError as error:
        status = error.code() if isinstance(error, grpc.Call) else None
        if status is grpc.StatusCode.UNAUTHENTICATED:
            return Speed(refused=str(error.details())[:200])
        return None
    except ValueError:
        return None
    down = moved / max(took.down, 1e-6)
    return Speed(empty.up, rate(moved, took.up, empty.up), down, empty.skew)


def rate(moved: int, took: float, trip: float) -> float:
    """Return bytes a second of a call whose time has one way there and back in it.

    That was measured in another call, and on a busy machine may be longer than this whole one: at
    most half of the time counts as the way.
    """
    return moved / max(took - trip, took / 2, 1e-6)


def _call(method: Method, count: int, until: float) -> _Took:
    """Send bytes and get as many.

    Raises:
        ValueError: The gateway gives other than was asked for.
        grpc.RpcError: It does not answer in time, or refuses.
    """
    began, left = time.monotonic(), max(until - time.monotonic(), 0.1)
    call = method(_pieces(count), metadata=(("umbel-bytes", str(count)),), timeout=left)
    head = next(call, b"")
    headed, now = time.monotonic(), time.time()
    got = 0
    for piece in call:
        got += len(piece)
        if got > count:
            break
    ended = time.monotonic()
    if len(head) != _HEAD.size or got != count or _HEAD.unpack(head)[0] != count:
        call.cancel()
        raise ValueError("another number of bytes")
    theirs = _HEAD.unpack(head)[1] + 0.5 + (headed - began) / 2
    return _Took(headed - began, ended - headed, now - theirs)


def _pieces(count: int) -> Iterator[bytes]:
    for start in range(0, count, PIECE):
        yield bytes(min(PIECE, count - start))
