"""The gateway: one public port with mutual TLS, four methods, all runs (messages.proto).

    Session  stream Up -> stream Down      Upload   stream of frames -> bytes received
    Fetch    FetchRequest -> stream of frames       Measure  bytes to and fro (grpc_measure.py)

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
import time
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio

from .endings import Ending, Turned
from .grpc_measure import Measure
from ..protocol.frames import Kind, frames
from ..protocol.pace import FIRST, Pace
from ..protocol.wire import HASH, MAX_ENVELOPE

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine

    from .core_service import Core
    from .served import Download
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
SETTLE = 0.05
"""Seconds in which handshakes that have begun go on with the certificate of before."""
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
    """The methods, on behalf of a core."""

    def __init__(self, core: Core) -> None:
        """Serve nobody yet."""
        self._core = core
        self._server: grpc.aio.Server | None = None
        self._fetches = 0
        self._measuring = Measure(core.wall)
        self._shown = self._given = b"", b""
        self._root = b""

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
            "Measure": grpc.stream_stream_rpc_method_handler(self._measure),
        }
        generic = grpc.method_handlers_generic_handler(SERVICE, handlers)
        self._server.add_generic_rpc_handlers((generic,))
        self._shown, self._root = certificate, root
        credentials = grpc.dynamic_ssl_server_credentials(
            self._configuration(),
            self._renewed,  # type: ignore[arg-type]  # None is "unchanged"; its stubs forget it
            require_client_authentication=True,
        )
        port = self._bind(self._server, address, credentials)
        await self._server.start()
        return port

    def renew(self, certificate: tuple[bytes, bytes]) -> None:
        """Show this certificate, as `start` takes it, from the next handshake on."""
        if certificate != self._shown:
            self._core.say("gateway", "shows a renewed certificate from now on")
            self._shown = certificate

    def _configuration(self) -> grpc.ServerCertificateConfiguration:
        """Return what a handshake goes by."""
        self._given = self._shown
        return grpc.ssl_server_certificate_configuration([self._given], self._root)

    def _renewed(self) -> grpc.ServerCertificateConfiguration | None:
        """Return another configuration, once; gRPC asks at each handshake, in its own threads.

        It asks under a lock, and frees the configuration before while other handshakes that have
        left the lock may still be beginning with it: with a new one each time it crashed within
        seconds. So a new one comes only where there is one, and after they are done.
        """
        if self._given is self._shown:
            return None
        time.sleep(SETTLE)
        return self._configuration()

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
            await _head(context)
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
        received = [0]
        try:
            peer = self._peer(context)
            run, ctx = _asked(context, peer)
            with self._core.calls.of(peer.id.hex()) as over:
                taking = self._take(requests, context, (peer, run, ctx), received)
                await _until(over, taking)
        except Turned as error:
            await self._turn(context, error)
        return struct.pack("<Q", received[0])

    async def _take(
        self,
        requests: AsyncIterator[bytes],
        context: _Context,
        asked: tuple[Peer, str, bytes],
        received: list[int],
    ) -> None:
        """Take the frames of an upload until the vector is whole, or no more come."""
        upload = await self._core.upload(*asked)
        try:
            await _head(context, ("umbel-offset", str(upload.offset)))
            async for data in requests:
                if self._core.frame(upload, data):
                    break
            received[0] = upload.received
        finally:
            self._core.ended(upload)

    async def _fetch(self, request: bytes, context: _Context) -> None:
        try:
            peer = self._peer(context)
            asked = self._core.model(peer, request)
            with self._core.calls.of(peer.id.hex()) as over:
                await _head(context)
                await _until(over, self._send(asked, context))
        except Turned as error:
            await self._turn(context, error)

    async def _send(self, asked: Download, context: _Context) -> None:
        """Write a model, from where it is asked for on."""
        pace = Pace(self._core.clock)
        self._fetches += 1

        def size() -> int:
            return min(pace(), max(FIRST, IN_FLIGHT // self._fetches))

        try:
            for frame in frames(Kind.MODEL, asked.digest, asked.model, asked.offset, size):
                await context.write(frame)
                self._core.fetched(asked, len(frame))
        finally:
            self._fetches -= 1

    async def _measure(self, requests: AsyncIterator[bytes], context: _Context) -> None:
        try:
            peer = self._peer(context)
            with self._core.calls.of(peer.id.hex()) as over:
                await _head(context)
                await _until(over, self._measuring.serve(requests, context, peer))
        except Turned as error:
            await self._turn(context, error)

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
        self._core.turned(error)
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


async def _head(context: _Context, *metadata: tuple[str, str]) -> None:
    """Send what an answer begins with, to its end, although this task is cancelled meanwhile.

    Where its first write is cancelled, gRPC forgets that the answer has begun, and cannot end the
    call any more: a device would wait for its own deadline.
    """
    sent = asyncio.ensure_future(context.send_initial_metadata(metadata))
    try:
        await asyncio.shield(sent)
    except asyncio.CancelledError:
        await asyncio.gather(sent, return_exceptions=True)  # no reader holds it up
        raise


async def _until(over: asyncio.Future[None], part: Coroutine[Any, Any, object]) -> None:
    """Run a part to its end, or until it is ended from outside: that cause is the one raised.

    What ends a call from outside also ends its session, for which the part may fail first.
    """
    task = asyncio.ensure_future(part)
    try:
        await asyncio.wait((task, over), return_when=asyncio.FIRST_COMPLETED)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    if over.done():
        over.result()
    with contextlib.suppress(asyncio.CancelledError):
        task.result()


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
