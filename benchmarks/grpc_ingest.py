"""Umbel's side of `umbel bench ingest`: a device's upload into a slot of the core, over gRPC.

The other process has the core service's own parts, gateway, sessions, sum and world, and is told
what a ServerApp would tell it. This one sends with the device's own code: frames of at most 1 MiB,
as fast as the gateway takes them. In the end the vector lies whole in its slot, frame by frame
checked and hashed, and the hash is the one that was announced.

The gateway listens with TLS only; here there is a second one without, which takes every caller for
the one node, since nobody shows a certificate there.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from contextlib import suppress
from datetime import UTC, datetime
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import grpc
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from .ingest_process import FEDERATION, HOST, Certificates, Other, answering
from ..clients.grpc_line import BEAT_S, OPTIONS, SERVICE
from ..clients.grpc_transfer import Transfer, uploading
from ..clients.session import Upload
from ..protocol import messages_pb2 as pb
from ..protocol import tickets
from ..protocol.membership import Membership
from ..server import allocator
from ..server import core_wire as wire
from ..server.core.world import World
from ..server.core_commands import Commander
from ..server.core_service import Core
from ..server.grpc_gateway import Gateway

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..protocol.verification import Peer

NAME = "gRPC stream"
RUN, KEY = "bench", bytes(32)
_PATIENCE = 60.0


class Ear:
    """Takes the core's events in the place of a ServerApp: only errors matter."""

    waiting = 0

    def __init__(self) -> None:
        """Nothing has gone wrong."""
        self.wrong = ""

    def send(self, op: str, payload: bytes | memoryview, fields: dict[str, object]) -> None:
        """Note an error."""
        if op in {"error", "bad"}:
            self.wrong = f"{op}: {fields.get('why')}"

    async def room(self) -> None:
        """Everything is read at once."""

    async def flushed(self) -> None:
        """Everything is read at once."""

    def close(self) -> None:
        """Nothing to close."""


class Open(Gateway):
    """A gateway that asks nobody who he is."""

    def __init__(self, core: Core, peer: Peer) -> None:
        """Take everybody for `peer`."""
        super().__init__(core)
        self._everybody = peer

    def _bind(self, server: grpc.aio.Server, address: str, _: object) -> int:
        return server.add_insecure_port(address)

    def _peer(self, _: object) -> Peer:
        return self._everybody


class Service:
    """The other process."""

    def __init__(self) -> None:
        """Start a loop; a core comes with the first question, with TLS or without."""
        allocator.keep_frames()
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        self._ear = Ear()
        self._commanders: dict[bool, Commander] = {}

    def answer(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Listen, or open a sum."""
        done = self._listen(asked) if "root" in asked else self._sum(asked)
        return asyncio.run_coroutine_threadsafe(done, self._loop).result(_PATIENCE)

    async def _listen(self, asked: dict[str, Any]) -> dict[str, Any]:
        root, chain, key = (asked[name].encode() for name in ("root", "chain", "key"))
        membership = Membership(x509.load_pem_x509_certificate(root), FEDERATION)
        core = Core(
            membership,
            HOST,
            World(1),
            clock=time.monotonic,
            wall=lambda: datetime.now(UTC),
            say=lambda _kind, _line: None,
        )
        peer = core.peer(asked["node"].encode())
        gateway = Gateway(core) if asked["tls"] else Open(core, peer)
        port = await gateway.start(f"{HOST}:0", (key, chain), root, 16)
        served = core.open(RUN, KEY, self._ear)
        core.sessions.open(RUN, KEY)
        self._commanders[asked["tls"]] = Commander(core, RUN, served)
        expires = int(time.time() + 3600)
        fields = tickets.Ticket(RUN, peer.id, peer.fingerprint, HOST, expires, bytes(16))
        return {"port": port, "ticket": tickets.mint(KEY, fields).hex(), "node": peer.id.hex()}

    async def _sum(self, asked: dict[str, Any]) -> dict[str, Any]:
        size, node = asked["nbytes"], asked["id"]
        sizes = {"total": size, "split": size, "stall": _PATIENCE, "plain": None}
        for op, fields in (
            ("sum", {"ctx": asked["ctx"], **sizes}),
            ("expect", {"node": node, "y_hash": asked["hash"]}),
        ):
            await self._commanders[asked["tls"]].do(wire.Message(op, fields, bytearray()))
        return {"wrong": self._ear.wrong}


class Sender:
    """This process's end: one node with an open session."""

    def __init__(
        self, service: Other, papers: Certificates, payload: bytearray, *, tls: bool
    ) -> None:
        """Connect, with TLS or without, and open the session."""
        self._service, self._payload, self._tls = service, payload, tls
        self._hash = sha256(payload).hexdigest()
        said = service.ask(
            root=papers.root, chain=papers.server.chain, key=papers.server.key,
            node=papers.node.chain, tls=tls,
        )  # fmt: skip
        self._node, self._round = said["node"], 0
        address, options = f"{HOST}:{said['port']}", OPTIONS
        root, key, chain = (
            text.encode() for text in (papers.root, papers.node.key, papers.node.chain)
        )
        self._channel = (
            grpc.secure_channel(address, grpc.ssl_channel_credentials(root, key, chain), options)
            if tls
            else grpc.insecure_channel(address, options)
        )
        self._session(bytes.fromhex(said["ticket"]), papers)

    def _session(self, ticket: bytes, papers: Certificates) -> None:
        """Say hello, and go on saying that this node lives."""
        signing = x509.load_pem_x509_certificate(papers.signing.encode())
        hello = pb.Hello(run=RUN, ticket=ticket, certificate=signing.public_bytes(Encoding.DER))
        self._closed = threading.Event()

        def said() -> Iterator[bytes]:
            yield pb.Up(hello=hello).SerializeToString()
            while not self._closed.wait(BEAT_S):
                yield pb.Up().SerializeToString()

        heard: queue.SimpleQueue[bytes] = queue.SimpleQueue()

        call: grpc.StreamStreamMultiCallable[bytes, bytes]
        call = self._channel.stream_stream(f"{SERVICE}/Session")

        def listen() -> None:
            with suppress(grpc.RpcError):
                for down in call(said()):
                    heard.put(down)

        threading.Thread(target=listen, daemon=True).start()
        heard.get(timeout=_PATIENCE)

    def seconds(self) -> float:
        """Return how long the vector takes until the core has it whole."""
        self._round += 1
        ctx = self._round.to_bytes(32, "little")
        wrong = self._service.ask(
            nbytes=len(self._payload), ctx=ctx.hex(), hash=self._hash, id=self._node, tls=self._tls
        )["wrong"]
        failed: list[str] = [wrong] if wrong else []
        action = Upload(ctx, self._payload)
        work = uploading(self._channel, RUN, action, lambda _: None)
        transfer = Transfer(work, None, lambda _, why: failed.append(why))
        start = time.perf_counter()
        transfer.run()
        took = time.perf_counter() - start
        if failed:
            raise RuntimeError(f"bench ingest: {failed[0]}")
        return took

    def close(self) -> None:
        """Hang up."""
        self._closed.set()
        self._channel.close()


if __name__ == "__main__":
    answering(Service().answer)
