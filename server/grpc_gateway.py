"""The gateway: one public port with mutual TLS, three methods, all runs (messages.proto).

    Session  stream Up -> stream Down      Upload  stream of frames -> bytes received
    Fetch    FetchRequest -> stream of frames

gRPC has checked the chain of the client's certificate when a call begins, and nothing else; so
every call is judged again (core_service.py), and ends with a status whose text is fixed.

Each side of a stream says something every `BEAT` seconds: who is not heard is gone (sessions.py).
gRPC's own pings are the second net only, because their answer stands behind all bytes that are on
their way, and so a slow line would look dead; devices may ping as often as they like. A connection
that does not finish its handshake lives `HANDSHAKE` seconds; there are never more connections than
`connections`, since each takes about 50 KiB before anybody knows whose it is.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio

from .endings import Ending, Turned
from ..protocol.frames import Kind, frames
from ..protocol.pace import FIRST, Pace
from ..protocol.wire import HASH, MAX_ENVELOPE

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine

    from .core_service import Core
    from .streams import Stream
    from ..protocol.verification import Peer

SERVICE = "umbel.v1.Gateway"
BEAT = 4.0
"""Seconds after which something is written to a stream, if only that this side lives."""
KEEPALIVE, PING_TIMEOUT = 20.0, 60.0
"""Seconds of silence of a connection after which gRPC asks, and for the answer."""
HANDSHAKE = 5.0
IDLE = 120.0
"""Seconds for which a connection may have no call."""
HELLO = 10.0
"""Seconds within which the first message of a stream must come."""
LAST_WORDS = 5.0
"""Seconds for what is written before a goodbye."""
STREAMS = 8
"""Calls of one connection at a time: a session, an upload, a fetch, and their successors."""
IN_FLIGHT = 8 << 20
"""Bytes of models' frames that are on their way at a time, to all devices together: what gRPC and
TLS make of them is in memory three times. A frame is no smaller than the first for that."""

_Context = grpc.aio.ServicerContext[Any, Any]


def options(connections: int) -> list[tuple[str, int]]:
    """Return the server's channel arguments."""
    return [
        ("grpc.so_reuseport", 0),
        ("grpc.max_receive_message_length", MAX_ENVELOPE),
        ("grpc.max_send_message_length", MAX_ENVELOPE),
        ("grpc.max_metadata_size", 8192),
        ("grpc.max_concurrent_streams", STREAMS),
        ("grpc.max_allowed_incoming_connections", connections),
        ("grpc.server_handshake_timeout_ms", int(1000 * HANDSHAKE)),
        ("grpc.keepalive_time_ms", int(1000 * KEEPALIVE)),
        ("grpc.keepalive_timeout_ms", int(1000 * PING_TIMEOUT)),
        # gRPC 1.85 goes by this one, of any ping.
        ("grpc.http2.ping_timeout_ms", int(1000 * PING_TIMEOUT)),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.max_connection_idle_ms", int(1000 * IDLE)),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.http2.min_ping_interval_without_data_ms", 5000),
        ("grpc.http2.max_ping_strikes", 0),
        ("grpc.enable_channelz", 0),
    ]


