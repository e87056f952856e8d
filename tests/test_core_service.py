"""The core behind its Unix socket: commands in order, events out, successors, tickets, lies."""

from __future__ import annotations

import asyncio
import os
import re
import socket
import stat
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import pytest

from umbel.protocol import masks, tickets
from umbel.protocol.errors import StateError
from umbel.protocol.frames import Kind, frames
from umbel.server.core_socket import CoreSocket, ticket_key
from umbel.server.sessions import SUCCESSOR
from umbel.tests.core_house import SIZES, App, House
from umbel.tests.wire_federation import GATEWAY, RUN, Device, Federation, refused

if TYPE_CHECKING:
    from pathlib import Path

CTX = bytes(range(32))


@pytest.fixture
def play(tmp_path: Path) -> Callable[[Callable[[House, App], Coroutine[Any, Any, None]]], None]:
    """Return what plays a scene in a house, with a ServerApp that has opened the run."""

    def played(scene: Callable[[House, App], Coroutine[Any, Any, None]]) -> None:
        async def all_of_it() -> None:
            async with House(tmp_path) as house, house.app() as app:
                await app.open()
                await scene(house, app)

        asyncio.run(all_of_it())

    return played


Play = Callable[[Callable[[House, App], Coroutine[Any, Any, None]]], None]


def test_open_says_where_the_gateway_is(play: Play) -> None:
    async def scene(house: House, app: App) -> None:
        async with house.app() as other:
            opened = await other.open("another-run")
            assert opened["port"] == house.there.port
            assert opened["names"] == [GATEWAY]
            assert opened["ca"] == sha256(house.there.authority.der).hexdigest()
            assert opened["bytes"] == {"up": 0, "down": 0}
        assert stat.S_IMODE(house.path.stat().st_mode) == 0o600

    play(scene)


def test_tickets_of_the_core_admit_and_their_key_is_kept_secretly(play: Play) -> None:
    async def scene(house: House, app: App) -> None:
        device = await house.joined(app)
        path = house.directory / "tickets" / f"{RUN}.key"
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        key = path.read_bytes()
        assert len(set(key)) > 8
        raw = await app.ticket(device.machine, 30.0)
        ticket = tickets.admit(
            key,
            raw,
            run=RUN,
            node_id=device.machine.id,
            tls_fingerprint=device.machine.fingerprint,
            gateway=GATEWAY,
            now=datetime.now(UTC),
        )
        assert 25 < ticket.expires - datetime.now(UTC).timestamp() <= 30
        assert ticket.nonce != bytes(16)
        await device.channel.close()

    play(scene)


def test_a_round_through_the_socket(play: Play) -> None:
    """Post, publish, sum, expect, whole, fold, unmask, result, and the counts of bytes."""

    async def scene(house: House, app: App) -> None:
        device = await house.joined(app)
        await app.do("post", b"start", node=device.machine.node)
        assert (await device.message()).message == b"start"
        model = bytes(range(64))
        await app.put(model, b"\xdd" * 32)
        assert [part[64:] for part in await device.fetch(b"\xdd" * 32)] == [model]
        await device.send(b"header")
        fields, payload = await app.wait("message")
        assert (fields["node"], payload) == (device.machine.node, b"header")

        key, update = bytes(range(32)), bytes(range(64)) * 10
        y = bytearray(update)
        masks.apply(y, len(y) - 64, [(key, 1)])
        await app.do("sum", ctx=CTX.hex(), total=640, split=640 - 64, stall=5, plain=None)
        await app.do("expect", node=device.machine.node, y_hash=sha256(y).hexdigest())
        await device.upload(list(frames(Kind.UPLOAD, CTX, y)), CTX)
        fields, _ = await app.wait("whole")
        assert fields["node"] == device.machine.node
        assert fields["bytes"]["up"] == len(b"header") + 64 + 640
        await app.do("fold", node=device.machine.node)
        await app.do("unmask", key, signs=[-1])
        await app.do("read", bound=2**31 - 1)
        fields, numbers = await app.wait("numbers")
        assert (fields["void"], numbers) == ("", update[640 - 64 :])
        await app.do("close_sum")
        await app.do("goodbye")
        await device.message()
        assert (await refused(device.down()))[0] == "OK"
        await app.wait("left")
        assert await app.ended()
        assert not (house.directory / "tickets" / f"{RUN}.key").exists()
        await device.channel.close()

    play(scene)


