"""Worlds of ranks: the bits of the world of one, whoever is killed; back-pressure; no leftovers."""

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
import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from umbel.protocol.errors import PeerError, SettingsError, StateError, VoidRound
from umbel.server.core.ranked_world import RankedSum, RankedWorld
from umbel.server.core.segments import Segment, Shelf
from umbel.server.core.supervisor import Supervisor
from umbel.server.core.world import World

if TYPE_CHECKING:
    from collections.abc import Iterator

BLOCKS = 2600
"""64-byte blocks of section 32: three shards of 1024 words' multiples, the last one short."""
SPLIT, SIZE = 64 * BLOCKS, 64 * BLOCKS + 40


WORLDS = [2, *(pytest.param(ranks, marks=pytest.mark.slow) for ranks in (1, 3))]


class Lines(list[str]):
    """What was said."""

    def say(self, _kind: str, line: str) -> None:
        """Take a line."""
        self.append(line)


@pytest.fixture(scope="module", params=WORLDS)
def world(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RankedWorld]:
    home = tmp_path_factory.mktemp("home")
    lines = Lines()
    found = RankedWorld(request.param, 4, Shelf(home, lines.say, home), lines.say)
    yield found
    found.close()
    assert not list(home.iterdir())


def opened(world: RankedWorld) -> RankedSum:
    total = world.open(SIZE, SPLIT)
    assert isinstance(total, RankedSum)
    return total


def fill(total: RankedSum, node: str, message: bytes) -> None:
    slot = total.slot(node)
    assert slot is not None
    slot[:] = message


def embedded(messages: list[bytes], streams: list[tuple[bytes, int]]) -> bytes:
    total = World().open(SIZE, SPLIT)
    for index, message in enumerate(messages):
        slot = total.slot(str(index))
        assert slot is not None
        slot[:] = message
        total.fold(str(index))
    total.unmask(streams)
    return bytes(total.result())


