"""Vectors up and models down, over real mutual TLS: offsets, slots, lies."""

from __future__ import annotations

import asyncio
import random
import struct
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import pytest

from umbel.protocol.frames import HEADER, Kind, frames
from umbel.server import core_service, grpc_gateway
from umbel.server import core_wire as wire
from umbel.server.core_commands import Commander
from umbel.tests.wire_federation import RUN, Cable, Device, Federation, Machine, bare, refused

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

CTX = bytes(range(32))
MIB = 1 << 20
SIZE = 5 * MIB
STALL = 5.0


@pytest.fixture(autouse=True)
def _no_stray_error(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Whatever a peer does, no exception comes out of the gateway's handlers."""
    yield
    assert [record.getMessage() for record in caplog.records] == []


def vector(seed: int, size: int = SIZE) -> bytes:
    return random.Random(seed).randbytes(size)  # noqa: S311 - test data


def plus(*vectors: bytes) -> bytes:
    """Return the sum of vectors of little-endian 32-bit words, word by word."""
    words = [struct.unpack(f"<{len(v) // 4}I", v) for v in vectors]
    return struct.pack(
        f"<{len(words[0])}I", *(sum(column) % 2**32 for column in zip(*words, strict=True))
    )


class App:
    """The ServerApp's hand: commands straight to the core."""

    def __init__(self, there: Federation) -> None:
        self.there = there
        self._commander = Commander(there.core, RUN, there.core.served[RUN])

    async def do(self, op: str, payload: bytes = b"", **fields: Any) -> None:
        """Do one command."""
        await self._commander.do(wire.Message(op, fields, bytearray(payload)))

    async def open(self, size: int = SIZE, stall: float = STALL) -> None:
        """Open a sum of 32-bit words."""
        await self.do("sum", ctx=CTX.hex(), total=size, split=size, stall=stall, plain=None)

    async def expect(self, machine: Machine, y: bytes) -> None:
        """Accept a node's header."""
        await self.do("expect", node=machine.node, y_hash=sha256(y).hexdigest())

    async def result(self) -> bytes:
        """Return the sum."""
        found = self.there.core.served[RUN].sum
        assert found is not None
        return bytes(found._ingest.sum.result())

    async def put(self, model: bytes, digest: bytes) -> None:
        """Put a model of bytes in force."""
        about = bare(model).to_json().encode()
        await self.do("put", about + model, digest=digest.hex(), manifest=len(about))


def parts(y: bytes, start: int = 0, ctx: bytes = CTX) -> list[bytes]:
    return list(frames(Kind.UPLOAD, ctx, y, start))


async def offset(call: Any) -> int:
    return int(dict(await call.initial_metadata())["umbel-offset"])


def played(play: Any, **settings: Any) -> None:
    """Play with a federation, its ServerApp, a machine and its connection, which has joined."""

    async def all_of_it() -> None:
        async with Federation(**settings) as there:
            machine = Machine(there.authority, 1)
            async with Device(there, machine) as device:
                await device.hello()
                await play(there, App(there), machine, device)

    asyncio.run(all_of_it())


def test_a_vector_is_folded_when_it_is_whole_and_the_server_app_says_so() -> None:
    async def play(there: Federation, app: App, machine: Machine, device: Device) -> None:
        y = vector(1)
        await app.open()
        await app.expect(machine, y)
        call = device.upload(parts(y), CTX)
        assert await offset(call) == 0
        assert struct.unpack("<Q", await call) == (SIZE,)
        assert (await there.heard.wait("whole"))[1]["node"] == machine.node
        assert there.heard.events[-1][1]["bytes"]["up"] == SIZE + 5 * HEADER
        await app.do("fold", node=machine.node)
        assert await app.result() == y
        again = device.upload(parts(y), CTX)  # its answer got lost, say
        assert await offset(again) == SIZE
        assert struct.unpack("<Q", await again) == (SIZE,)
        assert there.heard.ops().count("whole") == 1

    played(play)


def test_a_vector_that_is_not_folded_is_not_in_the_sum() -> None:
    async def play(there: Federation, app: App, machine: Machine, device: Device) -> None:
        y = vector(1)
        await app.open()
        await app.expect(machine, y)
        await device.upload(parts(y), CTX)
        await app.do("discard", node=machine.node)
        assert await app.result() == bytes(SIZE)
        assert there.heard.ops() == ["joined", "whole"]

    played(play)


def test_an_upload_cut_at_sixty_percent_goes_on_where_it_was() -> None:
    async def play() -> None:
        async with Federation() as there, Cable(there.port) as cable:
            machine, y = Machine(there.authority, 1), vector(1)
            app = App(there)
            await app.open()
            await app.expect(machine, y)
            async with Device(there, machine, cable.port) as device:
                await device.hello()
                arrived = there.core.served[RUN]

                async def until_cut() -> AsyncIterator[bytes]:
                    for frame in parts(y)[:3]:
                        yield frame
                    async with asyncio.timeout(60):
                        while arrived.up < 3 * (MIB + HEADER):
                            await asyncio.sleep(0.01)
                    cable.cut()
                    await asyncio.sleep(10)

                assert (await refused(device.upload(until_cut(), CTX)))[0] == "UNAVAILABLE"
                await device.hello(resume=True)
                call = device.upload(parts(y, 3 * MIB), CTX)
                assert await offset(call) == 3 * MIB
                assert struct.unpack("<Q", await call) == (SIZE,)
                await there.heard.wait("whole")
                await app.do("fold", node=machine.node)
                assert await app.result() == y
                assert "left" not in there.heard.ops()

    asyncio.run(play())


def test_other_bytes_for_an_offset_are_an_attack_by_name() -> None:
    async def play(there: Federation, app: App, machine: Machine, device: Device) -> None:
        y, other = vector(1), vector(2)
        await app.open()
        await app.expect(machine, y)
        first = device.upload(parts(y)[:2], CTX)
        assert struct.unpack("<Q", await first) == (2 * MIB,)
        code, details = await refused(device.upload(parts(other)[:1], CTX))
        assert code == "INVALID_ARGUMENT"
        assert "offset" not in details
        _, fields, _ = await there.heard.wait("bad")
        assert fields["why"] == "sent other bytes for 0"
        assert (fields["node"], fields["attack"]) == (machine.node, True)
        assert there.said(machine.node, "sent other bytes for 0")
        assert (await refused(device.upload(parts(y), CTX)))[0] == "NOT_FOUND"
        assert await app.result() == bytes(SIZE)

    played(play)


def test_bytes_that_were_not_signed_are_an_attack_by_name() -> None:
    async def play(there: Federation, app: App, machine: Machine, device: Device) -> None:
        await app.open()
        await app.expect(machine, vector(1))
        assert (await refused(device.upload(parts(vector(2)), CTX)))[0] == "INVALID_ARGUMENT"
        _, fields, _ = await there.heard.wait("bad")
        assert fields["attack"] is True
        assert "hash" in fields["why"]
        assert "whole" not in there.heard.ops()
        assert await app.result() == bytes(SIZE)

    played(play)


HEAD = struct.Struct("<4sHH32sQQI4s")


def frame(**changes: Any) -> bytes:
    """Return a first frame of one MiB with some fields of its header changed."""
    values = {"magic": b"UMBF", "version": 1, "kind": 1, "ctx": CTX, "offset": 0}
    values |= {"total": SIZE, "length": MIB, "zero": bytes(4)} | changes
    return HEAD.pack(*values.values()) + bytes(MIB)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (frame(offset=MIB), "frame offset"),
        (frame(offset=2**63), "frame offset"),
        (frame(total=3 << 30), "frame total"),
        (frame(total=2**64 - 1), "frame total"),
        (frame(length=MIB - 1), "frame payload"),
        (frame(kind=2), "frame kind"),
        (frame(ctx=bytes(32)), "frame subject"),
        (frame(magic=b"EVIL"), "frame magic"),
        (b"", "frame header"),
        (bytes(range(250)), "frame magic"),
    ],
)
def test_a_frame_that_lies_is_named_and_no_attack(data: bytes, words: str) -> None:
    async def play(there: Federation, app: App, machine: Machine, device: Device) -> None:
        await app.open()
        await app.expect(machine, vector(1))
        assert (await refused(device.upload([data], CTX)))[0] == "INVALID_ARGUMENT"
        _, fields, _ = await there.heard.wait("bad")
        assert (fields["node"], fields["attack"]) == (machine.node, False)
        assert words in fields["why"]
        assert there.said(machine.node, words)

    played(play)


