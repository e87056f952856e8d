"""What is left of a ServerApp in the core: nothing that its successor hears, no memory."""

from __future__ import annotations

import asyncio
import re
import threading
from typing import TYPE_CHECKING

from umbel.protocol.codec import Codec
from umbel.protocol.errors import StateError
from umbel.protocol.layout import MessageLayout
from umbel.server.core.kept import Keeping
from umbel.server.core.run_model import Own
from umbel.server.core.world import Sum, World
from umbel.server.stepping import StepOrder
from umbel.strategies.robust_rules import Robust
from umbel.strategies.server_rules import FedAvg
from umbel.tests.core_house import House
from umbel.tests.wire_federation import RUN, bare

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

CTX = bytes(range(32))
MODEL = bytes(64)


def test_no_answer_to_a_predecessor_reaches_the_successor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A command that works in a thread ends after the run was taken over."""
    asked, may_end, closed = (threading.Event() for _ in range(3))

    class Slow(Sum):
        def check(self, _bound: int) -> None:
            asked.set()
            may_end.wait(10)
            raise StateError("core.ranks", "ranks that live", "none")

        def close(self) -> None:
            closed.set()

    async def scene() -> None:
        async with House(tmp_path) as house, house.app() as app:
            await app.open()
            opened = Slow(World(1), 64, memoryview(bytearray(640)), [])
            monkeypatch.setattr(house.there.core.world, "open", lambda *_: opened)
            await app.do("sum", ctx=CTX.hex(), total=640, split=64, stall=5, plain=None)
            await app.do("read", bound=1)
            assert await asyncio.to_thread(asked.wait, 10)
            async with house.app() as successor:
                await successor.open()
                may_end.set()
                assert await asyncio.to_thread(closed.wait, 10)
                await successor.do("tickets", nodes=[], seconds=1)
                ops = [(await successor.event())[0]["op"] for _ in range(2)]
                assert ops == ["trust", "tickets"]

    asyncio.run(scene())


def test_a_predecessors_model_does_not_come_after_the_successors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, may_end, closed = (threading.Event() for _ in range(3))

    class Seen(Own):
        def close(self) -> None:
            super().close()
            closed.set()

    def slow(size: int, kind: str) -> Seen:
        if not asked.is_set():
            asked.set()
            may_end.wait(10)
        return Seen(size, kind)

    async def scene() -> None:
        async with House(tmp_path) as house, house.app() as app:
            await app.open()
            core = house.there.core
            monkeypatch.setattr(core.world, "make", slow)
            await app.put(MODEL, b"\x01" * 32)
            assert await asyncio.to_thread(asked.wait, 10)
            async with house.app() as successor:
                await successor.open()
                await successor.put(MODEL, b"\x02" * 32)
                await successor.do("tickets", nodes=[], seconds=1)
                await successor.wait("tickets")
                may_end.set()
                assert await asyncio.to_thread(closed.wait, 10), "one of the two is given up"
                model = core.served[RUN].model
                assert model is not None
                assert model.digest == b"\x02" * 32

    asyncio.run(scene())


def test_a_robust_step_is_refused_over_a_sum_that_was_not_kept_for_it(tmp_path: Path) -> None:
    """The mean of masked updates must never pass for what a robust rule makes."""
    layout = MessageLayout(bare(MODEL), {}, "train")
    order = StepOrder(FedAvg(robust=Robust(rule="median")), 1, layout, Codec(5, 0.5, 40), 3, 7)

    async def scene() -> None:
        async with House(tmp_path) as house, house.app() as app:
            await app.open()
            await app.put(MODEL, b"\x01" * 32)
            await app.do("sum", ctx=CTX.hex(), total=64, split=0, stall=5, plain=None)
            await app.do("step", **order.described())
            fields, _ = await app.wait("error")
            assert re.search(r"step\.rule: expected the robust rule of the open sum", fields["why"])

    asyncio.run(scene())


def test_a_run_that_is_over_leaves_no_memory_for_its_next_sum(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows of a robust rule are a message a client, and this service outlives the run."""
    held: set[Own] = set()

    class Seen(Own):
        def __init__(self, nbytes: int, kind: str) -> None:
            super().__init__(nbytes, kind)
            held.add(self)

        def close(self) -> None:
            super().close()
            held.remove(self)

    async def scene() -> None:
        async with House(tmp_path) as house, house.app() as app:
            await app.open()
            world = World(2, Seen)
            monkeypatch.setattr(house.there.core, "world", world)
            keeping = Keeping(Robust(rule="median"), Codec(5, 0.5, 40))
            world.open(128, 64, keeping).close()
            assert len(held) == 2, "kept for the next sum"
            await app.do("goodbye")
            assert await app.ended()
            assert not held

    asyncio.run(scene())
