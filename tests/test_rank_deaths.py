"""Ranks that are killed at any moment, and the end of a supervisor that is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import psutil  # type: ignore[import-untyped]
import pytest

from umbel.protocol.codec import Codec
from umbel.protocol.digest import model_digest
from umbel.protocol.layout import MessageLayout
from umbel.protocol.manifest import Manifest
from umbel.server.core.ranked_world import RankedWorld
from umbel.server.core.run_model import RunModel
from umbel.server.core.segments import Shelf
from umbel.server.core.world import World
from umbel.server.stepping import StepOrder
from umbel.strategies.server_rules import FedAdam
from umbel.tests.ranked import Lines

if TYPE_CHECKING:
    from umbel.server.core.worlds import AnyWorld

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


MODEL = {"w": np.linspace(-1, 1, 120_000 * 16, dtype=np.float32)}
MANIFEST = Manifest.of(MODEL)
LAYOUT = MessageLayout(MANIFEST, {}, "train")
ORDER = StepOrder(FedAdam(), 1, LAYOUT, Codec(16, 0.5, 40), 16, 60)


def rounds(into: AnyWorld) -> tuple[bytes, bytes]:
    """Form one sum of sixteen, take masks off and make a step; return sum and digest."""
    rng = np.random.default_rng(5)
    total = into.open(LAYOUT.total_bytes, LAYOUT.split)
    for index in range(16):
        slot = total.slot(str(index))
        assert slot is not None
        slot[:] = rng.bytes(LAYOUT.total_bytes)
        total.fold(str(index))
    total.unmask([(rng.bytes(32), 1) for _ in range(24)])
    packed = MANIFEST.pack(MODEL)
    model = RunModel(MANIFEST, model_digest(packed), packed, into.make)
    found = bytes(total.result()), total.step(model, ORDER)
    model.close()
    total.close()
    return found


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_twenty_kills_at_any_moment(tmp_path: Path) -> None:
    """Kills at random moments of folds, unmasking and step: bits, pids, memory, descriptors."""
    rng, lines = np.random.default_rng(6), Lines()
    world = RankedWorld(3, 4, Shelf(tmp_path, lines.say, tmp_path), lines.say)
    expected = rounds(World(4))
    assert rounds(world) == expected
    began = time.monotonic()
    assert rounds(world) == expected
    takes, before_all = time.monotonic() - began, _vitals()
    for _ in range(20):
        before, victim = world.supervisor.pids, int(rng.integers(3))
        moment = float(rng.uniform(0, takes))
        killer = threading.Timer(moment, os.kill, (before[victim], signal.SIGKILL))
        killer.start()
        assert rounds(world) == expected
        killer.join()
        assert rounds(world) == expected
        after = world.supervisor.pids
        assert [a == b for a, b in zip(before, after, strict=True)].count(False) == 1
        assert after[victim] != before[victim]
    assert _vitals()[:2] == before_all[:2]
    # A message lost at each kill would be twenty; the heap may keep one or two between rounds.
    assert _vitals()[2] < before_all[2] + 4 * LAYOUT.total_bytes
    assert len(lines) == 20
    world.close()
    assert not list(tmp_path.iterdir())


def _vitals() -> tuple[int, int, int]:
    maps = Path("/proc/self/maps").read_text("utf-8")
    own = psutil.Process().memory_full_info().uss
    return len(os.listdir("/proc/self/fd")), maps.count("/umbel-"), own
