"""Ranks that are killed at any moment, and the end of a supervisor that is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import psutil  # type: ignore[import-untyped]
import pytest

from umbel.server.core.ranked_world import RankedWorld
from umbel.server.core.segments import Shelf
from umbel.server.core.world import World
from umbel.tests.ranked import Lines

OWNER = """
import sys, pathlib, time
from umbel.server.core.ranked_world import RankedWorld
from umbel.server.core.segments import Shelf
say = lambda kind, line: None
home = pathlib.Path(sys.argv[1])
world = RankedWorld(1, 2, Shelf(home, say, home), say)
total = world.open(4096 + 40, 4096)
print(*world.supervisor.pids, flush=True)
sys.stdin.read()
"""


@pytest.mark.slow
def test_no_rank_and_no_memory_outlives_a_killed_supervisor(tmp_path: Path) -> None:
    command = [sys.executable, "-c", OWNER, str(tmp_path)]
    owner = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    with owner:
        ranks = [psutil.Process(int(pid)) for pid in owner.stdout.readline().split()]
        assert len(ranks) == 1
        assert len(list(tmp_path.iterdir())) == 2
        os.kill(ranks[0].pid, signal.SIGINT)  # Ctrl-C reaches the ranks too, and is not theirs
        os.kill(owner.pid, signal.SIGKILL)
    gone, alive = psutil.wait_procs(ranks, timeout=20)
    assert len(gone) == 1
    assert not alive
    lines = Lines()
    Shelf(tmp_path, lines.say, tmp_path)
    assert lines == [f"{tmp_path}: removed 2 files of processes that have died"]
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_twenty_kills_at_any_moment(tmp_path: Path) -> None:
    """Kills at random moments of folds and unmasking: bits, pids, descriptors, mappings."""
    rng = np.random.default_rng(5)
    size, split = 64 * 120_000 + 40, 64 * 120_000
    messages = [rng.bytes(size) for _ in range(16)]
    streams = [(rng.bytes(32), 1) for _ in range(24)]
    lines = Lines()
    world = RankedWorld(3, 4, Shelf(tmp_path, lines.say, tmp_path), lines.say)

    def summed(into: World | RankedWorld) -> tuple[bytes, float]:
        began, total = time.monotonic(), into.open(size, split)
        for index, message in enumerate(messages):
            slot = total.slot(str(index))
            assert slot is not None
            slot[:] = message
            total.fold(str(index))
        total.unmask(streams)
        result = bytes(total.result())
        total.close()
        return result, time.monotonic() - began

    expected, _ = summed(World(4))
    summed(world)
    _, takes = summed(world)
    open_files, maps = _vitals()
    for _ in range(20):
        before, victim = world.supervisor.pids, int(rng.integers(3))
        moment = float(rng.uniform(0, takes))
        killer = threading.Timer(moment, os.kill, (before[victim], signal.SIGKILL))
        killer.start()
        assert summed(world)[0] == expected
        killer.join()
        assert summed(world)[0] == expected
        after = world.supervisor.pids
        assert [a == b for a, b in zip(before, after, strict=True)].count(False) == 1
        assert after[victim] != before[victim]
    assert _vitals() == (open_files, maps)
    assert len(lines) == 20
    world.close()


def _vitals() -> tuple[int, int]:
    maps = Path("/proc/self/maps").read_text("utf-8")
    return len(os.listdir("/proc/self/fd")), maps.count("/umbel-")
