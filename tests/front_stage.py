"""A front on real sockets in a thread, before a SuperLink that says what a test wants.

The SuperLink here is a table of paths: what passes the front is the matter, byte for byte, and not
what Flower makes of it (test_flower_up.py has a real one). Clients are raw TLS sockets.
"""

from __future__ import annotations

import asyncio
import re
import socket
import ssl
import threading
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from cryptography.hazmat.primitives.asymmetric import ec

from umbel.protocol.certificates import Authority
from umbel.server.core_log import Lines
from umbel.server.front import Front
from umbel.server.front_body import Terms
from umbel.server.front_door import Certificate, Doors, listening
from umbel.server.front_pages import pages_of
from umbel.tests.wire_federation import key_pem, pem

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

NAMES = ("localhost", "127.0.0.1")
PULL = "/v1/fleet/pull-messages"


@dataclass
class Seen:
    """A request as the SuperLink got it."""

    head: bytes
    body: bytes = b""
    cut: bool = False
    """Whether its body broke off."""

    @property
    def headers(self) -> list[tuple[str, str]]:
        """Its headers, names in lower case, sorted."""
        lines = self.head.decode().split("\r\n")[1:-2]
        pairs = (line.split(": ", 1) for line in lines)
        return sorted((name.lower(), value) for name, value in pairs)


class SuperLink:
    """What stands behind the front."""

    def __init__(self) -> None:
        self.seen: list[Seen] = []
        self.reads = asyncio.Event()
        """Whether bodies are read."""
        self.answers = asyncio.Event()
        """Whether requests are answered."""
        self.reads.set()
        self.answers.set()
        self.said: dict[str, bytes] = {}
        """Answers by path; by default a body that names the path."""

    async def talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection."""
        try:
            with suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
                while await self._one(reader, writer):
                    pass
        finally:
            writer.close()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        seen = Seen(await reader.readuntil(b"\r\n\r\n"))
        self.seen.append(seen)
        await self.reads.wait()
        seen.cut = True
        length = re.search(rb"content-length: (\d+)", seen.head, re.IGNORECASE)
        if length:
            seen.body = await reader.readexactly(int(length[1]))
        elif b"transfer-encoding: chunked" in seen.head.lower():
            while size := int(await reader.readuntil(b"\r\n"), 16):
                seen.body += (await reader.readexactly(size + 2))[:-2]
            await reader.readexactly(2)
        seen.cut = False
        await self.answers.wait()
        path = seen.head.split(b" ", 2)[1].decode()
        writer.write(self.said.get(path, answer(path.encode() + b"\n")))
        await writer.drain()
        return not self.said.get(path, b"").endswith(b"cut")


class Stage:
    """The two of them, their loop in a thread."""

    def __init__(
        self, folder: Path, terms: Terms, most: int, sndbuf: int, devices: Path | None
    ) -> None:
        self.folder, self.log = folder, list[str]()
        self.authority = Authority.create("dev", datetime.now(UTC))
        folder.mkdir(exist_ok=True)
        (folder / "ca.pem").write_bytes(pem(self.authority.certificate))
        for name in ("front", "superlink"):
            self.issue(name)
        self.trust = ssl.create_default_context(cafile=folder / "ca.pem")
        self._terms, self._most, self._sndbuf = terms, most, sndbuf
        self._devices = devices
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._live()))
        self._thread.start()
        assert self._ready.wait(60)

    def issue(self, name: str, authority: Authority | None = None) -> None:
        """Write a new key and certificate of a server, each whole."""
        key, by = ec.generate_private_key(ec.SECP256R1()), authority or self.authority
        leaf = by.issue_gateway(key.public_key(), NAMES, datetime.now(UTC))
        for end, content in (("key", key_pem(key)), ("pem", pem(leaf))):
            (self.folder / f"{name}.new").write_bytes(content)
            (self.folder / f"{name}.new").replace(self.folder / f"{name}.{end}")

    async def _live(self) -> None:
        self._loop, self.superlink = asyncio.get_running_loop(), SuperLink()
        own = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        own.load_cert_chain(self.folder / "superlink.pem", self.folder / "superlink.key")
        self._behind_tls, self._stop = own, asyncio.Event()
        with socket.create_server(("127.0.0.1", 0)) as found:
            self.behind = int(found.getsockname()[1])
        await self._open_superlink()
        lines = Lines(self.log.append, time.monotonic)
        devices = pages_of(self._devices, lines) if self._devices else None
        front = Front(f"127.0.0.1:{self.behind}", self.trust, lines, self._terms, devices)
        listener = listening("127.0.0.1", 0)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, self._sndbuf)
        # Else the system lets it grow to tens of MB, as that of one that reads quickly.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
        self.port = int(listener.getsockname()[1])
        certificate = Certificate(self.folder / "front.pem", self.folder / "front.key", lines)
        self.doors = Doors(front, certificate, listener, self._most, lines)
        self.front = front
        self._ready.set()
        await self.doors.serve(self._stop)
        await front.close()
        await self._close_superlink()

    async def _open_superlink(self) -> None:
        self._server = await asyncio.start_server(
            self.superlink.talk, "127.0.0.1", self.behind, ssl=self._behind_tls, limit=1 << 16
        )

    async def _close_superlink(self) -> None:
        self._server.close()
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            if "SuperLink.talk" in repr(task.get_coro()):
                task.cancel()
        await asyncio.sleep(0.05)

    def do(self, what: Callable[[], object]) -> None:
        """Call something in the loop's thread."""
        self._loop.call_soon_threadsafe(what)

    def away(self) -> None:
        """End the SuperLink, with its connections."""
        asyncio.run_coroutine_threadsafe(self._close_superlink(), self._loop).result(60)

    def back(self) -> None:
        """Start it again on its port, with its certificate as it is now."""
        own = (self.folder / "superlink.pem", self.folder / "superlink.key")
        self._behind_tls.load_cert_chain(*own)
        asyncio.run_coroutine_threadsafe(self._open_superlink(), self._loop).result(60)

    def stop(self) -> None:
        """Tell the front to stop."""
        self.do(self._stop.set)

    def close(self) -> None:
        """Stop and wait for the end."""
        self.do(self.superlink.reads.set)
        self.do(self.superlink.answers.set)
        self.stop()
        self._thread.join(60)
        assert not self._thread.is_alive()

    # -- clients ------------------------------------------------------------------------------

    def connect(self, rcvbuf: int = 1 << 20, source: str = "127.0.0.1") -> ssl.SSLSocket:
        """Return a connection with the front, through its handshake."""
        plain = socket.socket()
        plain.bind((source, 0))
        plain.settimeout(60)
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, rcvbuf)
        try:
            plain.connect(("127.0.0.1", self.port))
            return self.trust.wrap_socket(plain, server_hostname="localhost")
        except OSError:
            plain.close()
            raise

    def ask(self, raw: bytes) -> bytes:
        """Send bytes, and return everything that comes back until the front closes."""
        with self.connect() as line:
            with suppress(OSError):
                line.sendall(raw)
            return rest(line)

    def status(self, raw: bytes) -> int:
        """Return the status of the answer to one request."""
        with self.connect() as line:
            line.sendall(raw)
            return status(response(line, bodiless=raw.startswith(b"HEAD")))

    def until(self, holds: Callable[[], object], what: str) -> None:
        """Wait for something."""
        end = time.monotonic() + 60
        while not holds():
            assert time.monotonic() < end, f"waited in vain for {what}: {self.log}"
            time.sleep(0.01)