class Gateway:
    """The three methods, on behalf of a core."""

    def __init__(self, core: Core) -> None:
        """Serve nobody yet."""
        self._core = core
        self._server: grpc.aio.Server | None = None
        self._fetches = 0

    async def start(
        self,
        address: str,
        certificate: tuple[bytes, bytes],
        root: bytes,
        connections: int,
    ) -> int:
        """Listen and return the port.

        Args:
            address: `host:port`; port 0 takes a free one.
            certificate: Private key and certificate chain, PEM.
            root: The CA that clients must chain to, PEM.
            connections: Most connections at a time.

        Raises:
            RuntimeError: The address is taken, or none of this machine.
        """
        self._server = grpc.aio.server(options=options(connections))
        handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
            "Session": grpc.stream_stream_rpc_method_handler(self._session),
            "Upload": grpc.stream_unary_rpc_method_handler(self._upload),
            "Fetch": grpc.unary_stream_rpc_method_handler(self._fetch),
        }
        generic = grpc.method_handlers_generic_handler(SERVICE, handlers)
        self._server.add_generic_rpc_handlers((generic,))
        credentials = grpc.ssl_server_credentials([certificate], root, require_client_auth=True)
        port = self._bind(self._server, address, credentials)
        await self._server.start()
        return port

    def _bind(
        self, server: grpc.aio.Server, address: str, credentials: grpc.ServerCredentials
    ) -> int:
        """Take the port; a benchmark measures without TLS too."""
        return server.add_secure_port(address, credentials)

    async def stop(self, grace: float = 1.0) -> None:
        """Stop listening, and end every call after `grace` seconds."""
        if self._server is not None:
            await self._server.stop(grace)

    # -- Session ----------------------------------------------------------------------------

    async def _session(self, _: AsyncIterator[bytes], context: _Context) -> None:
        wake, over = asyncio.Event(), asyncio.Event()
        stream: Stream | None = None

        def woken() -> None:
            wake.set()
            if stream is not None and stream.ending is Ending.GOODBYE:
                asyncio.get_running_loop().call_later(LAST_WORDS, over.set)
            elif stream is not None and stream.ending is not None:
                over.set()

        try:
            peer = self._peer(context)
            first = await asyncio.wait_for(context.read(), HELLO)
            stream = self._core.enter(peer, first if isinstance(first, bytes) else b"", woken)
        except TimeoutError:
            return await self._turn(context, Turned(Ending.MALFORMED, "a peer", "said no hello"))
        except Turned as error:
            return await self._turn(context, error)
        if stream.ending is not None:  # it comes back for its goodbye
            woken()
        try:
            await _first_of(
                self._read(stream, context), self._write(stream, context, wake), over.wait()
            )
        finally:
            self._core.broken(stream)
        if stream.ending not in {None, Ending.GOODBYE}:
            await _end(context, stream.ending or Ending.GOODBYE)
        return None

    async def _read(self, stream: Stream, context: _Context) -> None:
        """Take messages until the stream breaks; after its end they mean nothing."""
        while isinstance(data := await context.read(), bytes):
            await self._core.up(stream, data)

    async def _write(self, stream: Stream, context: _Context, wake: asyncio.Event) -> None:
        """Write what there is after each wake, until the stream ends."""
        while True:
            wake.clear()
            ending = stream.ending  # before: what is said while the last write waits goes out too
            for data in stream.outgoing():
                await context.write(data)
                self._core.sent(stream, len(data))
            if ending is not None:
                return
            try:
                async with asyncio.timeout(BEAT):
                    await wake.wait()
            except TimeoutError:
                await context.write(stream.beat())

    # -- Upload and Fetch -------------------------------------------------------------------

    async def _upload(self, requests: AsyncIterator[bytes], context: _Context) -> bytes:
        try:
            peer = self._peer(context)
            run, ctx = _asked(context, peer)
            upload = await self._core.upload(peer, run, ctx)
            try:
                await context.send_initial_metadata((("umbel-offset", str(upload.offset)),))
                async for data in requests:
                    if self._core.frame(upload, data):
                        break
                return struct.pack("<Q", upload.received)
            finally:
                self._core.ended(upload)
        except Turned as error:
            await self._turn(context, error)
        return b""

    async def _fetch(self, request: bytes, context: _Context) -> None:
        try:
            asked = self._core.model(self._peer(context), request)
        except Turned as error:
            await self._turn(context, error)
            return
        pace = Pace(self._core.clock)
        self._fetches += 1

        def size() -> int:
            return min(pace(), max(FIRST, IN_FLIGHT // self._fetches))

        try:
            for frame in frames(Kind.MODEL, asked.digest, asked.model, asked.offset, size):
                await context.write(frame)
                self._core.fetched(asked, len(frame))
        except Turned as error:
            await self._turn(context, error)
        finally:
            self._fetches -= 1

    # -- who, and how it ends ---------------------------------------------------------------

    def _peer(self, context: _Context) -> Peer:
        """Return who calls, by the certificate of the connection.

        Raises:
            Turned: It is no node of this federation.
        """
        shown = list(context.auth_context().get("x509_pem_cert", ()))
        return self._core.peer(shown[0] if shown else b"")

    async def _turn(self, context: _Context, error: Turned) -> None:
        """Write the line and end the call with its fixed text."""
        self._core.say(error.ending.name.lower(), f"{error} ({context.peer()})")
        await _end(context, error.ending)


async def _end(context: _Context, ending: Ending) -> None:
    status, text = ending.value
    await context.abort(grpc.StatusCode[status], text)


def _asked(context: _Context, peer: Peer) -> tuple[str, bytes]:
    """Return run and ctx of an upload, from its metadata."""
    found = dict(context.invocation_metadata() or ())
    run, ctx = found.get("umbel-run", ""), found.get("umbel-ctx-bin", b"")
    if not isinstance(run, str) or not isinstance(ctx, bytes) or len(ctx) != HASH or not run:
        raise Turned(Ending.MALFORMED, peer.id.hex(), "uploads without naming run and ctx")
    return run, ctx


async def _first_of(*parts: Coroutine[Any, Any, object]) -> None:
    """Run all until the first is done, then cancel the others; its error is raised."""
    tasks = [asyncio.ensure_future(part) for part in parts]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in done:
        with contextlib.suppress(asyncio.CancelledError):
            task.result()
