"""A federation for tests of the network: a CA, devices with both leaves, a gateway in this process.

The device's end is written against messages.proto and grpcio alone, so that it is another hand
than the platform's own client.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Self

import grpc
import grpc.aio
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from umbel.protocol import messages_pb2 as pb
from umbel.protocol import tickets
from umbel.protocol.certificates import Authority
from umbel.protocol.manifest import Manifest
from umbel.protocol.membership import Membership
from umbel.server.core.world import World
from umbel.server.core_service import Core
from umbel.server.grpc_gateway import Gateway

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cryptography import x509

FEDERATION = "north"
GATEWAY = "localhost"
RUN = "digits-1"
KEY = bytes(range(32))
METHOD = "/umbel.v1.Gateway/"


def pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(Encoding.PEM)


def der(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(Encoding.DER)


def key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


class Machine:
    """A node's keys and leaves."""

    def __init__(
        self, authority: Authority, number: int, issued: datetime | None = None, days: int = 7
    ) -> None:
        now = issued or datetime.now(UTC)
        self.id = bytes([number]) * 16
        self.node = self.id.hex()
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.signing = Ed25519PrivateKey.generate()
        site = f"site-{number}"
        self.tls = authority.issue_tls(self.key.public_key(), self.id, site, now, days)
        self.leaf = authority.issue_signing(self.signing.public_key(), self.id, site, now, days)
        self.der = der(self.leaf)
        self.fingerprint = sha256(der(self.tls)).digest()

    def ticket(
        self, run: str = RUN, key: bytes = KEY, lives: float = 3600.0, gateway: str = GATEWAY
    ) -> bytes:
        """Return a ticket that admits this machine, unless told otherwise."""
        expires = int(time.time() + lives)
        fields = tickets.Ticket(run, self.id, self.fingerprint, gateway, expires, bytes(16))
        return tickets.mint(key, fields)


def bare(model: bytes) -> Manifest:
    """Return the manifest of a model that is one array of bytes, a multiple of 64 of them."""
    return Manifest.lay_out([("w", (len(model),), "uint8")])


class Heard:
    """A ServerApp's ear: the events of a run, in order."""

    def __init__(self) -> None:
        self.waiting = 0
        self.closed = False
        self.events: list[tuple[str, dict[str, Any], bytes]] = []
        self._more = asyncio.Event()

    def send(self, op: str, payload: bytes | memoryview, fields: dict[str, object]) -> None:
        """Hear an event."""
        self.events.append((op, dict(fields), bytes(payload)))
        self._more.set()

    async def room(self) -> None:
        """Everything is read at once."""

    async def flushed(self) -> None:
        """Everything is read at once."""

    def close(self) -> None:
        """Note that the core let go."""
        self.closed = True

    def ops(self) -> list[str]:
        """Return the names of the events."""
        return [op for op, _, _ in self.events]

    async def wait(self, op: str, count: int = 1) -> tuple[str, dict[str, Any], bytes]:
        """Return the count-th event of this name, when it has come."""
        async with asyncio.timeout(60):
            while self.ops().count(op) < count:
                self._more.clear()
                await self._more.wait()
        return [event for event in self.events if event[0] == op][count - 1]


class Federation:
    """A core and its gateway over real mTLS, with one run whose ServerApp is `heard`."""

    def __init__(self, slots: int = 1, connections: int = 200, limit: int = 100) -> None:
        self.authority = Authority.create(FEDERATION, datetime.now(UTC))
        self.root = pem(self.authority.certificate)
        self.lines: list[str] = []
        self.ahead = 0.0
        self.core = Core(
            Membership(self.authority.certificate, FEDERATION),
            GATEWAY,
            World(slots),
            clock=lambda: time.monotonic() + self.ahead,
            wall=lambda: datetime.now(UTC) + timedelta(seconds=self.ahead),
            say=lambda kind, line: self.lines.append(f"{kind}: {line}"),
            limit=limit,
        )
        self.gateway = Gateway(self.core)
        self.connections = connections
        self.port = 0
        self.heard = Heard()
        self._key = ec.generate_private_key(ec.SECP256R1())

    async def __aenter__(self) -> Self:
        now = datetime.now(UTC)
        names = [GATEWAY, "127.0.0.1"]
        leaf = self.authority.issue_gateway(self._key.public_key(), names, now)
        certificate = key_pem(self._key), pem(leaf)
        self.port = await self.gateway.start(
            "127.0.0.1:0", certificate, self.root, self.connections
        )
        self.heard = self.serverapp()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.core.shut_down()
        await self.gateway.stop(0)

    def serverapp(self, run: str = RUN) -> Heard:
        """Let a ServerApp open the run."""
        heard = Heard()
        served = self.core.open(run, KEY, heard)
        self.core.sessions.open(run, served.key)
        return heard

    def device(self, number: int = 1) -> Device:
        """Return a connection of a new machine."""
        return Device(self, Machine(self.authority, number))

    def said(self, *words: str) -> bool:
        """Say whether a line of the log has all these words."""
        return any(all(word in line for word in words) for line in self.lines)


