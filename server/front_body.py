"""Bodies on their way through the front: how large, how slow, and for how long they may be.

A body is cut off where it is too large, rests too long, trickles, or has lasted for `LASTS_S`: who
sends it is not known before the SuperLink has seen its signature. What is small is read whole
before it takes one of the places at the SuperLink (front_places.py): so a small body that comes
slowly holds nothing but its own connection.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.types import Message, Receive, Scope

    from .front_places import Place

MIB = 1 << 20
LARGEST = 64 * MIB
"""Bytes of a body, either way. Flower cuts arrays into pieces of 5 MiB, a bundle has 10 MB."""
SMALL = 1 << 16
"""Bytes of a body that are read before it takes a place."""
STALL_S = 30.0
"""Seconds in which no byte of a body comes or goes; then it is given up."""
RATE = 4096
"""Bytes a second that a body must keep to, once it has lasted for longer than that."""
LASTS_S = 900.0
"""Seconds that a request may last in all, its body and its answer: 5 MiB at 6 KiB a second."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Terms:
    """What a body may be."""

    largest: int = LARGEST
    stall: float = STALL_S
    rate: float = RATE
    lasts: float = LASTS_S


class Turned(Exception):
    """A request that does not go on: the answer, and the kind of the line about it."""

    def __init__(self, status: int, line: str, kind: str) -> None:
        super().__init__(line)
        self.status, self.line, self.kind = status, line, kind


class Gone(Exception):
    """Whoever asked is no longer there."""


class Body:
    """A request's body: pieces as they come, counted and timed."""

    def __init__(self, terms: Terms, scope: Scope, receive: Receive) -> None:
        """Take nothing of it yet."""
        self._terms, self._receive, self._pace = terms, receive, Pace(terms)
        lengths = [value for name, value in scope["headers"] if name == b"content-length"]
        self._length = int(lengths[0]) if lengths else 0
        chunked = any(name == b"transfer-encoding" for name, _ in scope["headers"])
        self.whole = not self._length and not chunked
        """Whether nothing of it is still to come."""
        self._count = 0
        self._first: list[bytes] = []

    async def begin(self) -> None:
        """Read what is small, or the beginning of what is not.

        Raises:
            Turned: It is too large or too slow.
        """
        while not self.whole and self._count < min(SMALL, self._terms.largest):
            self._first.append(await self._next())

    async def read(self, most: int) -> bytes:
        """Return the whole of it.

        Raises:
            Turned: It has more than `most` bytes, or is too slow.
        """
        while not self.whole:
            if max(self._length, self._count) > most:
                raise Turned(413, f"a body above {most} bytes", "large")
            self._first.append(await self._next())
        if self._count > most:
            raise Turned(413, f"a body above {most} bytes", "large")
        return b"".join(self._first)

    async def pieces(self, place: Place) -> AsyncIterator[bytes]:
        """Yield its pieces, which `place` is told of."""
        for piece in self._first:
            place.hold(len(piece))
            yield piece
        while not self.whole:
            piece = await self._next()
            place.hold(len(piece))
            if piece:
                yield piece
        place.waits()

    async def skip(self) -> None:
        """Take the rest of it from whoever sends it, so that he hears why it went nowhere."""
        with suppress(Turned):
            while not self.whole:
                await self._next()

    async def _next(self) -> bytes:
        most = self._terms.largest
        if max(self._length, self._count) > most:
            raise Turned(413, f"a body above {most} bytes", "large")
        try:
            async with asyncio.timeout_at(self._pace.until()):
                message: Message = await self._receive()
        except TimeoutError as error:
            raise Turned(408, "its body comes too slowly", "slow") from error
        if message["type"] == "http.disconnect":
            raise Gone
        piece: bytes = message.get("body", b"")
        self._pace.moved(len(piece))
        self._count += len(piece)
        if self._count > most:
            raise Turned(413, f"a body above {most} bytes", "large")
        self.whole = not message.get("more_body", False)
        return piece


class Pace:
    """Until when the next bytes of a body must have moved."""

    def __init__(self, terms: Terms) -> None:
        """Begin now."""
        self._terms, self._clock = terms, asyncio.get_running_loop().time
        self._began = self._last = self._clock()
        self._bytes = 0

    def moved(self, count: int) -> None:
        """Note that so many bytes have moved."""
        self._bytes += count
        self._last = self._clock()

    def until(self) -> float:
        """Return the loop's time at which it is over."""
        lasting = self._began + self._bytes / self._terms.rate
        moving = min(self._last, lasting) + self._terms.stall
        return min(moving, self._began + self._terms.lasts)
