"""Sessions over real mutual TLS: who gets in, what breaks, and how it goes on."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import pytest

from umbel.protocol import messages_pb2 as pb
from umbel.protocol.wire import MAX_MESSAGE
from umbel.server import grpc_gateway
from umbel.server.sessions import GRACE, SUCCESSOR
from umbel.tests.wire_federation import (
    METHOD,
    RUN,
    Cable,
    Device,
    Federation,
    Machine,
    refused,
)

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def _no_stray_error(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Whatever a peer does, no exception comes out of the gateway's handlers."""
    yield
    assert [record.getMessage() for record in caplog.records] == []


async def eventually(holds: Any) -> None:
    async with asyncio.timeout(60):
        while not holds():
            await asyncio.sleep(0.01)


def test_a_node_joins_and_both_sides_are_heard() -> None:
    async def play() -> None:
        async with Federation() as there:
            machine = Machine(there.authority, 1)
            async with Device(there, machine) as device:
                welcome = await device.hello()
                assert (welcome.seq, welcome.welcome.epoch) == (0, 1)
                _, fields, der = await there.heard.wait("joined")
                assert (fields["node"], fields["resumed"]) == (machine.node, False)
                assert der == machine.der
                await device.send(b"up")
                assert (await there.heard.wait("message"))[2] == b"up"
                there.core.sessions.post(RUN, machine.node, b"down")
                down = await device.message()
                assert (down.seq, down.ack, down.message) == (1, 1, b"down")
                assert there.heard.events[-1][1]["bytes"]["up"] == len(b"up")

    asyncio.run(play())


WRONG_TICKETS = [
    ("another certificate", "PERMISSION_DENIED", "does not admit", {}),
    ("another run", "PERMISSION_DENIED", "does not admit", {"run": "digits-2"}),
    ("expired", "PERMISSION_DENIED", "does not admit", {"lives": -1.0}),
    ("another gateway", "PERMISSION_DENIED", "does not admit", {"gateway": "evil"}),
    ("forged", "PERMISSION_DENIED", "does not admit", {"key": bytes(32)}),
]


@pytest.mark.parametrize(("words", "status", "text", "changes"), WRONG_TICKETS)
def test_a_wrong_ticket_gets_a_fixed_text_and_one_line(
    words: str, status: str, text: str, changes: dict[str, Any]
) -> None:
    async def play() -> None:
        async with Federation() as there:
            machine, other = Machine(there.authority, 1), Machine(there.authority, 1)
            ticket = machine.ticket(**changes) if changes else other.ticket()
            async with Device(there, machine) as device:
                code, details = await refused(device.hello(ticket=ticket))
                assert code == status
                assert text in details
                assert len(there.lines) == 1
                assert there.said(words, machine.node)
                assert ticket.hex() not in there.lines[0] + details
            assert there.heard.ops() == []

    asyncio.run(play())


def test_another_nodes_signing_certificate_is_no_use() -> None:
    async def play() -> None:
        async with Federation() as there:
            machine, other = Machine(there.authority, 1), Machine(there.authority, 2)
            async with Device(there, machine) as device:
                code, _ = await refused(device.hello(certificate=other.der))
                assert code == "UNAUTHENTICATED"
                assert there.said(machine.node, other.node)
            async with Device(there, machine) as device:
                code, _ = await refused(device.hello(certificate=b"no certificate"))
                assert code == "UNAUTHENTICATED"
                assert there.said("is no X.509 certificate")

    asyncio.run(play())


def test_a_run_that_is_unknown_or_over_admits_nobody() -> None:
    async def play() -> None:
        async with Federation() as there:
            machine = Machine(there.authority, 1)
            async with Device(there, machine) as device:
                assert (await refused(device.hello(run="digits-9")))[0] == "PERMISSION_DENIED"
                assert there.said("digits-9", "not served")
                await device.hello()
                there.core.end_run(RUN)
                assert pb.ToClient.FromString((await device.message()).message).HasField("goodbye")
                assert (await refused(device.down()))[0] == "OK"
                code, details = await refused(device.hello())
                assert (code, details) == ("PERMISSION_DENIED", "no such run, or it is over")
                assert there.said(RUN, "is over")

    asyncio.run(play())