@settings(max_examples=25, deadline=None)
@given(st.data(), st.integers(1, 9), st.integers(0, 3), st.integers(0, 2**32))
def test_the_bits_are_those_of_the_world_of_one(
    world: RankedWorld, data: st.DataObject, clients: int, keys: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    messages = [rng.bytes(SIZE) for _ in range(clients)]
    streams = [(rng.bytes(32), int(rng.choice([1, -1]))) for _ in range(keys)]
    total = opened(world)
    order = data.draw(st.permutations(range(clients)))
    while order:
        # Uploads fill slots side by side, one of them is given up, and they end in any order.
        many = data.draw(st.integers(1, min(4, len(order))))
        together, order = order[:many], order[many:]
        for client in together:
            fill(total, str(client), messages[client])
        if many < 4 and data.draw(st.booleans()):
            fill(total, "gone", rng.bytes(SIZE))
            total.discard("gone")
        for client in reversed(together):
            total.fold(str(client))
    total.unmask(streams)
    assert bytes(total.result()) == embedded(messages, streams)
    assert bytes(total.numbers()) == bytes(total.result())[SPLIT:]
    assert sorted(total.survivors) == sorted(map(str, range(clients)))
    total.close()


def test_a_killed_rank_repeats_what_it_has_not_committed(world: RankedWorld) -> None:
    rng = np.random.default_rng(1)
    messages, streams = [rng.bytes(SIZE) for _ in range(4)], [(bytes(range(32)), 1)]
    total, before, victim = opened(world), world.supervisor.pids, world.ranks - 1
    pair = Segment.attach(Path(total.about.pair), total.about.pair_bytes, write=True)
    for step, message in enumerate(messages):
        fill(total, str(step), message)
    os.kill(before[victim], signal.SIGSTOP)
    for step in range(4):
        total.fold(str(step))
    # It had committed the first batch, and could not say so any more.
    low, high = total.about.shard(victim)
    total.about.mine(pair, 1, victim)[:] = np.frombuffer(messages[0], "<i4")[low:high]
    total.about.commits(pair)[victim] = 1
    os.kill(before[victim], signal.SIGKILL)
    total.numbers()
    assert total.about.commits(pair).tolist() == [2] * world.ranks
    # And it had written half of its shard without masks.
    again = world.supervisor.pids[victim]
    os.kill(again, signal.SIGSTOP)
    worker = threading.Thread(target=total.unmask, args=(streams,))
    worker.start()
    half = total.about.mine(pair, 3, victim)
    half[: len(half) // 2] = 7
    os.kill(again, signal.SIGKILL)
    worker.join()
    assert bytes(total.result()) == embedded(messages, streams)
    after = world.supervisor.pids
    assert after[:victim] == before[:victim]
    assert len({before[victim], again, after[victim]}) == 3
    total.close()


def test_no_free_slot_is_back_pressure(tmp_path: Path, world: RankedWorld) -> None:
    total = opened(world)
    free = threading.Event()
    world.freed = free.set
    try:
        for index in range(4):
            fill(total, str(index), bytes(SIZE))
        assert total.slot("late") is None
        assert total.slot("3") is not None
        total.fold("3")
        assert free.wait(30)
        assert total.slot("late") is not None
    finally:
        world.freed = None
        total.close()


def test_each_node_once_and_nothing_after_the_end(world: RankedWorld) -> None:
    total = opened(world)
    fill(total, "a", b"\1" * SIZE)
    total.fold("a")
    for again in (total.fold, total.slot, total.discard):
        with pytest.raises(PeerError, match="a: "):
            again("a")
    with pytest.raises(PeerError, match="without a slot"):
        total.fold("b")
    fill(total, "b", b"\1" * SIZE)
    assert bytes(total.result()) == b"\1" * SIZE
    for late in (total.fold, total.slot):
        with pytest.raises(PeerError, match="after the survivors were frozen"):
            late("b")
    total.close()


def test_masked_vectors_are_zeroed_when_the_sum_is_frozen(world: RankedWorld) -> None:
    total = opened(world)
    ring = Segment.attach(Path(total.about.ring), total.about.ring_bytes, write=False)
    assert Path(total.about.ring).stat().st_mode & 0o777 == 0o600
    for node in ("folded", "open"):
        fill(total, node, b"\5" * SIZE)
    total.fold("folded")
    assert bytes(total.result()) == b"\5" * SIZE
    assert not np.any(ring.array("u1"))
    total.close()
    again = opened(world)
    assert again.about.ring == total.about.ring
    assert bytes(again.result()) == bytes(SIZE)
    fill_late = opened(world)
    fill(fill_late, "open", b"\5" * SIZE)
    fill_late.close()
    ring = Segment.attach(Path(fill_late.about.ring), fill_late.about.ring_bytes, write=False)
    assert not np.any(ring.array("u1"))
    again.close()


def test_a_saved_sum_is_taken_up(world: RankedWorld) -> None:
    saved = np.random.default_rng(3).bytes(SIZE)
    total = opened(world)
    with pytest.raises(SettingsError, match=f"{SIZE} bytes"):
        total.load(saved[1:], ["a"])
    total.load(saved, ["a", "b"])
    assert total.survivors == ("a", "b")
    total.unmask([(bytes(32), 1)])
    total.unmask([(bytes(32), -1)])
    assert bytes(total.result()) == saved
    total.close()


@pytest.mark.parametrize("place", [0, SPLIT // 4 - 1])
@pytest.mark.parametrize(("word", "fits"), [(99, True), (-100, True), (101, False), (-101, False)])
def test_a_word_beyond_the_bound_voids_the_sum(
    world: RankedWorld, place: int, word: int, *, fits: bool
) -> None:
    message = bytearray(SIZE)
    message[4 * place : 4 * place + 4] = word.to_bytes(4, "little", signed=True)
    message[SPLIT:] = b"\xff" * (SIZE - SPLIT)
    total = opened(world)
    fill(total, "a", bytes(message))
    total.fold("a")
    if fits:
        total.check(100)
    else:
        with pytest.raises(VoidRound, match="beyond 100"):
            total.check(100)
    total.close()


def test_a_sum_of_numbers_alone_needs_no_rank(world: RankedWorld) -> None:
    total = world.open(40, 0)
    assert not isinstance(total, RankedSum)
    with pytest.raises(SettingsError):
        world.open(40, 8)


def test_ranks_without_torch_are_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('no torch here')\n", "utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    lines = Lines()
    with pytest.raises(StateError) as caught:
        Supervisor(1, lines.say)
    line = "core.ranks: expected 1 ranks that start, got rank 0 does not start: no torch here"
    assert str(caught.value) == line
    assert not lines
    with pytest.raises(SettingsError, match="1 to 64"):
        Supervisor(0, lines.say)


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
