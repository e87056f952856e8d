"""A proxy that ends no TLS and chooses by the name in the handshake (SNI, RFC 6066, section 3).

It does what nginx's `ssl_preread` does: reads the first record of a connection, finds the name in
it, and carries bytes both ways from then on. A name that it does not know, or none: closed.
"""

from __future__ import annotations

import asyncio
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_HANDSHAKE, _CLIENT_HELLO, _SERVER_NAME, _HOST_NAME = 22, 1, 0, 0


def server_name(record: bytes) -> str | None:
    """Return the name that a ClientHello (RFC 8446, section 4.1.2) asks for; None for none."""
    if record[0] != _HANDSHAKE or record[5] != _CLIENT_HELLO:
        return None
    at = 5 + 4 + 2 + 32  # headers, version, random
    at += 1 + record[at]  # session id
    at += 2 + int.from_bytes(record[at : at + 2], "big")  # cipher suites
    at += 1 + record[at]  # compression
    end = at + 2 + int.from_bytes(record[at : at + 2], "big")
    at += 2
    while at < end:
        kind, size = (int.from_bytes(record[at + i : at + i + 2], "big") for i in (0, 2))
        if kind == _SERVER_NAME:
            assert record[at + 6] == _HOST_NAME
            length = int.from_bytes(record[at + 7 : at + 9], "big")
            return record[at + 9 : at + 9 + length].decode("ascii")
        at += 4 + size
    return None


class SniProxy:
    """The proxy, its loop in a thread."""

    def __init__(self, behind: Mapping[str, int]) -> None:
        """Carry a connection for a name to its port on loopback."""
        self._behind, self.asked = dict(behind), list[str | None]()
        self._loop = asyncio.new_event_loop()
        self._server = self._loop.run_until_complete(
            asyncio.start_server(self._carry, "127.0.0.1", 0)
        )
        self.port = int(self._server.sockets[0].getsockname()[1])
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there = None
        with suppress(OSError, asyncio.IncompleteReadError):
            head = await reader.readexactly(5)
            record = head + await reader.readexactly(int.from_bytes(head[3:5], "big"))
            self.asked.append(server_name(record))
            port = self._behind.get(self.asked[-1] or "")
            if port is not None:
                back, there = await asyncio.open_connection("127.0.0.1", port)
                there.write(record)
                await asyncio.gather(_pump(reader, there), _pump(back, writer))
        for end in filter(None, (writer, there)):
            end.close()

    def close(self) -> None:
        """End it, with what it carries."""

        async def over() -> None:
            self._server.close()
            left = asyncio.all_tasks() - {asyncio.current_task()}
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)
            await asyncio.sleep(0.02)

        asyncio.run_coroutine_threadsafe(over(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Carry bytes one way, to their end."""
    try:
        while piece := await reader.read(1 << 16):
            writer.write(piece)
            await writer.drain()
    except OSError:
        pass
    finally:
        with suppress(OSError):
            writer.close()


@contextmanager
def routed(behind: Mapping[str, int]) -> Iterator[SniProxy]:
    """Give a running proxy."""
    proxy = SniProxy(behind)
    try:
        yield proxy
    finally:
        proxy.close()
