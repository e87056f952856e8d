"""How fast a line is: the gateway's method Measure, and the device's end of it."""

from __future__ import annotations

import asyncio
import socket
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

from umbel.clients.device_files import TlsFiles
from umbel.clients.grpc_measure import rate, speed
from umbel.server import grpc_measure
from umbel.server.grpc_measure import HEAD
from umbel.tests.wire_federation import METHOD, Device, Federation, Machine, key_pem, pem

if TYPE_CHECKING:
    from collections.abc import Coroutine


def files(there: Federation, machine: Machine) -> TlsFiles:
    return TlsFiles(root=there.root, chain=pem(machine.tls), key=key_pem(machine.key))


def played(play: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(play, 60))


def test_a_line_is_measured_both_ways() -> None:
    async def play() -> None:
        async with Federation() as there:
            own = files(there, Machine(there.authority, 1))
            found = await asyncio.to_thread(speed, f"localhost:{there.port}", own)
            assert found is not None
            assert found.up > 0
            assert found.down > 0
            assert found.trip > 0
            assert abs(found.skew) < 2
            assert found.refused == ""

    played(play())


def test_a_clock_that_differs_is_measured() -> None:
    async def play() -> None:
        async with Federation() as there:
            own = files(there, Machine(there.authority, 1))
            there.ahead = 90.0
            found = await asyncio.to_thread(speed, f"localhost:{there.port}", own)
            assert found is not None
            assert -92 < found.skew < -88

    played(play())


def test_a_call_that_takes_too_long_is_let_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grpc_measure, "MEASURE_S", 0.2)

    async def play() -> None:
        async with Federation() as there, Device(there, Machine(there.authority, 1)) as device:
            method: Any = device.channel.stream_stream(METHOD + "Measure")
            call = method(timeout=20)
            await call.write(b"one piece, and no end")
            assert [piece async for piece in call] == []

    played(play())


def test_places_are_few_and_taken_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grpc_measure, "AT_ONCE", 1)

    async def play() -> None:
        async with Federation() as there, Device(there, Machine(there.authority, 1)) as device:
            method: Any = device.channel.stream_stream(METHOD + "Measure")
            first = method(timeout=60)
            await first.write(b"first")
            async with asyncio.timeout(60):
                while not there.gateway._measuring._places.locked():
                    await asyncio.sleep(0.01)
            second = method(iter([b"2nd"]), timeout=60)
            waiting = asyncio.ensure_future(second.read())
            await asyncio.sleep(0.2)
            assert not waiting.done()
            await first.done_writing()
            assert HEAD.unpack(await first.read())[0] == len(b"first")
            assert HEAD.unpack(await waiting)[0] == len(b"2nd")

    played(play())


def test_who_does_not_answer_is_not_waited_for() -> None:
    async def play() -> None:
        async with Federation() as there:
            own = files(there, Machine(there.authority, 1))
            with closing(socket.create_server(("127.0.0.1", 0))) as silent:
                address = f"localhost:{silent.getsockname()[1]}"
                assert await asyncio.to_thread(speed, address, own, 0.5) is None
            stranger = Machine(Federation().authority, 2)
            with_other = files(there, stranger)
            address = f"localhost:{there.port}"
            assert await asyncio.to_thread(speed, address, with_other, 1.0) is None

    played(play())


def test_a_way_that_seems_longer_than_the_whole_call_makes_no_wonder() -> None:
    """4 MiB in 100 ms: 10 of them are the way, so 90 are the bytes; or 50, whatever the way was."""
    assert rate(4 << 20, 0.1, 0.01) == pytest.approx((4 << 20) / 0.09)
    assert rate(4 << 20, 0.1, 3.0) == pytest.approx((4 << 20) / 0.05)