def test_one_slot_and_three_uploaders_take_turns_in_the_order_of_asking() -> None:
    async def play() -> None:
        async with Federation(slots=1) as there:
            app = App(there)
            machines = [Machine(there.authority, number) for number in (1, 2, 3)]
            ys = [vector(number) for number in (1, 2, 3)]
            await app.open()
            devices = [Device(there, machine) for machine in machines]
            calls = []
            for machine, device, y in zip(machines, devices, ys, strict=True):
                await device.hello()
                await app.expect(machine, y)
                calls.append(device.upload(parts(y), CTX))
                if machine is machines[0]:
                    assert await offset(calls[0]) == 0
                while machine.node not in there.core.served[RUN].waiting and len(calls) > 1:
                    await asyncio.sleep(0.01)
            waiting = [asyncio.create_task(offset(call)) for call in calls[1:]]
            for turn, machine in enumerate(machines):
                assert (await there.heard.wait("whole", turn + 1))[1]["node"] == machine.node
                await asyncio.gather(*waiting[:turn])
                await asyncio.sleep(0.1)
                assert not any(task.done() for task in waiting[turn:])
                await app.do("fold", node=machine.node)
            assert [await call for call in calls] == [struct.pack("<Q", SIZE)] * 3
            assert await app.result() == plus(*ys)
            for device in devices:
                await device.channel.close()

    asyncio.run(play())