def test_a_successor_takes_the_run_over_and_the_sessions_stay(play: Play) -> None:
    async def scene(house: House, app: App) -> None:
        device = await house.joined(app)
        await app.do("sum", ctx=CTX.hex(), total=640, split=640, stall=5, plain=None)
        async with house.app() as successor:
            await successor.open()
            fields, payload = await successor.wait("joined")
            assert (fields["node"], fields["resumed"]) == (device.machine.node, False)
            assert payload == device.machine.der
            assert await app.ended(), "the earlier ServerApp is let go"
            await successor.do("post", b"hello", node=device.machine.node)
            assert (await device.message()).message == b"hello"
            await successor.do("read", bound=1)
            assert (await successor.wait("error"))[0]["command"] == "read", "the sum is gone"
            house.there.ahead += 10 * SUCCESSOR
            house.there.core.tick()
            assert house.there.core.sessions.count() == 1
        await device.channel.close()

    play(scene)


def test_a_server_app_that_dies_leaves_a_minute(play: Play) -> None:
    async def scene(house: House, app: App) -> None:
        device = await house.joined(app)
        key = (house.directory / "tickets" / f"{RUN}.key").read_bytes()
        app.writer.transport.abort()
        while house.there.core.served[RUN].outlet is not None:
            await asyncio.sleep(0.01)
        house.there.ahead += SUCCESSOR - 1
        house.there.core.tick()
        async with house.app() as successor:
            await successor.open()
            await successor.wait("joined")
            assert (house.directory / "tickets" / f"{RUN}.key").read_bytes() == key
            successor.writer.transport.abort()
            while house.there.core.served[RUN].outlet is not None:
                await asyncio.sleep(0.01)
        house.there.ahead += SUCCESSOR
        house.there.core.tick()
        await device.message()
        assert (await refused(device.down()))[0] == "OK"
        assert not (house.directory / "tickets" / f"{RUN}.key").exists()
        await device.channel.close()

    play(scene)


def test_two_runs_at_once_keep_apart(play: Play) -> None:
    async def scene(house: House, app: App) -> None:
        async with house.app() as other:
            await other.open("other-1")
            device = await house.joined(app)
            machine = device.machine
            foreign = await other.ticket(machine)
            async with Device(house.there, machine) as second:
                assert (await refused(second.hello(ticket=foreign)))[0] == "PERMISSION_DENIED"
                await second.hello(run="other-1", ticket=foreign)
                assert second.epoch == 1
                await other.wait("joined")
                await second.send(b"for the other")
                assert (await other.wait("message"))[1] == b"for the other"
            await device.send(b"for the first")
            assert (await app.wait("message"))[1] == b"for the first"
            await device.channel.close()

    play(scene)


@pytest.mark.parametrize(
    ("op", "payload", "fields", "words"),
    [
        ("fold", b"", {"node": "aa" * 16}, "no sum is open"),
        ("read", b"", {"bound": 1}, "no sum is open"),
        ("step", b"", {}, "no sum is open"),
        ("unmask", b"", {"signs": []}, "no sum is open"),
        ("expect", b"", {"node": "aa" * 16, "y_hash": "bb" * 32}, "no sum is open"),
        ("open", b"", {"run": "x"}, "once a connection"),
        ("post", b"x", {"node": "zz"}, "16 bytes in hex"),
        ("put", b"x", {"digest": 7}, "32 bytes in hex"),
        ("put", b"x", {"digest": "aa" * 32, "manifest": 2}, r"put\.manifest: expected 0\.\.1"),
        ("put", b"{}", {"digest": "aa" * 32, "manifest": 2}, "manifest JSON"),
        (
            "put",
            b'{"arrays":[]}x',
            {"digest": "aa" * 32, "manifest": 13},
            "expected 0 bytes, got 1",
        ),
        ("publish", b"", {"digest": "aa" * 32}, "has put no model in force"),
        ("tickets", b"", {"nodes": [], "seconds": -1}, "seconds"),
        ("sum", b"", {"ctx": "aa" * 32, "total": 0, "split": 0, "stall": 1}, "core.message"),
        ("sum", b"", {"ctx": "aa" * 32, "total": 12, "split": 0, "stall": 1}, "core.message"),
        ("sum", b"", {"ctx": "aa" * 32, "total": 64, "split": 64, "stall": "x"}, "stall"),
        (
            "sum",
            b"",
            {"ctx": "aa" * 32, "total": 64, "split": 64, "stall": 1, "plain": {"manifest": "{}"}},
            r"sum\.plain|manifest",
        ),
        ("sum", b"", {"ctx": "aa" * 32, "total": 64, "split": 64, "stall": 1, "plain": 3}, "plain"),
    ],
)
def test_a_wrong_command_is_answered_and_the_connection_goes_on(
    play: Play, op: str, payload: bytes, fields: dict[str, Any], words: str
) -> None:
    async def scene(house: House, app: App) -> None:
        await app.do(op, payload, **fields)
        found, _ = await app.wait("error")
        assert found["command"] == op
        assert re.search(words, found["why"]), found["why"]
        await app.do("tickets", nodes=[], seconds=1)
        assert (await app.wait("tickets"))[0]["tickets"] == {}

    play(scene)


