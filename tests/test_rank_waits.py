"""Who does not wait for ranks: whoever submits jobs, discards an upload, or closes a sum."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from umbel.protocol.errors import StateError
from umbel.server.core.ranked_world import RankedWorld
from umbel.server.core.segments import Segment, Shelf
from umbel.server.core.supervisor import Job
from umbel.tests.ranked import SIZE, Lines, fill, opened

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RankedWorld]:
    home, lines = tmp_path_factory.mktemp("home"), Lines()
    found = RankedWorld(1, 4, Shelf(home, lines.say, home), lines.say)
    yield found
    found.close()
    assert not list(home.iterdir())


def test_nobody_waits_for_ranks_that_zero_slots(world: RankedWorld) -> None:
    """They may have another sum in hand; and who closes the sum meanwhile gives nothing away."""
    total, free, victim = opened(world), threading.Event(), world.supervisor.pids[-1]
    for node in ("folded", "open"):
        fill(total, node, b"\5" * SIZE)
    world.freed = free.set
    total.fold("folded")
    assert free.wait(30)
    world.freed = None
    os.kill(victim, signal.SIGSTOP)
    said = list[str]()

    def read() -> None:
        with pytest.raises(StateError, match="one that was closed"):
            total.numbers()
        said.append("refused")

    reading = threading.Thread(target=read)
    reading.start()
    last = world.supervisor._links[-1]
    while not last.sent:
        time.sleep(0.01)
    for work in (lambda: total.discard("open"), total.close):
        beside = threading.Thread(target=work, daemon=True)
        beside.start()
        beside.join(10)
        assert not beside.is_alive()
    other = opened(world)
    assert other.about.ring != total.about.ring
    ring = Segment.attach(Path(total.about.ring), total.about.ring_bytes, write=False)
    os.kill(victim, signal.SIGCONT)
    reading.join()
    assert said == ["refused"]
    assert not np.any(ring.array("u1"))
    fill(other, "a", b"\7" * SIZE)
    other.fold("a")
    assert bytes(other.result()) == b"\7" * SIZE
    other.close()


def test_jobs_by_the_hundred_wait_for_nobody(world: RankedWorld) -> None:
    """A wake-up is a byte, and the pipe of bytes is full at 278: nobody waits there with a lock."""
    go_on, ranks, done = threading.Event(), world.supervisor, list[Job]()

    def hold(job: Job) -> None:
        done.append(job)
        go_on.wait(60)

    head = {"op": "leaves", "path": "/nowhere", "nbytes": 64, "total": 64}
    jobs = [Job(world.ranks, head, done=hold), *(Job(world.ranks, head) for _ in range(400))]
    ranks.submit(jobs[0])
    while not done:
        time.sleep(0.01)
    giving = threading.Thread(target=lambda: [ranks.submit(job) for job in jobs[1:]], daemon=True)
    giving.start()
    giving.join(10)
    assert not giving.is_alive()
    go_on.set()
    for job in jobs:
        with pytest.raises(StateError, match="no link"):
            job.wait()