class Cable:
    """A stretch of network between devices and a gateway that can be cut."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._ends: list[asyncio.StreamWriter] = []
        self._server: asyncio.Server | None = None
        self.port = 0

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._join, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self.cut()
        if self._server is not None:
            self._server.close()

    def cut(self) -> None:
        """Break every connection, without a word to either end."""
        for end in self._ends:
            end.transport.abort()
        self._ends.clear()

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", self._port)
        self._ends += [writer, back]
        await asyncio.gather(_pour(reader, back), _pour(there, writer))


async def _pour(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await source.read(1 << 16):
            sink.write(data)
            await sink.drain()
    sink.transport.abort()


class Device:
    """One connection of a machine, and the streams it opens."""

    def __init__(self, federation: Federation, machine: Machine, port: int = 0) -> None:
        credentials = grpc.ssl_channel_credentials(
            federation.root, key_pem(machine.key), pem(machine.tls)
        )
        self.machine = machine
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.min_reconnect_backoff_ms", 100)]
        self.channel = grpc.aio.secure_channel(
            f"localhost:{port or federation.port}", credentials, options=options
        )
        self.call: Any = None
        self.seq = 0
        self.received = 0
        self.epoch = 0
        self.unacked: deque[tuple[int, bytes]] = deque()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.channel.close()

    async def hello(self, *, resume: bool = False, run: str = RUN, **fields: Any) -> pb.Down:
        """Open a stream and return the first thing that comes down."""
        self.call = self.channel.stream_stream(METHOD + "Session")(timeout=30)
        hello = pb.Hello(
            run=run,
            ticket=fields.get("ticket") or self.machine.ticket(run),
            certificate=fields.get("certificate") or self.machine.der,
            resume=resume,
        )
        await self.call.write(pb.Up(ack=self.received, hello=hello).SerializeToString())
        down = await self.down()
        if down.HasField("welcome"):
            self.epoch = down.welcome.epoch
            while self.unacked and self.unacked[0][0] <= down.ack:
                self.unacked.popleft()
            for seq, message in self.unacked:
                await self._write(seq, message)
        return down

    async def down(self) -> pb.Down:
        """Return the next thing that comes down; the end of the stream raises `Ended`."""
        try:
            data = await self.call.read()
        except grpc.aio.AioRpcError as error:
            raise Ended(error.code(), error.details() or "") from error
        if data is grpc.aio.EOF:
            raise Ended(await self.call.code(), await self.call.details())
        found = pb.Down.FromString(data)
        self.received = max(self.received, found.seq)
        return found

    async def message(self) -> pb.Down:
        """Return the next message, passing over acknowledgements."""
        while True:
            found = await self.down()
            if found.HasField("message"):
                return found

    async def rest(self) -> list[bytes]:
        """Return the messages that still come before the stream ends."""
        found = []
        with contextlib.suppress(Ended):
            while True:
                found.append((await self.message()).message)
        return found

    async def send(self, message: bytes) -> None:
        """Send a message with the next number, and keep it until it is acknowledged."""
        self.seq += 1
        self.unacked.append((self.seq, message))
        await self._write(self.seq, message)

    async def _write(self, seq: int, message: bytes) -> None:
        await self.call.write(
            pb.Up(seq=seq, ack=self.received, message=message).SerializeToString()
        )

    def upload(self, parts: Iterable[bytes] | AsyncIterator[bytes], ctx: bytes) -> Any:
        """Begin an upload call, which sends nothing before a slot is granted."""
        metadata = (("umbel-run", RUN), ("umbel-ctx-bin", ctx))
        method: Any = self.channel.stream_unary(METHOD + "Upload")
        begun: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        async def when_granted() -> AsyncIterator[bytes]:
            if "umbel-offset" not in dict(await (await begun).initial_metadata() or ()):
                return
            if isinstance(parts, AsyncIterator):
                async for part in parts:
                    yield part
            else:
                for part in parts:
                    yield part

        call = method(when_granted(), metadata=metadata, timeout=30)
        begun.set_result(call)
        return call

    async def fetch(self, digest: bytes, offset: int = 0, run: str = RUN) -> list[bytes]:
        """Return the frames of a model from an offset on."""
        request = pb.FetchRequest(run=run, digest=digest, offset=offset)
        call: Any = self.channel.unary_stream(METHOD + "Fetch")
        return [frame async for frame in call(request.SerializeToString(), timeout=30)]


class Ended(Exception):
    """The stream ended with this status."""

    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        super().__init__(code.name, details)
        self.code, self.details = code, details


async def refused(awaitable: Any) -> tuple[str, str]:
    """Return status and text with which a call ends."""
    with contextlib.suppress(asyncio.CancelledError):
        try:
            await awaitable
        except Ended as end:
            return end.code.name, end.details
        except grpc.aio.AioRpcError as error:
            return error.code().name, error.details() or ""
    return "OK", ""
