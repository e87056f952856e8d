"""The issuer's process: `issuer.sock` on one side, an `Issuer` in threads on the other.

The socket is 0600 in a directory that is 0700: who can connect is the federation's operator, or
the front, which runs as the same user or as root. A connection has one request, and ten seconds to
say it. Enrolments wait for the SuperLink; so no more than `ENROLMENTS` of them are at work at once,
`WAITING` wait for a place and the next one is told to try again: renewals and removals always find
a thread.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from .issuer_commands import Answer, answer
from .issuer_wire import SOCKET, answer_line, asked, is_served
from ..host import unix_socket
from ..protocol.enrolment import MAX_REQUEST, Declined
from ..protocol.errors import Malformed, StateError, UmbelError

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable
    from pathlib import Path

    from .issuer import Issuer

THREADS, ENROLMENTS, WAITING = 24, 16, 256
SAY_S = 10.0
"""How long a request may take to arrive."""
FIRST_S = 10.0
"""When the issuer first does what time asks for at the SuperLink too, which starts beside it."""
REFRESH_S = 60.0
"""How often from then on."""


def listen(folder: Path) -> socket.socket:
    """Bind the socket of a federation.

    Raises:
        StateError: Another issuer serves it, or the path is too long.
    """
    path = folder / SOCKET
    unix_socket.check_length(path)
    if is_served(folder):
        raise StateError(str(path), "no other issuer", "one that runs", "end it first")
    return unix_socket.listen(path, 256)


class Service:
    """One issuer that serves its socket."""

    def __init__(self, issuer: Issuer, say: Callable[[str], None]) -> None:
        """Take the issuer, and where lines for the operator go."""
        self._issuer, self._say = issuer, say
        self._threads = ThreadPoolExecutor(THREADS, "issuer")
        self._places, self._enrolments = asyncio.Semaphore(ENROLMENTS), 0
        self._open: set[asyncio.Task[None]] = set()
        self._last: list[str] = []

    async def serve(self, listener: socket.socket, stop: asyncio.Event) -> None:
        """Answer until `stop`, then finish what was begun."""
        server = await asyncio.start_unix_server(self._taken, sock=listener, limit=MAX_REQUEST)
        refreshing = asyncio.create_task(self._refreshing(stop))
        await stop.wait()
        server.close()
        await refreshing
        while self._open:
            await asyncio.wait(self._open)
        await asyncio.get_running_loop().run_in_executor(None, self._threads.shutdown)

    async def refresh(self, *, superlink: bool = True) -> None:
        """Do what is due, and say what came of it, unless it was so the last time.

        Args:
            superlink: Whether the SuperLink is asked: while a server starts it is not there yet.
        """
        work = partial(self._issuer.refresh, superlink=superlink)
        try:
            lines = await asyncio.get_running_loop().run_in_executor(self._threads, work)
        except UmbelError as error:  # a full disk: the next time it may have room
            lines = [str(error)]
        for line in lines:
            if line not in self._last:
                self._say(line)
        self._last = lines

    async def _refreshing(self, stop: asyncio.Event) -> None:
        pause = FIRST_S
        while not stop.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await stop.wait()
            pause = REFRESH_S
            if not stop.is_set():
                await self.refresh()

    async def _taken(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve a connection as a task that `serve` knows, so that its answer still leaves."""
        task = asyncio.create_task(self._connection(reader, writer))
        self._open.add(task)
        task.add_done_callback(self._open.discard)

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(SAY_S):
                line = await reader.readline()
            if line:
                writer.write(answer_line(await self._answer(line)))
                async with asyncio.timeout(SAY_S):
                    await writer.drain()
        except (OSError, ValueError, TimeoutError):
            pass  # whoever asked has gone, says too much or nothing
        finally:
            writer.close()

    async def _answer(self, line: bytes) -> Answer:
        try:
            command, body = asked(line)
        except Malformed as error:
            return _declined(Declined("malformed", str(error)))
        if command != "enrol":
            return await self._work(command, body)
        if self._enrolments >= ENROLMENTS + WAITING:
            return _declined(Declined("unavailable"))
        self._enrolments += 1
        try:
            async with self._places:
                return await self._work(command, body)
        finally:
            self._enrolments -= 1

    async def _work(self, command: str, body: bytes) -> Answer:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(
            self._threads, answer, self._issuer, command, body, self._say
        )


def _declined(error: Declined) -> Answer:
    return Answer(error.status, error.dumps())
