"""Whoever comes to the gateway's port without being a node: it goes on serving those who are."""

from __future__ import annotations

import asyncio
import random
import re
import socket
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from umbel.protocol import messages_pb2 as pb
from umbel.protocol.certificates import Authority, node_uri
from umbel.tests.wire_federation import (
    METHOD,
    RUN,
    Device,
    Federation,
    Machine,
    key_pem,
    pem,
    refused,
)

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def _no_stray_error(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Whatever a peer does, no exception comes out of the gateway's handlers."""
    yield
    assert [record.getMessage() for record in caplog.records] == []


async def still_serves(there: Federation, device: Device) -> None:
    """Check that a session that is there goes on, and that another node can join."""
    before = there.heard.ops().count("message")
    await device.send(b"still here")
    await there.heard.wait("message", before + 1)
    async with there.device(200) as other:
        await other.hello()


async def knock(port: int, data: bytes, seconds: float = 2.0) -> bytes:
    """Send bytes to the port and return what comes back before it closes the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(data)
        await writer.drain()
        return await asyncio.wait_for(reader.read(), seconds)
    except OSError:
        return b""
    finally:
        writer.transport.abort()


def played(play: Any, **settings: Any) -> None:
    """Play with a federation in which one node has a session."""

    async def all_of_it() -> None:
        async with Federation(**settings) as there, there.device() as device:
            await device.hello()
            await play(there)
            await still_serves(there, device)

    asyncio.run(all_of_it())


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(9),
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"\x16\x03\x01\xff\xff" + bytes(5),
        b"\x16\x03\x01\x00\x05\x01\x00\x00\x01\x00",
        b"\x00" * 5000,
    ],
)
def test_plaintext_gets_no_answer_but_an_alert(data: bytes) -> None:
    async def play(there: Federation) -> None:
        try:
            answer = await knock(there.port, data)
        except TimeoutError:  # it waits for the rest of a record
            return
        assert answer[:1] in {b"", b"\x15"}, "an alert record or nothing"
        assert b"HTTP" not in answer

    played(play)


def test_random_bytes_do_not_matter() -> None:
    async def play(there: Federation) -> None:
        async def one(size: int) -> None:
            try:
                await knock(there.port, random.Random(size).randbytes(size), 0.5)  # noqa: S311 - to be repeated
            except TimeoutError:
                return

        await asyncio.gather(*(one(1 + 37 * n) for n in range(60)))

    played(play)


def test_random_bytes_behind_a_good_handshake_do_not_matter(tmp_path: Path) -> None:
    """A node of the federation that speaks TLS and then no HTTP/2."""

    async def play(there: Federation) -> None:
        machine = Machine(there.authority, 3)
        (tmp_path / "tls.pem").write_bytes(pem(machine.tls))
        (tmp_path / "tls.key").write_bytes(key_pem(machine.key))
        context = ssl.create_default_context(cadata=there.root.decode())
        context.set_alpn_protocols(["h2"])
        context.load_cert_chain(tmp_path / "tls.pem", tmp_path / "tls.key")
        noise = random.Random(1).randbytes(3000)  # noqa: S311 - to be repeated
        for data in (noise, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 3000):
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", there.port, ssl=context, server_hostname="localhost"
            )
            writer.write(data)
            await asyncio.wait_for(reader.read(), 60)
            writer.transport.abort()

    played(play)


async def turned_away(there: Federation, credentials: grpc.ChannelCredentials) -> tuple[str, str]:
    """Return how a hello over a channel with these credentials ends."""
    async with grpc.aio.secure_channel(
        f"localhost:{there.port}", credentials, [("grpc.use_local_subchannel_pool", 1)]
    ) as channel:
        call: Any = channel.unary_stream(METHOD + "Session")
        hello = pb.Up(hello=pb.Hello(run=RUN, ticket=b"x", certificate=b"x"))
        return await refused(call(hello.SerializeToString(), timeout=60).read())


def test_without_a_certificate_of_the_federation_nobody_gets_as_far_as_a_call() -> None:
    async def play(there: Federation) -> None:
        now = datetime.now(UTC)
        foreign = Machine(Authority.create("north", now), 3)
        expired = Machine(there.authority, 4, now - timedelta(days=8))
        for machine in (foreign, expired):
            credentials = grpc.ssl_channel_credentials(
                there.root, key_pem(machine.key), pem(machine.tls)
            )
            assert (await turned_away(there, credentials))[0] == "UNAVAILABLE"
        without = grpc.ssl_channel_credentials(there.root)
        assert (await turned_away(there, without))[0] == "UNAVAILABLE"
        assert there.lines == []

    played(play)


def leaf(there: Federation, machine: Machine, *extensions: x509.ExtensionType) -> bytes:
    """Return a leaf for the machine's TLS key with these extensions, signed by the CA."""
    now = datetime.now(UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.ORGANIZATION_NAME, "site")]))
        .issuer_name(there.authority.certificate.subject)
        .public_key(machine.key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(there.authority.key.public_key()),
            critical=False,
        )
    )
    for extension in extensions:
        builder = builder.add_extension(extension, critical=False)
    return pem(builder.sign(there.authority.key, hashes.SHA256()))


def test_a_leaf_that_grpc_lets_pass_is_judged_again() -> None:
    async def play(there: Federation) -> None:
        machine = Machine(there.authority, 3)
        client = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH])
        plain = x509.BasicConstraints(ca=False, path_length=None)
        usage = machine.tls.extensions.get_extension_for_class(x509.KeyUsage).value

        def uri(federation: str) -> x509.SubjectAlternativeName:
            return x509.SubjectAlternativeName(
                [x509.UniformResourceIdentifier(node_uri(federation, machine.id))]
            )

        for extensions, words in (
            ((plain, usage, uri("north")), "required extension"),  # no EKU
            ((client, plain, usage, uri("south")), "expected north, got south"),
            ((client, plain, usage), "required extension"),  # no name
        ):
            chain = leaf(there, machine, *extensions)
            credentials = grpc.ssl_channel_credentials(there.root, key_pem(machine.key), chain)
            assert await turned_away(there, credentials) == (
                "UNAUTHENTICATED",
                "no certificate of this federation's member",
            )
            assert there.said(words), there.lines
        assert len(there.lines) == 3

    played(play)


def test_hundreds_of_half_open_connections_do_not_hurt() -> None:
    def memory() -> float:
        found = re.search(r"VmRSS:\s+(\d+) kB", Path("/proc/self/status").read_text("ascii"))
        return int(found[1]) / 1024 if found else 0.0

    async def play(there: Federation) -> None:
        before = memory()
        half_open = []
        for _ in range(500):
            end = socket.create_connection(("127.0.0.1", there.port), timeout=5)
            half_open.append(end)
        await asyncio.sleep(0.2)
        assert memory() - before < 25  # 200 are let in, each about 50 KiB; and the machine's noise
        for end in half_open:
            end.close()
        await asyncio.sleep(0.2)

    played(play, connections=200)


def test_half_open_connections_end_by_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("umbel.server.grpc_gateway.HANDSHAKE", 0.5)

    async def play(there: Federation) -> None:
        half_open = [socket.create_connection(("127.0.0.1", there.port)) for _ in range(60)]
        try:
            async with there.device(3) as device:  # the connections are all taken
                for _ in range(50):
                    code, _ = await refused(device.hello())
                    if code == "OK":
                        break
                    await asyncio.sleep(0.1)
                assert code == "OK"
        finally:
            for end in half_open:
                end.close()

    played(play, connections=20)
