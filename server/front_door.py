"""The front's connections: TLS on one port, so many at once, each with an end to its waiting.

HTTP/1.1 by uvicorn and h11, whose strict reading refuses what two readers could take differently.
What they leave open ends here: a handshake, a request's head or an answer that nobody takes may
not last for ever, and there is a number of connections. For one too many, the address that has
most of them loses one; who has as many himself is reset at once, which a SuperNode takes for a
reason to try again.

The certificate is read again when its files change; connections that are open keep the old one.
Told to stop, the front lets the requests that it has end, and takes no more.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import struct
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import uvicorn
from cryptography import x509
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from . import front, service
from .front_places import network
from ..protocol.errors import StateError
from ..protocol.verification import UNREADABLE

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from .core_log import Lines

HANDSHAKE_S = 5.0
"""Seconds for a TLS handshake."""
IDLE_S = 30.0
"""Seconds from a connection's begin, or its last answer, to the next request's whole head."""
SHUTDOWN_S = 2.0
"""Seconds for the other end to close its half, and take what was written before."""
DRAIN_S = 20.0
"""Seconds for requests in progress when the front is told to stop."""
FULL_S = 0.2
"""Pause before the next connection is taken when this process has no file left for one."""
_TICK, _LOOK_S = 0.5, 0.02
_BACKLOG = 256
_UNSENT = 1 << 16


class Certificate:
    """The front's certificate and key, as the files are now."""

    def __init__(self, chain: Path, key: Path, lines: Lines) -> None:
        """Read them.

        Raises:
            StateError: They cannot be read, do not belong together, or are not in force.
        """
        self._chain, self._key, self._lines = chain, key, lines
        self._seen = self._stamp()
        self.context = self._load()

    def look(self) -> None:
        """Read the files again if they changed; what is no good is said, and the old one stays."""
        stamp = self._stamp()
        if stamp == self._seen:
            return
        self._seen = stamp
        try:
            self.context = self._load()
        except StateError as error:
            self._lines.say("certificate", f"{error}; the one before it is used on")
        else:
            self._lines.say("certificate", f"{self._chain} was read again")

    def _stamp(self) -> list[tuple[int, ...] | None]:
        found: list[tuple[int, ...] | None] = []
        for file in (self._chain, self._key):
            try:
                about = file.stat()
                found.append((about.st_ino, about.st_mtime_ns, about.st_size))
            except OSError:
                found.append(None)
        return found

    def _load(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.options |= ssl.OP_NO_RENEGOTIATION
        context.set_alpn_protocols(["http/1.1"])
        move = "`umbel up` makes a federation directory"
        try:
            leaf = x509.load_pem_x509_certificate(self._chain.read_bytes())
            context.load_cert_chain(self._chain, self._key, password=lambda: "")
        except ssl.SSLError as error:
            what = "a certificate and its key"
            raise StateError(str(self._chain), what, error.reason or error, move) from error
        except OSError as error:
            where = str(error.filename or self._chain)
            raise StateError(where, "a readable file", error.strerror, move) from error
        except UNREADABLE as error:
            raise StateError(str(self._chain), "a certificate", error, move) from error
        service.check_in_force(leaf, self._chain)
        return context


class Door(H11Protocol):
    """One connection, after its handshake."""

    def __init__(self, config: uvicorn.Config, state: ServerState, made: Callable[[], None]):
        """Take what uvicorn asks for, and what to call when the handshake is over."""
        super().__init__(config, state, {})
        self._made = made

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for the first request."""
        super().connection_made(transport)
        self._made()
        # What is still to be sent when an answer is done has IDLE_S to leave: it is little.
        transport.set_write_buffer_limits(high=_UNSENT)
        self.waiting_since = self.loop.time()

    def on_response_complete(self) -> None:
        """Begin to wait for the next one."""
        super().on_response_complete()
        self.waiting_since = self.loop.time()

    def timeout_keep_alive_handler(self) -> None:
        """Leave it to `look`."""

    @property
    def host(self) -> str:
        """The address that it came from."""
        return str(self.client[0]) if self.client else ""

    @property
    def busy(self) -> bool:
        """Whether a request is being answered."""
        return self.cycle is not None and not self.cycle.response_complete

    def look(self, now: float) -> None:
        """Close it when it has waited for too long."""
        if self.transport.is_closing():
            return
        if self.busy:
            self.waiting_since = now
        elif now - self.waiting_since > IDLE_S:
            self.transport.close()


class Doors:
    """The port, and every connection that came by it."""

    def __init__(
        self, app: front.Front, certificate: Certificate, listener: socket.socket, most: int,
        lines: Lines,
    ) -> None:  # fmt: skip
        """Take a listening socket; `most` connections at once."""
        self._certificate, self._listener, self._most = certificate, listener, most
        self._lines = lines
        self._config = uvicorn.Config(
            app, http=Door, ws="none", lifespan="off", interface="asgi3", log_config=None,
            access_log=False, proxy_headers=False, server_header=False, date_header=False,
            h11_max_incomplete_event_size=front.HEAD_BYTES,
        )  # fmt: skip
        self._config.load()
        self._state = ServerState()
        self._shaking: dict[asyncio.Task[Any] | None, str] = {}
        self._full = False

    @property
    def open(self) -> int:
        """Connections, those in their handshake among them."""
        return len(self._shaking) + len(self._state.connections)

    async def serve(self, stop: asyncio.Event) -> None:
        """Serve until `stop`, then drain."""
        asyncio.get_running_loop().set_exception_handler(self._unexpected)
        log = logging.getLogger("uvicorn.error")
        handler = _ToLines(self._lines)
        log.addHandler(handler)
        log.propagate = False
        tasks = [asyncio.create_task(part()) for part in (stop.wait, self._accept, self._ticks)]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks[1:]:
                task.cancel()
            self._listener.close()
            await self._drain()
            log.removeHandler(handler)

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                sock, peer = await loop.sock_accept(self._listener)
            except OSError as error:
                self._lines.say("connections", f"no further connection: {error.strerror}")
                await asyncio.sleep(FULL_S)
                continue
            taken = self.open
            full = taken >= self._most
            if full and not self._gives_way(str(peer[0])):
                _reset(sock)
            else:
                task = loop.create_task(self._shake(sock))
                self._shaking[task] = str(peer[0])  # until it has a door, or will have none
                task.add_done_callback(lambda task: self._shaking.pop(task, None))
            if full is not self._full:
                self._full = full
                what = "more are reset at once" if full else "there is room again"
                self._lines.say("connections", f"connections {taken} of {self._most}: {what}")

    def _gives_way(self, host: str) -> bool:
        """End a connection of the address that has most, if that is more than this one will have.

        One without a request goes first, and of those the one that has waited longest.
        """
        doors = [d for d in self._state.connections if isinstance(d, Door)]
        open_doors = [door for door in doors if not door.transport.is_closing()]
        share = Counter(network(door.host) for door in open_doors)
        share.update(network(other) for other in self._shaking.values())
        most, has = share.most_common(1)[0] if share else ("", 0)
        if has <= share[network(host)] + 1:
            return False
        own = [door for door in open_doors if network(door.host) == most]
        if own:
            min(own, key=lambda door: (door.busy, door.waiting_since)).transport.abort()
            return True
        task = next((task for task, other in self._shaking.items() if network(other) == most), None)
        return task is not None and task.cancel()

    async def _shake(self, sock: socket.socket) -> None:
        """Lead a connection through its handshake, to its door."""
        loop, peer, task = asyncio.get_running_loop(), "somebody", asyncio.current_task()

        def made() -> None:
            self._shaking.pop(task, None)

        try:
            peer = str(sock.getpeername()[0])
            # asyncio does it for sockets that it has made itself; without it an answer waits 40 ms.
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await loop.connect_accepted_socket(
                lambda: Door(self._config, self._state, made), sock, ssl=self._certificate.context,
                ssl_handshake_timeout=HANDSHAKE_S, ssl_shutdown_timeout=SHUTDOWN_S,
            )  # fmt: skip
        except ConnectionResetError:
            sock.close()
        except (OSError, ssl.SSLError) as error:
            sock.close()
            why = getattr(error, "reason", None) or "it took too long"
            self._lines.say("handshake", f"no TLS handshake with {peer}: {why}")

    async def _ticks(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(_TICK)
            self._certificate.look()
            now = loop.time()
            for door in list(self._state.connections):
                if isinstance(door, Door):
                    door.look(now)

    async def _drain(self) -> None:
        """Let the requests in progress end, and close everything."""
        for task in filter(None, list(self._shaking)):
            task.cancel()
        loop = asyncio.get_running_loop()
        doors = [door for door in self._state.connections if isinstance(door, Door)]
        for door in doors:
            door.shutdown()
        end = loop.time() + DRAIN_S
        if busy := sum(door.busy for door in doors):
            self._lines.say("stop", f"{busy} requests are let end")
        while self._state.connections and loop.time() < end:
            await asyncio.sleep(_LOOK_S)
        for door in doors:
            door.transport.abort()
        left = list(self._state.tasks)
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)

    def _unexpected(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        self._lines.say("asyncio", f"{context.get('message')}: {error!r}")


class _ToLines(logging.Handler):
    """What uvicorn says, as lines of ours."""

    def __init__(self, lines: Lines) -> None:
        super().__init__(logging.WARNING)
        self._lines = lines

    def emit(self, record: logging.LogRecord) -> None:
        """Say it; a fault of ours with all of its traceback."""
        if record.exc_info and isinstance(record.exc_info[1], asyncio.CancelledError):
            return  # a request that was cut at the end
        self._lines.say("http", self.format(record))


def listening(host: str, port: int) -> socket.socket:
    """Return a socket that listens; `::` takes IPv4 too where both exist.

    Raises:
        StateError: The address cannot be listened on.
    """
    v6 = ":" in host
    try:
        made = socket.create_server(
            (host.strip("[]"), port), family=socket.AF_INET6 if v6 else socket.AF_INET,
            backlog=_BACKLOG, dualstack_ipv6=v6 and host.strip("[]") == "::",
        )  # fmt: skip
    except OSError as error:
        where, move = service.address(host, port), "choose another --port"
        raise StateError(where, "an address to listen on", error.strerror, move) from error
    made.setblocking(False)
    return made


def _reset(sock: socket.socket) -> None:
    """Close a connection by a reset: one that ends in its handshake ends a SuperNode."""
    with suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()
