"""The Unix socket of the core service: one connection for each ServerApp, one ServerApp a run.

Only the owner of the federation directory gets in: the socket is 0600 in a directory that is
0700, and the other end's user is compared once more. A second connection for a run takes over.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import socket
import struct
from collections import deque
from typing import TYPE_CHECKING

from . import core_wire as wire
from .core_commands import Commander
from .core_service import HIGH_WATER
from .core_view import view
from ..host import unix_socket
from ..host.whole_file import write_whole
from ..protocol.entropy import os_entropy, random_bytes
from ..protocol.errors import Malformed, StateError, UmbelError
from ..protocol.tickets import KEY_BYTES

if TYPE_CHECKING:
    from pathlib import Path

    from .core_service import Core

RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
MOST_EVENTS = 100_000
"""Unread events after which a ServerApp is let go: it does not read."""
_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid


class Connection:
    """One ServerApp: its commands are read by `serve`, events leave through `send`."""

    def __init__(self, stream: socket.socket) -> None:
        """Take a connected, non-blocking socket."""
        self.waiting = 0
        self._stream = stream
        self._queue: deque[bytes | bytearray | memoryview] = deque()
        self._more = asyncio.Event()
        self._room = asyncio.Event()
        self._closed = False

    def send(self, op: str, payload: bytes | memoryview, fields: dict[str, object]) -> None:
        """Queue an event; after `close` it goes nowhere."""
        if len(self._queue) > MOST_EVENTS:
            self.close()
        if self._closed:
            return
        for part in wire.parts(wire.head(op, len(payload), **fields), payload):
            self._queue.append(part)
            self.waiting += len(part)
        self._more.set()

    async def room(self) -> None:
        """Return when little is unread, or nobody reads any more."""
        while self.waiting > HIGH_WATER // 2 and not self._closed:
            self._room.clear()
            await self._room.wait()

    async def flushed(self) -> None:
        """Return when everything has left, or nobody reads any more."""
        while self.waiting and not self._closed:
            self._room.clear()
            await self._room.wait()

    def close(self) -> None:
        """End the connection; what has not left is dropped."""
        self._closed = True
        self._more.set()
        self._room.set()
        with contextlib.suppress(OSError):
            self._stream.shutdown(socket.SHUT_RDWR)

    async def write(self) -> None:
        """Write what is queued until the connection closes, from either end."""
        loop = asyncio.get_running_loop()
        try:
            while not self._closed:
                if not self._queue:
                    self._more.clear()
                    await self._more.wait()
                    continue
                part = self._queue.popleft()
                await loop.sock_sendall(self._stream, part)
                self.waiting -= len(part)
                self._room.set()
        except OSError:
            self.close()  # nobody reads: who waits for `room` or `flushed` goes on

    async def read(self, reader: wire.Reader) -> wire.Message | None:
        """Return the next command; None at the end of the stream.

        Raises:
            Malformed: It is none, or the stream ends inside of it.
        """
        loop = asyncio.get_running_loop()
        message = None
        while message is None:
            count = await loop.sock_recv_into(self._stream, reader.room())
            if not count:
                if reader.between or self._closed:
                    return None
                raise Malformed("ServerApp", "a whole message", "its rest", "the end")
            message = reader.filled(count)
        return message


class CoreSocket:
    """The listening end."""

    def __init__(self, core: Core, directory: Path, port: int, names: list[str], ca: str) -> None:
        """Serve `core` in a federation directory; the rest is what `opened` says."""
        self._core, self._directory = core, directory
        self._port, self._names, self._ca = port, names, ca
        self._tasks: set[asyncio.Task[None]] = set()
        self.path = directory / "core.sock"
        core.forget = self._forget

    def listen(self) -> socket.socket:
        """Bind and return the listening socket.

        Raises:
            StateError: The path is too long, or cannot be bound.
        """
        return unix_socket.listen(self.path, 16)

    async def serve(self, listener: socket.socket) -> None:
        """Accept connections until cancelled, then end them all."""
        loop = asyncio.get_running_loop()
        try:
            while True:
                stream, _ = await loop.sock_accept(listener)
                task = asyncio.create_task(self._connection(stream))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
        finally:
            for task in list(self._tasks):
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            listener.close()
            self.path.unlink(missing_ok=True)

    async def _connection(self, stream: socket.socket) -> None:
        connection = Connection(stream)
        writing = asyncio.create_task(connection.write())
        try:
            _, uid, _ = _CREDENTIALS.unpack(
                stream.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
            )
            if uid in {os.getuid(), 0}:
                await self._serve(connection)
            else:
                self._core.say("socket", f"core.sock: refused user {uid}")
        except (OSError, UmbelError) as error:
            self._core.say("socket", f"core.sock: a connection ended: {error}")
        finally:
            connection.close()
            writing.cancel()
            await asyncio.gather(writing, return_exceptions=True)
            stream.close()

    async def _serve(self, connection: Connection) -> None:
        """Do the commands of one connection."""
        reader = wire.Reader(wire.COMMANDS, "ServerApp")
        first = await connection.read(reader)
        if first is None:
            return
        if first.op == "status":
            connection.send("status", view(self._core), {})
            return await connection.flushed()
        if first.op != "open":
            raise Malformed("ServerApp", "first command", "open", first.op)
        run, core = wire.text(first, "run", 64), self._core
        if RUN_ID.fullmatch(run) is None:
            raise Malformed("ServerApp", "open.run", RUN_ID.pattern, "another form")
        served = core.open(run, self._key(run), connection)
        try:
            core.emit(run, "opened", port=self._port, names=self._names, ca=self._ca)
            core.trusted(run)
            core.sessions.open(run, served.key)
            commander = Commander(core, run, served)
            while commander.current:
                message = await connection.read(reader)
                if message is None:
                    return
                await commander.do(message)
            await connection.flushed()
        finally:
            core.desert(run, connection)

    # -- ticket keys ------------------------------------------------------------------------

    def _key(self, run: str) -> bytes:
        """Return the run's ticket key, made at its first start and kept for its next ones."""
        return ticket_key(self._directory / "tickets" / f"{run}.key")

    def _forget(self, run: str) -> None:
        (self._directory / "tickets" / f"{run}.key").unlink(missing_ok=True)
        self._core.say("run", f"run {run} is over")


def ticket_key(path: Path) -> bytes:
    """Return the 32 bytes of a key file, which is made (0600, fsynced) if it is absent.

    Raises:
        StateError: It cannot be made, or holds something else.
    """
    try:
        path.parent.mkdir(mode=0o700, exist_ok=True)
        if not path.exists():
            write_whole(path, random_bytes(KEY_BYTES, os_entropy))  # never half a key
        key = path.read_bytes()
    except OSError as error:
        raise StateError(str(path), "a key file", error.strerror) from error
    if len(key) != KEY_BYTES:
        raise StateError(str(path), f"{KEY_BYTES} bytes", len(key), "remove it; new tickets follow")
    return key