def post(target: str = PULL, body: bytes = b"", *headers: str, method: str = "POST") -> bytes:
    """Return a request's bytes."""
    lines = [f"{method} {target} HTTP/1.1", "Host: localhost", *headers]
    if not any(line.lower().startswith(("content-length", "transfer-")) for line in headers):
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode() + body


def answer(body: bytes, *headers: str, status: int = 200) -> bytes:
    """Return an answer's bytes."""
    lines = [f"HTTP/1.1 {status} X", *headers, f"Content-Length: {len(body)}", "", ""]
    return "\r\n".join(lines).encode() + body


def rest(line: ssl.SSLSocket) -> bytes:
    """Return what comes until the end, which must come."""
    found = b""
    with suppress(ConnectionError, ssl.SSLError):
        while piece := line.recv(65536):
            found += piece
    return found


def response(line: ssl.SSLSocket, *, bodiless: bool = False) -> bytes:
    """Return one answer whose length is told, head and body."""
    found = b""
    while b"\r\n\r\n" not in found:
        piece = line.recv(65536)
        assert piece, found
        found += piece
    head, _, body = found.partition(b"\r\n\r\n")
    length = re.search(rb"content-length: (\d+)", head, re.IGNORECASE)
    while length and not bodiless and len(body) < int(length[1]):
        body += line.recv(65536)
    return head + b"\r\n\r\n" + body


def status(raw: bytes) -> int:
    """Return the status of an answer."""
    return int(raw.split(b" ", 2)[1])


@contextmanager
def staged(
    folder: Path,
    terms: Terms | None = None,
    most: int = 100,
    sndbuf: int = 1 << 20,
    devices: Path | None = None,
) -> Iterator[Stage]:
    """Give a running stage."""
    stage = Stage(folder, terms or Terms(), most, sndbuf, devices)
    try:
        yield stage
    finally:
        stage.close()