@pytest.mark.parametrize(
    "first",
    [
        b"\xff\xff\xff",
        b"",
        pb.Up(seq=1, message=b"x").SerializeToString(),
        pb.Up(hello=pb.Hello(run=RUN)).SerializeToString(),
        pb.Up(seq=1, hello=pb.Hello(run=RUN, ticket=b"x", certificate=b"x")).SerializeToString(),
        pb.Up(hello=pb.Hello(run=RUN, ticket=b"x", certificate=bytes(5000))).SerializeToString(),
    ],
)
def test_a_stream_that_does_not_begin_with_hello_is_ended(first: bytes) -> None:
    async def play() -> None:
        async with Federation() as there, there.device() as device:
            device.call = device.channel.stream_stream(METHOD + "Session")(timeout=10)
            await device.call.write(first)
            assert (await refused(device.down()))[0] == "INVALID_ARGUMENT"
            assert len(there.lines) == 1
            await device.hello()

    asyncio.run(play())


def test_a_stream_that_says_nothing_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grpc_gateway, "HELLO", 0.1)

    async def play() -> None:
        async with Federation() as there, there.device() as device:
            device.call = device.channel.stream_stream(METHOD + "Session")(timeout=10)
            assert (await refused(device.down()))[0] == "INVALID_ARGUMENT"
            assert there.said("no hello")

    asyncio.run(play())


def test_of_two_devices_with_one_certificate_the_newest_wins_by_name() -> None:
    async def play() -> None:
        async with Federation() as there:
            machine = Machine(there.authority, 1)
            async with Device(there, machine) as first, Device(there, machine) as second:
                await first.hello()
                await second.hello()
                assert second.epoch == 2
                code, details = await refused(first.down())
                assert (code, details) == (
                    "ABORTED",
                    "a newer connection of this node took over",
                )
                assert there.said(machine.node, "newer connection")
                await second.send(b"still here")
                assert (await there.heard.wait("message"))[2] == b"still here"
                assert there.heard.ops() == ["joined", "joined", "message"]

    asyncio.run(play())


def test_a_cut_stream_resumes_and_every_message_counts_once() -> None:
    async def play() -> None:
        async with Federation() as there, Cable(there.port) as cable:
            machine = Machine(there.authority, 1)
            async with Device(there, machine, cable.port) as device:
                await device.hello()
                sent_up = [b"up %d" % n for n in range(30)]
                sent_down = [b"down %d" % n for n in range(30)]
                got: list[bytes] = []
                for number in range(30):
                    await device.send(sent_up[number])
                    there.core.sessions.post(RUN, machine.node, sent_down[number])
                    if number in {3, 4, 17}:
                        cable.cut()
                        got += await device.rest()
                        await device.hello(resume=True)
                while len(got) < 30:
                    got.append((await device.message()).message)
                await there.heard.wait("message", 30)
                assert [p for op, _, p in there.heard.events if op == "message"] == sent_up
                assert got == sent_down
                assert device.epoch == 4
                assert "left" not in there.heard.ops()
                resumed = [f["resumed"] for op, f, _ in there.heard.events if op == "joined"]
                assert resumed == [False, True, True, True]

    asyncio.run(play())


def test_who_does_not_come_back_has_left_and_joins_anew() -> None:
    async def play() -> None:
        async with Federation() as there, Cable(there.port) as cable:
            machine = Machine(there.authority, 1)
            async with Device(there, machine, cable.port) as device:
                await device.hello()
                cable.cut()
                session = there.core.sessions.live(RUN, there.core.peer(_pem(machine)))
                await eventually(lambda: session.stream is None)
                there.core.tick()
                assert "left" not in there.heard.ops()
                there.ahead += GRACE
                there.core.tick()
                await there.heard.wait("left")
                assert (await refused(device.hello(resume=True)))[0] == "FAILED_PRECONDITION"
                device.received = 0
                await device.hello()
                assert there.heard.ops() == ["joined", "left", "joined"]

    asyncio.run(play())


def _pem(machine: Machine) -> bytes:
    from umbel.tests.wire_federation import pem  # noqa: PLC0415

    return pem(machine.tls)


def test_after_a_minute_without_a_server_app_comes_goodbye() -> None:
    async def play() -> None:
        async with Federation() as there, there.device() as device:
            await device.hello()
            there.core.desert(RUN, there.heard)
            there.ahead += SUCCESSOR - 1
            there.core.tick()
            assert there.core.sessions.count() == 1
            there.ahead += 1
            there.core.tick()
            assert pb.ToClient.FromString((await device.message()).message).HasField("goodbye")
            assert (await refused(device.down()))[0] == "OK"
            assert there.core.served == {}

    asyncio.run(play())