def test_a_sum_too_large_for_this_machine_is_answered(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene(house: House, app: App) -> None:
        def full(*_: object) -> None:
            raise MemoryError

        monkeypatch.setattr(house.there.core.world, "open", full)
        await app.do("sum", ctx=CTX.hex(), total=1 << 36, split=64, stall=1, plain=None)
        assert "memory for sums" in (await app.wait("error"))[0]["why"]

    play(scene)


@pytest.mark.parametrize(
    "data",
    [
        b"\xff" * 12,
        SIZES.pack(5, 0) + b"hello",
        SIZES.pack(14, 0) + b'{"op": "evil"}',
        SIZES.pack(14, 9) + b'{"op": "fold"}',
        SIZES.pack(2, 0),
    ],
)
def test_bytes_that_are_no_command_end_the_connection_with_a_line(play: Play, data: bytes) -> None:
    async def scene(house: House, app: App) -> None:
        app.writer.write(data)
        app.writer.write_eof()
        assert await app.ended()
        assert house.there.said("core.sock", "ServerApp")
        async with house.app() as next_one:
            await next_one.open()

    play(scene)


@pytest.mark.parametrize("run", ["", "../../etc/passwd", "a/b", ".hidden", "x" * 65, "a b", 7])
def test_a_run_id_that_is_no_file_name_opens_nothing(play: Play, run: object) -> None:
    async def scene(house: House, app: App) -> None:
        async with house.app() as other:
            await other.do("open", run=run, scheme="A")
            assert await other.ended()
        assert house.there.said("open.run")
        assert {path.name for path in (house.directory / "tickets").iterdir()} == {f"{RUN}.key"}

    play(scene)


def test_the_first_command_is_open(play: Play) -> None:
    async def scene(house: House, app: App) -> None:
        async with house.app() as other:
            await other.do("goodbye")
            assert await other.ended()
        assert house.there.said("first command: expected open, got goodbye")

    play(scene)


def test_a_stopped_core_leaves_no_socket_and_listens_again(tmp_path: Path) -> None:
    async def twice() -> None:
        for _ in range(2):
            async with House(tmp_path) as house, house.app() as app:
                await app.open()
            assert not (tmp_path / "core.sock").exists()

    asyncio.run(twice())


def test_a_socket_file_that_a_crash_left_is_no_obstacle(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(tmp_path / "core.sock"))

    async def once() -> None:
        async with House(tmp_path) as house, house.app() as app:
            await app.open()

    asyncio.run(once())


def test_a_path_too_long_for_a_socket_is_said(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 100)
    deep.mkdir()

    core = Federation().core
    with pytest.raises(StateError, match="shorten UMBEL_HOME"):
        CoreSocket(core, deep, 1, [GATEWAY], "").listen()


def test_a_key_file_of_another_length_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "tickets" / "r.key"
    first = ticket_key(path)
    assert ticket_key(path) == first
    path.write_bytes(b"short")
    with pytest.raises(StateError, match=r"r\.key: expected 32 bytes, got 5") as caught:
        ticket_key(path)
    assert "short" not in str(caught.value)
    assert os.listdir(path.parent) == ["r.key"]
