"""A node that the CA removes: what it has open at the gateway ends, and it comes in no more."""

from __future__ import annotations

import asyncio
import socket
import ssl
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from umbel.protocol import messages_pb2 as pb
from umbel.protocol.certificates import Authority
from umbel.protocol.digest import model_digest
from umbel.protocol.errors import Refused
from umbel.protocol.members import LIFE, MemberList
from umbel.server.endings import Ending
from umbel.tests.test_grpc_gateway_bulk import CTX, App, offset, parts, vector
from umbel.tests.wire_federation import (
    FEDERATION,
    GATEWAY,
    RUN,
    Device,
    Ended,
    Federation,
    Machine,
    key_pem,
    pem,
    refused,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

REMOVED = Ending.REMOVED.value


def listed(there: Federation, epoch: int, *gone: Machine, by: Authority | None = None) -> bytes:
    now, ids = datetime.now(UTC), frozenset(machine.id for machine in gone)
    return MemberList(FEDERATION, epoch, now, now + LIFE, ids).sign(by or there.authority)


def remove(there: Federation, *gone: Machine, epoch: int = 2) -> bytes:
    raw = listed(there, epoch, *gone)
    there.core.trust(pb.Trust(members=raw))
    return raw


async def over(device: Device) -> tuple[str, str]:
    """Return how a stream ends, whatever still comes on it."""
    try:
        while True:
            await device.down()
    except Ended as end:
        return end.code.name, end.details


async def trusted(device: Device) -> pb.Trust:
    """Return the next that is said of who is trusted."""
    while True:
        down = await device.down()
        if down.HasField("trust"):
            return down.trust


def test_a_stream_ends_by_name_the_server_app_hears_it_and_others_go_on() -> None:
    async def play() -> None:
        async with Federation() as there:
            machines = [Machine(there.authority, number) for number in (1, 2)]
            async with Device(there, machines[0]) as gone, Device(there, machines[1]) as stays:
                await gone.hello()
                await stays.hello()
                raw = remove(there, machines[0])
                assert await over(gone) == REMOVED
                left = await there.heard.wait("left")
                assert left[1]["node"] == machines[0].node
                assert (await trusted(stays)).members == raw
                there.core.sessions.post(RUN, machines[1].node, b"still here")
                assert (await stays.message()).message == b"still here"
                assert there.said(machines[0].node, "was removed from the federation")

    asyncio.run(play())


def test_a_removed_node_is_let_in_no_more_with_any_ticket() -> None:
    async def play() -> None:
        async with Federation() as there:
            machine = Machine(there.authority, 1)
            remove(there, machine)
            async with Device(there, machine) as device:
                assert await refused(device.hello()) == REMOVED
                assert await refused(device.fetch(bytes(32))) == REMOVED
                assert await refused(device.upload([], CTX)) == REMOVED
            assert "joined" not in there.heard.ops()
            renewed = Machine(there.authority, 1)  # the same id under other keys
            async with Device(there, renewed) as device:
                assert await refused(device.hello()) == REMOVED

    asyncio.run(play())


def test_another_id_in_the_signing_certificate_does_not_help() -> None:
    async def play() -> None:
        async with Federation() as there:
            gone, other = (Machine(there.authority, number) for number in (1, 2))
            remove(there, gone)
            async with Device(there, other) as device:
                end = await refused(device.hello(certificate=gone.der))
                assert end == Ending.CERTIFICATE.value

    asyncio.run(play())


async def _holds(what: Callable[[], bool]) -> None:
    """Wait for what the gateway does after it has ended a call."""
    async with asyncio.timeout(60):
        while not what():
            await asyncio.sleep(0.01)


async def _stalled(first: list[bytes], sent: asyncio.Event) -> AsyncIterator[bytes]:
    for part in first:
        yield part
    sent.set()
    await asyncio.sleep(60)


@pytest.mark.parametrize("sent", [0, 2])
def test_an_upload_that_stands_still_ends(sent: int) -> None:
    async def play() -> None:
        async with Federation() as there:
            machine, y = Machine(there.authority, 1), vector(1)
            app = App(there)
            await app.open()
            await app.expect(machine, y)
            async with Device(there, machine) as device:
                await device.hello()
                written = asyncio.Event()
                call = device.upload(_stalled(parts(y)[:sent], written), CTX)
                assert await offset(call) == 0
                # grpc.aio says INTERNAL of its own where a call ends while it writes on it
                await written.wait()
                remove(there, machine)
                assert await refused(call) == REMOVED
                await _holds(lambda: there.core.served[RUN].uploads == {})

    asyncio.run(play())


def test_an_upload_that_waits_for_a_slot_ends() -> None:
    async def play() -> None:
        async with Federation() as there:
            machine = Machine(there.authority, 1)
            async with Device(there, machine) as device:
                await device.hello()
                call = device.upload(parts(vector(1)), CTX)  # its sum is never opened
                async with asyncio.timeout(60):
                    while machine.node not in there.core.served[RUN].waiting:
                        await asyncio.sleep(0.01)
                remove(there, machine)
                assert await refused(call) == REMOVED
                await _holds(lambda: there.core.served[RUN].waiting == {})

    asyncio.run(play())


async def _drained(call: Any) -> None:
    while isinstance(await call.read(), bytes):
        pass


def test_a_fetch_whose_reader_takes_nothing_ends() -> None:
    async def play() -> None:
        async with Federation() as there:
            machine, model = Machine(there.authority, 1), bytes(32 << 20)
            app = App(there)
            digest = model_digest(model)
            await app.put(model, digest)
            async with Device(there, machine) as device:
                await device.hello()
                method: Any = device.channel.unary_stream("/umbel.v1.Gateway/Fetch")
                request = pb.FetchRequest(run=RUN, digest=digest)
                call = method(request.SerializeToString(), timeout=30)
                assert len(await call.read()) > 64
                remove(there, machine)
                async with asyncio.timeout(60):
                    while there.core.calls._open:
                        await asyncio.sleep(0.01)
                assert await refused(_drained(call)) == REMOVED

    asyncio.run(play())


def test_a_call_that_is_ended_in_its_first_write_ends_for_the_device_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def play() -> None:
        async with Federation() as there:
            machine = Machine(there.authority, 1)

            async def serve(_requests: Any, context: Any, _peer: Any) -> None:
                asyncio.get_running_loop().call_soon(remove, there, machine)
                await context.write(bytes(16))
                await asyncio.sleep(60)

            monkeypatch.setattr(there.gateway._measuring, "serve", serve)
            async with Device(there, machine) as device:
                method: Any = device.channel.stream_stream("/umbel.v1.Gateway/Measure")
                assert await refused(_drained(method(iter([]), timeout=30))) == REMOVED

    asyncio.run(play())


def test_who_is_trusted_comes_right_after_each_welcome_and_when_it_changes() -> None:
    async def play() -> None:
        async with Federation() as there:
            raw = remove(there, epoch=2)
            async with there.device(1) as device:
                for resumed in (False, True):
                    assert (await device.hello(resume=resumed)).HasField("welcome")
                    down = await device.down()
                    assert (down.trust.members, down.seq) == (raw, 0)
                newer = remove(there, epoch=3)
                assert (await trusted(device)).members == newer
                assert there.heard.ops().count("trust") == 2

    asyncio.run(play())


def test_a_list_that_is_none_changes_nothing_and_the_one_before_is_relayed_on() -> None:
    async def play() -> None:
        async with Federation() as there:
            good, machine = remove(there, epoch=5), Machine(there.authority, 1)
            stranger = Authority.create(FEDERATION, datetime.now(UTC))
            for bad in (listed(there, 4), listed(there, 6, machine, by=stranger), b"no list"):
                with pytest.raises(Refused, match="member list"):
                    there.core.trust(pb.Trust(members=bad))
            async with Device(there, machine) as device:
                assert (await device.hello()).HasField("welcome")
                assert (await device.down()).trust.members == good

    asyncio.run(play())


# ---- the gateway's own certificate -------------------------------------------------------------


def _serial(there: Federation, machine: Machine, folder: Path) -> int:
    """Return the serial number of the leaf that a handshake shows."""
    context = ssl.create_default_context(cadata=there.root.decode())
    (folder / "tls.pem").write_bytes(pem(machine.tls) + key_pem(machine.key))
    context.load_cert_chain(folder / "tls.pem")
    context.set_alpn_protocols(["h2"])
    with (
        socket.create_connection(("127.0.0.1", there.port), 10) as plain,
        context.wrap_socket(plain, server_hostname=GATEWAY) as secure,
    ):
        shown = secure.getpeercert(binary_form=True)
    return x509.load_der_x509_certificate(shown or b"").serial_number


def test_a_renewed_leaf_is_shown_to_the_next_and_who_is_here_stays(tmp_path: Path) -> None:
    async def play() -> None:
        async with Federation() as there:
            machine = Machine(there.authority, 1)
            async with Device(there, machine) as device:
                await device.hello()
                before = await asyncio.to_thread(_serial, there, machine, tmp_path)
                assert await asyncio.to_thread(_serial, there, machine, tmp_path) == before
                for _ in range(3):
                    key = ec.generate_private_key(ec.SECP256R1())
                    names, now = [GATEWAY], datetime.now(UTC)
                    leaf = there.authority.issue_gateway(key.public_key(), names, now)
                    there.gateway.renew((key_pem(key), pem(leaf)))
                    shown = await asyncio.to_thread(_serial, there, machine, tmp_path)
                    assert shown == leaf.serial_number
                there.core.sessions.post(RUN, machine.node, b"still here")
                assert (await device.message()).message == b"still here"
                assert there.said("shows a renewed certificate")

    asyncio.run(play())