def test_a_successor_finds_the_sessions_and_speaks_to_them() -> None:
    async def play() -> None:
        async with Federation() as there:
            machine = Machine(there.authority, 1)
            async with Device(there, machine) as device:
                await device.hello()
                there.core.sessions.post(RUN, machine.node, b"by the first")
                await device.message()
                there.core.desert(RUN, there.heard)
                heard = there.serverapp()
                assert (await heard.wait("joined"))[2] == machine.der
                await device.send(b"late, for the first")
                there.core.sessions.post(RUN, machine.node, b"by the second")
                assert (await device.message()).message == b"by the second"
                await device.send(b"for the second")
                assert (await heard.wait("message"))[2] == b"for the second"
                assert heard.ops() == ["joined", "message"]

    asyncio.run(play())


def test_a_device_that_does_not_read_is_ended_by_name() -> None:
    async def play() -> None:
        async with Federation() as there:
            machine = Machine(there.authority, 1)
            async with Device(there, machine) as device:
                await device.hello()
                for _ in range(4):
                    there.core.sessions.post(RUN, machine.node, bytes(1 << 20))
                    await asyncio.sleep(0.05)
                assert "left" not in there.heard.ops()
                there.core.sessions.post(RUN, machine.node, bytes(1 << 20))
                await there.heard.wait("left")
                assert there.said(machine.node, "does not read")

                await device.rest()
                code, details = await device.call.code(), await device.call.details()
                assert (code.name, details) == ("RESOURCE_EXHAUSTED", "what is sent is not read")

    asyncio.run(play())


def test_a_device_that_sends_too_much_at_once_is_stopped_by_the_transport() -> None:
    async def play() -> None:
        async with Federation() as there:
            machine = Machine(there.authority, 1)
            async with Device(there, machine) as device:
                await device.hello()
                await device.send(bytes(MAX_MESSAGE))
                assert len((await there.heard.wait("message"))[2]) == MAX_MESSAGE
                await device.send(bytes(3 << 20))
                assert (await refused(device.message()))[0] == "RESOURCE_EXHAUSTED"
                assert there.heard.ops().count("message") == 1

    asyncio.run(play())


def test_a_breach_of_the_numbers_is_named_and_ends_the_session() -> None:
    async def play() -> None:
        async with Federation() as there:
            machine = Machine(there.authority, 1)
            async with Device(there, machine) as device:
                await device.hello()
                device.seq = 7
                await device.send(b"a gap")
                code, details = await refused(device.message())
                assert code == "INVALID_ARGUMENT"
                assert "gap" not in details
                assert there.heard.ops() == ["joined", "left"]
                assert there.said(machine.node, "seq")

    asyncio.run(play())


def test_a_certificate_that_ends_meanwhile_ends_its_stream() -> None:
    async def play() -> None:
        async with Federation() as there:
            machine = Machine(there.authority, 1, days=1)
            async with Device(there, machine) as device:
                await device.hello()
                there.ahead += 86_400 + 300
                there.core.tick()
                assert (await refused(device.message()))[0] == "UNAUTHENTICATED"
                assert there.said(machine.node, "expired")
                code, _ = await refused(device.hello(ticket=machine.ticket(lives=1e6)))
                assert code == "UNAUTHENTICATED"
                assert there.said("expired on")

    asyncio.run(play())


def test_a_server_app_that_is_slow_slows_the_devices_down() -> None:
    async def play() -> None:
        async with Federation() as there:
            machine = Machine(there.authority, 1)
            async with Device(there, machine) as device:
                await device.hello()
                may_go_on = asyncio.Event()
                there.heard.waiting = 1 << 30
                there.heard.room = may_go_on.wait  # type: ignore[assignment, method-assign]
                for number in range(3):
                    await device.send(b"%d" % number)
                await there.heard.wait("message")
                await asyncio.sleep(0.2)
                assert there.heard.ops().count("message") == 1
                there.heard.waiting = 0
                may_go_on.set()
                await there.heard.wait("message", 3)

    asyncio.run(play())


def test_a_round_trip_takes_a_millisecond_or_so() -> None:
    async def play() -> float:
        async with Federation() as there:
            machine = Machine(there.authority, 1)
            async with Device(there, machine) as device:
                await device.hello()
                took = []
                for number in range(50):
                    began = time.perf_counter()
                    await device.send(bytes(200))
                    await there.heard.wait("message", number + 1)
                    there.core.sessions.post(RUN, machine.node, bytes(200))
                    await device.message()
                    took.append(time.perf_counter() - began)
                return min(took)  # what the transport holds back costs each of them 40 ms

    assert asyncio.run(play()) < 0.02