def test_a_slot_that_rests_while_others_wait_is_taken_back() -> None:
    async def play(there: Federation, app: App, machine: Machine, device: Device) -> None:
        other, y = Machine(there.authority, 2), vector(2)
        await app.open()
        await app.expect(machine, vector(1))
        await app.expect(other, y)
        first = device.upload(parts(vector(1))[:1], CTX)
        assert struct.unpack("<Q", await first) == (MIB,)
        there.core.tick()
        async with Device(there, other) as second:
            await second.hello()
            call = second.upload(parts(y), CTX)
            while other.node not in there.core.served[RUN].waiting:
                await asyncio.sleep(0.01)
            there.ahead += STALL + 1
            there.core.tick()
            assert await offset(call) == 0
            _, fields, _ = await there.heard.wait("bad")
            assert (fields["node"], fields["attack"]) == (machine.node, False)
            assert "stalled" in fields["why"]
            await there.heard.wait("whole")

    played(play)


def test_an_upload_may_come_before_its_header_is_accepted_and_before_its_sum(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def play(there: Federation, app: App, machine: Machine, device: Device) -> None:
        y = vector(1)
        call = device.upload(parts(y), CTX)
        await asyncio.sleep(0.1)
        await app.open()
        await asyncio.sleep(0.1)
        await app.expect(machine, y)
        assert struct.unpack("<Q", await call) == (SIZE,)
        await app.do("close_sum")
        assert (await refused(device.upload(parts(y), CTX)))[0] == "NOT_FOUND"
        monkeypatch.setattr(core_service, "PATIENCE", 0.1)
        assert (await refused(device.upload(parts(y, ctx=bytes(32)), bytes(32))))[0] == "NOT_FOUND"
        assert there.said(machine.node, "not open")

    played(play)


def test_the_newest_upload_of_a_node_wins() -> None:
    async def play(there: Federation, app: App, machine: Machine, device: Device) -> None:
        y = vector(1)
        may_go_on = asyncio.Event()
        await app.open()
        await app.expect(machine, y)

        async def slowly() -> AsyncIterator[bytes]:
            yield parts(y)[0]
            await may_go_on.wait()
            for data in parts(y)[1:]:
                yield data

        first = device.upload(slowly(), CTX)
        assert await offset(first) == 0
        while there.core.served[RUN].up < MIB:
            await asyncio.sleep(0.01)
        second = device.upload(parts(y, MIB), CTX)
        assert await offset(second) == MIB
        assert struct.unpack("<Q", await second) == (SIZE,)
        may_go_on.set()
        await refused(first)  # grpc.aio tells a caller that is still sending in many ways
        assert there.said(machine.node, "a frame after a newer connection's")
        assert "bad" not in there.heard.ops()

    played(play)


@pytest.mark.parametrize("metadata", [(), (("umbel-run", RUN),), (("umbel-ctx-bin", CTX),)])
def test_an_upload_says_what_it_is_for(metadata: tuple[tuple[str, Any], ...]) -> None:
    async def play(there: Federation, app: App, machine: Machine, device: Device) -> None:
        method: Any = device.channel.stream_unary("/umbel.v1.Gateway/Upload")
        call = method(iter([]), metadata=metadata, timeout=10)
        assert (await refused(call))[0] == "INVALID_ARGUMENT"
        assert there.said(machine.node, "without naming run and ctx")

    played(play)


# ---- Fetch ---------------------------------------------------------------------------------


def test_a_model_is_fetched_by_its_digest_from_any_offset() -> None:
    async def play(there: Federation, app: App, machine: Machine, device: Device) -> None:
        model, digest = vector(9, 2 * MIB + 64), b"d" * 32
        await app.put(model, digest)
        for start in (0, MIB, MIB + 5, len(model)):
            got = await device.fetch(digest, start)
            sizes = iter([len(frame) - HEADER for frame in got])
            assert got == list(frames(Kind.MODEL, digest, model, start, sizes.__next__))
        await app.put(b"t" * 64, b"e" * 32)
        assert (await refused(device.fetch(digest)))[0] == "NOT_FOUND"
        assert (await device.fetch(b"e" * 32))[0][HEADER:] == b"t" * 64
        code, text = await refused(device.fetch(b"e" * 32, 65))
        assert (code, text) == ("NOT_FOUND", "no such model is published")

    played(play)


def test_the_frames_of_all_fetches_together_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grpc_gateway, "IN_FLIGHT", 1 << 17)

    async def play(there: Federation, app: App, machine: Machine, device: Device) -> None:
        await app.put(vector(9, 2 * MIB), b"d" * 32)
        assert max(map(len, await device.fetch(b"d" * 32))) == (1 << 17) + HEADER

    played(play)


def test_only_who_has_a_session_fetches_or_uploads() -> None:
    async def play(there: Federation, app: App, machine: Machine, device: Device) -> None:
        digest, y = b"d" * 32, vector(1)
        await app.put(b"m" * 64, digest)
        await app.open()
        await app.expect(machine, y)
        stranger, twin = Machine(there.authority, 2), Machine(there.authority, 1)
        for other in (stranger, twin):
            async with Device(there, other) as alien:
                for call in (alien.fetch(digest), alien.upload(parts(y), CTX)):
                    code, text = await refused(call)
                    assert code == "FAILED_PRECONDITION"
                    assert text == "no session of this run with this certificate"
                assert there.said(other.node, "without a session")
        assert (await refused(device.fetch(digest, run="digits-9")))[0] == "PERMISSION_DENIED"
        assert "whole" not in there.heard.ops()

    played(play)
