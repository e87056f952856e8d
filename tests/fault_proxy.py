"""A TCP proxy whose line is as bad as a test wants it.

    device ── rate ── latency, jitter ──► target          and the same way back

Every fault may be changed while connections are open. Bytes are counted when they have crossed
the slow part of the line, in each direction, for each connection; a cut loses what was on its way.
One thread runs it all; randomness is seeded, and drawn anew for each connection and direction.

| fault | what the ends see |
|---|---|
| `latency`, `jitter` | bytes come so many seconds later, jitter on top at random; in order |
| `rate` | bytes a second, for each direction of each connection |
| `cut_at` | once so many bytes went up in all, every connection is reset, once |
| `up_to`, `down_to` | once so many bytes went that way in all, no more do, until it is lifted |
| `cut()` | every connection is reset now |
| `swallow` | nothing passes and nothing is said: half open, for connections new and old |
| `idle` | a connection over which nothing went for so long is closed in order |
| `refuse` | who connects is reset at once |
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
import socket
import struct
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Coroutine, Sequence

CHUNK = 16 << 10
BUFFER = 32 << 10
"""Bytes that the system may take for us: what waits for a slow line waits at its sender."""
IN_FLIGHT = 256
"""Chunks that may be delayed at a time."""
RESET = struct.pack("ii", 1, 0)
"""SO_LINGER by which a close is a reset."""


class Connection:
    """One connection through the proxy, and what passed over it."""

    def __init__(self, near: socket.socket, far: socket.socket) -> None:
        """Join two connected sockets."""
        self.near, self.far = near, far
        self.up = self.down = 0
        self.open = True
        self.last = 0.0
        """When something passed, by the loop's clock."""
        self.task: asyncio.Task[None] | None = None

    def close(self, *, reset: bool) -> None:
        """Close both ends."""
        self.open = False
        for end in (self.near, self.far):
            with contextlib.suppress(OSError):
                if reset:
                    end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                end.close()


class FaultProxy:
    """Forwards connections to a port of this machine."""

    def __init__(
        self,
        port: int,
        *,
        target: str = "127.0.0.1",
        hosts: Sequence[str] = ("127.0.0.1",),
        seed: int = 0,
        **faults: float,
    ) -> None:
        """Listen, on one port at every address of `hosts`; `faults` are set before the first."""
        self.latency = self.jitter = 0.0
        self.rate = self.cut_at = self.idle = self.up_to = self.down_to = math.inf
        self.swallow = self.refuse = False
        self.cuts = 0
        self.connections: list[Connection] = []
        """Every connection so far, in the order of coming."""
        for name, value in faults.items():
            setattr(self, name, value)
        self._target, self._seed, self._hosts = (target, port), seed, tuple(hosts)
        self._loop = asyncio.new_event_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._listeners: list[socket.socket] = []
        self.port = 0
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._do(self._listen())

    @property
    def up(self) -> int:
        """Bytes that went from the devices' side, in all."""
        return sum(connection.up for connection in self.connections)

    @property
    def down(self) -> int:
        """Bytes that went to the devices' side, in all."""
        return sum(connection.down for connection in self.connections)

    @property
    def open(self) -> list[Connection]:
        """The connections that are open."""
        return [connection for connection in self.connections if connection.open]

    def cut(self) -> None:
        """Reset every connection."""
        self._do(self._cut())

    def close(self) -> None:
        """Reset everything, and listen no more."""
        self._do(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)
        self._loop.close()

    # -- in the loop's thread ---------------------------------------------------------------

    def _do(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(10)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _listen(self) -> None:
        for host in self._hosts:
            listener = _socket(host)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((host, self.port))
            listener.listen(256)
            self.port = int(listener.getsockname()[1])
            self._listeners.append(listener)
            self._spawn(self._accept(listener))

    async def _accept(self, listener: socket.socket) -> None:
        while True:
            near, _ = await self._loop.sock_accept(listener)
            if self.refuse:
                near.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                near.close()
                continue
            far = _socket(self._target[0])
            try:
                await self._loop.sock_connect(far, self._target)
            except OSError:
                near.close()
                far.close()
                continue
            connection = Connection(near, far)
            connection.last = self._loop.time()
            self.connections.append(connection)
            connection.task = self._spawn(self._carry(connection, len(self.connections)))

    async def _carry(self, connection: Connection, number: int) -> None:
        """Forward both ways until an end closes, or the line does."""
        ways = [
            self._way(connection, True, self._drawn(number, "up")),
            self._way(connection, False, self._drawn(number, "down")),
            self._idles(connection),
        ]
        tasks = [self._loop.create_task(way) for way in ways]
        reset = False
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            while self.swallow:  # nobody hears of an end
                await asyncio.sleep(0.05)
        except asyncio.CancelledError:
            reset = True
            raise
        finally:
            for task in tasks:
                task.cancel()
            try:  # who cuts twice cancels this too
                await asyncio.gather(*tasks, return_exceptions=True)
            finally:
                connection.close(reset=reset)

    async def _way(self, connection: Connection, up: bool, rng: random.Random) -> None:
        """Forward one direction until its source ends and everything has arrived."""
        source, sink = connection.near, connection.far
        if not up:
            source, sink = sink, source
        line: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(IN_FLIGHT)
        arriving = self._loop.create_task(self._arrive(line, sink))
        try:
            due = 0.0
            while data := await self._loop.sock_recv(source, self._most()):
                if math.isfinite(self.rate):
                    await asyncio.sleep(len(data) / self.rate)
                connection.last = self._loop.time()
                self._count(connection, up, len(data))
                while (self.up >= self.up_to) if up else (self.down >= self.down_to):
                    await asyncio.sleep(0.01)
                if not self.swallow:
                    delay = self.latency + self.jitter * rng.random()
                    due = max(due, connection.last + delay)
                    await line.put((due, data))
                    if not delay:  # nothing waits in here but what the line itself delays
                        await line.join()
            await line.join()
        except OSError:
            return
        finally:
            arriving.cancel()
            await asyncio.gather(arriving, return_exceptions=True)

    def _drawn(self, number: int, way: str) -> random.Random:
        return random.Random(f"{self._seed} {number} {way}")  # noqa: S311 - not a secret

    def _most(self) -> int:
        """Return how much may be read at a time: a tenth of a second of a slow line."""
        return max(1, min(CHUNK, int(min(self.rate, 1e9) / 10)))

    async def _arrive(self, line: asyncio.Queue[tuple[float, bytes]], sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                due, data = await line.get()
                if due > self._loop.time():
                    await asyncio.sleep(due - self._loop.time())
                if not self.swallow:
                    await self._loop.sock_sendall(sink, data)
                line.task_done()

    async def _idles(self, connection: Connection) -> None:
        """Return when nothing has passed for too long."""
        while self._loop.time() < connection.last + self.idle:
            await asyncio.sleep(0.02)

    def _count(self, connection: Connection, up: bool, count: int) -> None:
        if not up:
            connection.down += count
            return
        connection.up += count
        if self.up >= self.cut_at:
            self.cut_at = math.inf
            self.cuts += 1
            self._spawn(self._cut())

    async def _cut(self) -> None:
        carried = [connection.task for connection in self.open if connection.task is not None]
        for task in carried:
            task.cancel()
        await asyncio.gather(*carried, return_exceptions=True)

    async def _end(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for listener in self._listeners:
            listener.close()


def _socket(host: str) -> socket.socket:
    """Return a socket for addresses of this form, with small buffers."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    found = socket.socket(family, socket.SOCK_STREAM)
    found.setblocking(False)
    found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER)
    return found
