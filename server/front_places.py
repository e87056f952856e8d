"""The places at the SuperLink, and who has to give one up when others wait for it.

    a place      one request at the SuperLink, until its answer has gone; `MOST` at once
    its bytes    what of its body is at the SuperLink, which reads each whole; `AT_ONCE` bodies

Who asks is not known before the SuperLink has answered, but from which address he does it is. One
address may take every place while nobody else wants one, as a proxy or a site behind one address
must. When places or bytes run out, the address that has most of them gives way to one that has
less: of its requests that still move, the one that began first ends, and may be tried again. So
slow requests from few addresses, however many, keep nobody out. Against many addresses there is
the time that each request may last, and what stands before the front.
"""

from __future__ import annotations

import asyncio
import functools
import ipaddress
from collections import Counter
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from .front_body import Turned

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

MOST = 100
"""Requests at the SuperLink at once."""
AT_ONCE = 8
"""So many of the largest bodies may be at the SuperLink at once, which reads each whole."""
SLOT_S = 10.0
"""Seconds that a request waits for a place."""
_SITE = 64
"""Bits of an IPv6 address that tell one network from another: whoever has one has all of it."""


class Place:
    """One request that is at the SuperLink."""

    def __init__(self, places: Places, address: str, limit: asyncio.Timeout) -> None:
        """Begin with nothing of its body."""
        self._places, self.address, self._limit = places, address, limit
        self.bytes = 0
        self.moves = True
        """Whether whoever asked sends or takes; else the SuperLink is at work."""
        self.evicted = False

    def hold(self, count: int) -> None:
        """Note that so many bytes of its body went on.

        Raises:
            Turned: There is no room for them, and nobody has more.
        """
        self.bytes += count
        self._places.held += count
        self._places.make_room_for(self)

    def waits(self) -> None:
        """Note that its body is whole."""
        self.moves = False

    def answered(self) -> None:
        """Note that its answer begins; its body is at the SuperLink no more."""
        self.moves = True
        self._places.held -= self.bytes
        self.bytes = 0

    def evict(self) -> None:
        """End it, as somebody else needs what it has."""
        self.evicted, self.moves = True, False
        self._limit.reschedule(asyncio.get_running_loop().time())


class Places:
    """Every place, taken or free."""

    def __init__(self, room: int, lasts: float, most: int = MOST) -> None:
        """Let `most` requests at once hold `room` bytes, each for `lasts` seconds."""
        self._room, self._lasts, self._most = room, lasts, most
        self._count = 0
        self._taken: dict[Place, None] = {}
        self._waiting: dict[asyncio.Future[None], str] = {}
        self.held = 0
        """Bytes of bodies that are at the SuperLink."""

    @asynccontextmanager
    async def one(self, host: str) -> AsyncIterator[Place]:
        """Give a place to a request from an address.

        Raises:
            Turned: There was none, it lasted too long, or it gave way.
        """
        address, place = network(host), None
        await self._enter(address)
        try:
            async with asyncio.timeout(self._lasts) as limit:
                place = Place(self, address, limit)
                self._taken[place] = None
                yield place
        except TimeoutError as error:
            if not limit.expired():
                raise
            if place is not None and place.evicted:
                raise Turned(503, "others wait; try again", "busy") from error
            raise Turned(408, "it takes too long", "slow") from error
        finally:
            if place is not None:
                self.held -= place.bytes
                del self._taken[place]
            self._leave()

    async def _enter(self, address: str) -> None:
        """Wait for a place."""
        if self._count < self._most:
            self._count += 1
            return
        taken = self._shares(lambda _place: 1)
        self._give_way(taken, taken[address] + 1)
        turn = asyncio.get_running_loop().create_future()
        self._waiting[turn] = address
        try:
            async with asyncio.timeout(SLOT_S):
                await turn
        except BaseException as error:
            if turn.done() and not turn.cancelled():
                self._leave()  # it came as he left
            if isinstance(error, TimeoutError):
                raise Turned(503, "too many requests at once; try again", "busy") from error
            raise
        finally:
            self._waiting.pop(turn, None)

    def _leave(self) -> None:
        """Hand a place on, to whoever waits and has fewest."""
        if not self._waiting:
            self._count -= 1
            return
        taken = self._shares(lambda _place: 1)
        turn = min(self._waiting, key=lambda turn: taken[self._waiting[turn]])
        del self._waiting[turn]
        turn.set_result(None)

    def make_room_for(self, place: Place) -> None:
        """End a request of somebody who has more at the SuperLink, if there is too much of it.

        Raises:
            Turned: Nobody has more.
        """
        share = self._shares(lambda other: other.bytes)
        if share.total() > self._room and not self._give_way(share, share[place.address]):
            raise Turned(503, "too many large requests at once; try again", "busy")

    def _shares(self, of: Callable[[Place], int]) -> Counter[str]:
        found = Counter[str]()
        for place in self._taken:
            if not place.evicted:
                found[place.address] += of(place)
        return found

    def _give_way(self, share: Counter[str], least: int) -> bool:
        """End a request of the address that has most, if that is more than `least`."""
        for address, has in share.most_common():
            if has <= least:
                break
            for place in self._taken:  # in the order in which they began
                if place.address == address and place.moves:
                    place.evict()
                    return True
        return False


@functools.lru_cache(4096)
def network(host: str) -> str:
    """Return the network of an address: itself, or of an IPv6 address its first half."""
    try:
        found = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(found, ipaddress.IPv4Address):
        return host
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(ipaddress.ip_network((found, _SITE), strict=False))
