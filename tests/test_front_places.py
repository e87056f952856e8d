"""Who gives way at the front when there is no room: the address that has most, and nobody else."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from typing import TYPE_CHECKING

from umbel.server import front_places
from umbel.server.front_body import SMALL, Terms, Turned
from umbel.server.front_places import AT_ONCE, MOST, Places, network
from umbel.tests.front_stage import PULL, post, response, rest, staged, status

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    import pytest


MINE, OTHER, THIRD = "127.0.0.1", "127.0.0.2", "127.0.0.3"


class Asked:
    """Requests that hold their places until a test lets them go."""

    def __init__(self, places: Places) -> None:
        self._places, self.over = places, asyncio.Event()
        self.ends: list[tuple[str, str]] = []
        """Address and end of each that is over, in their order."""
        self.tasks: list[asyncio.Task[None]] = []

    async def one(self, address: str, size: int = 0, *, moves: bool = True) -> None:
        """Let a request take a place."""
        self.tasks.append(asyncio.create_task(self._hold(address, size, moves)))
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    async def _hold(self, address: str, size: int, moves: bool) -> None:
        try:
            async with self._places.one(address) as place:
                place.hold(size)
                if not moves:
                    place.waits()
                await self.over.wait()
        except Turned as turned:
            self.ends.append((address, str(turned)))
        else:
            self.ends.append((address, "answered"))


def played(play: Callable[[Asked], Awaitable[None]], **terms: int) -> list[tuple[str, str]]:
    """Play, let everybody who is left go, and return the ends."""

    async def main() -> list[tuple[str, str]]:
        terms_of = {"room": 100, "lasts": 60, "most": 4} | terms
        places = Places(**terms_of)
        asked = Asked(places)
        await play(asked)
        asked.over.set()
        await asyncio.gather(*asked.tasks)
        assert places.held == 0
        async with places.one(MINE):  # and its place is free again
            pass
        return asked.ends

    return asyncio.run(main())


def test_the_address_with_most_places_gives_its_oldest_to_one_that_has_fewer() -> None:
    async def play(asked: Asked) -> None:
        for _ in range(4):
            await asked.one(MINE)
        for address in (OTHER, THIRD, OTHER):
            await asked.one(address)
            await asyncio.sleep(0.01)

    ends = played(play)
    gave_way = [address for address, end in ends if end == "others wait; try again"]
    assert gave_way == [MINE, MINE]  # two and one and one: then nobody has two more than another
    assert [end for _, end in ends].count("answered") == 5


def test_one_address_alone_may_have_everything_and_waits_for_more() -> None:
    async def play(asked: Asked) -> None:
        for _ in range(6):
            await asked.one(MINE)

    assert played(play) == [(MINE, "answered")] * 6


def test_what_the_superlink_works_at_is_not_ended() -> None:
    async def play(asked: Asked) -> None:
        for _ in range(4):
            await asked.one(MINE, moves=False)
        await asked.one(OTHER)

    assert played(play) == [(MINE, "answered")] * 4 + [(OTHER, "answered")]


def test_a_place_that_is_free_goes_to_whoever_has_fewest(monkeypatch: pytest.MonkeyPatch) -> None:
    entered = []

    async def main() -> None:
        places = Places(100, 60, most=2)
        gates = [asyncio.Event() for _ in range(2)]

        async def hold(address: str, gate: asyncio.Event) -> None:
            async with places.one(address) as place:
                place.waits()
                entered.append(address)
                await gate.wait()

        tasks = []
        for address, gate in ((MINE, 0), (MINE, 1), (MINE, 0), (MINE, 0), (OTHER, 0)):
            tasks.append(asyncio.create_task(hold(address, gates[gate])))
            await asyncio.sleep(0)
        gates[0].set()
        await asyncio.sleep(0.05)
        gates[1].set()
        await asyncio.gather(*tasks)

    asyncio.run(main())
    assert entered == [MINE, MINE, OTHER, MINE, MINE]
    monkeypatch.setattr(front_places, "SLOT_S", 0.05)

    async def in_vain(asked: Asked) -> None:
        for _ in range(3):
            await asked.one(MINE)
        while not asked.ends:
            await asyncio.sleep(0.01)

    ends = played(in_vain, most=2)
    assert ends[0] == (MINE, "too many requests at once; try again")


def test_the_address_with_most_bytes_gives_way() -> None:
    async def play(asked: Asked) -> None:
        await asked.one(MINE, 50)
        await asked.one(MINE, 40)
        await asked.one(OTHER, 60)
        await asyncio.sleep(0.01)
        await asked.one(OTHER, 50)  # now nobody has more than he would

    assert sorted(played(play)) == [
        (MINE, "answered"), (MINE, "others wait; try again"),
        (OTHER, "answered"), (OTHER, "too many large requests at once; try again"),
    ]  # fmt: skip


def test_whoever_has_a_network_of_ipv6_is_one() -> None:
    assert network("2001:db8::1") == network("2001:db8::ffff:1") == "2001:db8::/64"
    assert network("2001:db8:0:1::1") != network("2001:db8::1")
    assert network("::ffff:10.0.0.7") == network("10.0.0.7") == "10.0.0.7"
    assert network("10.0.0.8") != network("10.0.0.7")
    assert network("fe80::1%eth0") == "fe80::/64"
    assert network("somebody") == "somebody"


# ---- through the front -------------------------------------------------------------------------


def test_slow_bodies_from_one_address_keep_nobody_else_out(tmp_path: Path) -> None:
    """More large bodies than there are places, none of which ever ends."""
    large = post(PULL, bytes(SMALL + 1), f"Content-Length: {2 * SMALL}")
    with staged(tmp_path / "f", most=MOST + 20) as stage, ExitStack() as lines:
        slow = [lines.enter_context(stage.connect(source=OTHER)) for _ in range(MOST + 10)]
        for line in slow:
            line.sendall(large)
        stage.until(lambda: len(stage.superlink.seen) == MOST, "all places taken")
        with stage.connect() as mine:
            mine.sendall(post(PULL, bytes(SMALL + 1)))
            assert status(response(mine)) == 200
        stage.until(lambda: "503 to 127.0.0.2: others wait; try again" in stage.log, "its line")


def test_small_bodies_that_come_slowly_take_no_place(tmp_path: Path) -> None:
    with staged(tmp_path / "f") as stage, ExitStack() as lines:
        for _ in range(AT_ONCE):
            line = lines.enter_context(stage.connect())
            line.sendall(post(PULL, b"half", "Content-Length: 8"))
        assert stage.status(post(PULL, b"whole")) == 200
        assert [seen.body for seen in stage.superlink.seen] == [b"whole"]


def test_a_request_ends_when_its_time_is_over_however_it_moves(tmp_path: Path) -> None:
    terms = Terms(stall=30.0, rate=1, lasts=0.4)
    with staged(tmp_path / "f", terms) as stage:
        for begun in (b"", bytes(SMALL)):  # before it takes a place, and after that
            with stage.connect() as line:
                line.sendall(post(PULL, begun, f"Content-Length: {SMALL + 4000}"))
                line.settimeout(0.02)
                found = b""
                for _ in range(500):
                    try:
                        line.sendall(b"x")
                        found = line.recv(1000)
                        break
                    except TimeoutError:
                        pass
                assert status(found) == 408
        stage.do(stage.superlink.answers.clear)  # an answer's time is the same
        assert stage.status(post()) == 408
        stage.until(lambda: stage.front.places.held == 0, "the front to let go")


def test_one_connection_too_many_costs_whoever_has_most_one(tmp_path: Path) -> None:
    with staged(tmp_path / "f", most=4) as stage, ExitStack() as lines:
        held = [lines.enter_context(stage.connect(source=OTHER)) for _ in range(4)]
        stage.do(stage.superlink.answers.clear)
        held[0].sendall(post())  # the longest there, and busy
        stage.until(lambda: stage.superlink.seen, "its request")
        with stage.connect() as mine:
            assert rest(held[1]) == b""
            stage.do(stage.superlink.answers.set)
            mine.sendall(post())
            assert status(response(mine)) == 200
        assert status(response(held[0])) == 200
