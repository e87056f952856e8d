"""Worlds of ranks: the bits of the world of one, whoever is killed; back-pressure; no leftovers."""

from __future__ import annotations

import errno
import os
import signal
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from umbel.protocol.codec import Codec
from umbel.protocol.digest import model_digest
from umbel.protocol.errors import PeerError, SettingsError, StateError, VoidRound
from umbel.protocol.layout import MessageLayout
from umbel.protocol.manifest import Manifest
from umbel.server.core import supervisor
from umbel.server.core.ranked_world import RankedSum, RankedWorld
from umbel.server.core.run_model import RunModel
from umbel.server.core.segments import Segment, Shelf
from umbel.server.core.supervisor import Supervisor
from umbel.server.core.world import World
from umbel.server.moment_file import STATE_FILE, write_moments
from umbel.server.stepping import StateFile, StepOrder
from umbel.strategies.server_rules import FedAdam, FedAvg, FedAvgM
from umbel.tests import test_ranked_rows
from umbel.tests.ranked import SIZE, SPLIT, Lines, embedded, fill, opened
from umbel.tests.rounds import Stage
from umbel.tests.rounds import settings as run_settings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from umbel.server.core.worlds import AnySum, AnyWorld
    from umbel.strategies.server_rules import Rule

WORLDS = [2, *(pytest.param(ranks, marks=pytest.mark.slow) for ranks in (1, 3))]


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


def test_a_rank_that_stands_still_is_killed_and_its_job_done(
    world: RankedWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SIGSTOP, as of a debugger or a full memory: nothing dies and nothing answers."""
    monkeypatch.setattr(supervisor, "STILL", 2.0)
    one, many, order = (
        a_model(World()),
        a_model(world),
        StepOrder(FedAvg(), 1, LAYOUT, CODEC, 3, 60),
    )
    before = world.supervisor.pids
    os.kill(before[-1], signal.SIGSTOP)
    total = a_sum(world, 4)
    assert total.step(many, order) == a_sum(World(), 4).step(one, order)
    assert world.supervisor.pids[:-1] == before[:-1]
    assert world.supervisor.pids[-1] != before[-1]
    total.close()
    many.close()


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


def test_without_memory_for_another_slot_those_in_use_must_do(
    world: RankedWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_handle: int, _start: int, _length: int) -> None:
        raise OSError(errno.ENOSPC, "full")

    total = world.open(SIZE + 8, SPLIT)
    assert isinstance(total, RankedSum)
    monkeypatch.setattr(os, "posix_fallocate", full)
    slot = total.slot("a")
    assert slot is not None
    slot[:] = b"\3" * (SIZE + 8)
    assert total.slot("b") is None
    total.fold("a")
    total.numbers()
    assert bytes(total.result()) == b"\3" * (SIZE + 8)
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
    again.close()
    Path(again.about.ring).unlink()  # as a session's end does where /dev/shm is tidied
    again = opened(world)
    fill(again, "a", b"\5" * SIZE)
    again.fold("a")
    assert bytes(again.result()) == b"\5" * SIZE
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
    with pytest.raises(SettingsError, match="1 or more"):
        Supervisor(0, lines.say)


MODEL: dict[str, Any] = {
    "n": np.array([3, 4], np.int64),
    "h": np.full((2, 3), 0.5, ml_dtypes.bfloat16),
    "w": np.linspace(-1, 1, 300_001, dtype=np.float32),
    "d": np.linspace(0, 1, 33),
}
"""Two leaves of the digest, and every dtype that is treated in its own way."""
MANIFEST = Manifest.of(MODEL)
LAYOUT = MessageLayout(MANIFEST, {}, "train")
CODEC = Codec(4, 0.5, 40)


def a_sum(world: AnyWorld, seed: int) -> AnySum:
    """Return a frozen sum of codes that three clients can have."""
    rng = np.random.default_rng(seed)
    codes = rng.integers(-3 * CODEC.q_max, 3 * CODEC.q_max, LAYOUT.words32).astype("<i4")
    total = world.open(LAYOUT.total_bytes, LAYOUT.split)
    total.load(codes.tobytes().ljust(LAYOUT.total_bytes, b"\0"), ["a", "b", "c"])
    return total


def a_model(world: AnyWorld) -> RunModel:
    """Return the model of a run that begins."""
    packed = MANIFEST.pack(MODEL)
    return RunModel(MANIFEST, model_digest(packed), packed, world.make)


@pytest.mark.parametrize("rule", [FedAvg(), FedAdam()])
def test_the_step_has_the_digest_of_the_world_of_one(world: RankedWorld, rule: Rule) -> None:
    models: list[tuple[AnyWorld, RunModel]]
    models = [(World(), a_model(World())), (world, a_model(world))]
    for t in (1, 2):
        order = StepOrder(rule, t, LAYOUT, CODEC, 3, 60)
        for where, model in models:
            total = a_sum(where, t)
            model.adopt(total.step(model, order))
            total.close()
        (_, one), (_, many) = models
        assert one.digest == many.digest == model_digest(many.packed)
        assert [bytes(m) for m in one.moments_packed.values()] == [
            bytes(m) for m in many.moments_packed.values()
        ]
    many.close()
    assert MANIFEST.views(one.packed)["n"].tolist() == [3, 4]


def test_a_rank_killed_in_the_step_costs_no_round(tmp_path: Path, world: RankedWorld) -> None:
    rule, victim = FedAvgM(server_momentum=0.5), world.ranks - 1
    models: list[tuple[AnyWorld, RunModel]]
    models = [(World(), a_model(World())), (world, a_model(world))]
    for where, model in models:
        model.adopt(a_sum(where, 1).step(model, StepOrder(rule, 1, LAYOUT, CODEC, 3, 60)))
    (_, one), (_, many) = models
    path = tmp_path / STATE_FILE
    kept = StateFile(path, write_moments(path, MANIFEST, one.moments_packed))
    order = StepOrder(rule, 2, LAYOUT, CODEC, 3, 60, kept)
    total, before, digests = a_sum(world, 2), world.supervisor.pids, list[bytes]()
    os.kill(before[victim], signal.SIGSTOP)
    worker = threading.Thread(target=lambda: digests.append(total.step(many, order)))
    worker.start()
    while not world.supervisor._links[victim].sent:
        time.sleep(0.001)
    # It had moved some of its moments when it was killed: they are of no round any more.
    for moment in many.moments.values():
        moment.view[-4096:] = b"\7" * 4096
    os.kill(before[victim], signal.SIGKILL)
    worker.join()
    assert digests == [a_sum(World(), 2).step(one, order)]
    assert world.supervisor.pids[:victim] == before[:victim]
    total.close()
    many.close()


def test_memory_of_closed_sums_is_given_up_when_a_run_is_over(world: RankedWorld) -> None:
    total = opened(world)
    paths = [Path(total.about.ring), Path(total.about.pair)]
    total.close()
    assert all(path.exists() for path in paths), "kept for the next sum"
    world.rest()
    assert not any(path.exists() for path in paths)
    total = opened(world)
    fill(total, "a", bytes(SIZE))
    total.fold("a")
    assert bytes(total.result()) == bytes(SIZE)
    total.close()


def test_a_step_that_is_not_finite_is_void(world: RankedWorld) -> None:
    packed = MANIFEST.pack(MODEL | {"d": np.full(33, np.inf)})
    model = RunModel(MANIFEST, model_digest(packed), packed, world.make)
    total = a_sum(world, 1)
    with pytest.raises(VoidRound, match="d"):
        total.step(model, StepOrder(FedAvg(), 1, LAYOUT, CODEC, 3, 60))
    assert model.next is None
    total.close()
    model.close()


def test_secure_and_plain_runs_have_the_models_of_the_world_of_one(
    tmp_path: Path, world: RankedWorld
) -> None:
    models = []
    worlds: list[AnyWorld] = [World(), world]
    for scheme in ("A", "plain"):
        for number, where in enumerate(worlds):
            home = tmp_path / f"{scheme}{number}"
            home.mkdir()
            with Stage(home, 5, run_settings(scheme=scheme, rounds=2), world=where) as stage:
                stage.play()
            assert [record.outcome for record in stage.records] == ["finished"] * 2
            models.append([record.model for record in stage.records])
    assert models == [models[0]] * 4


def test_a_robust_rule_has_the_bits_of_the_world_of_one(world: RankedWorld) -> None:
    """Each rank has made some of the inner products; messages came in another order."""
    krum, backwards = (
        test_ranked_rows.robust_of("krum"),
        range(test_ranked_rows.CLIENTS - 1, -1, -1),
    )
    found = test_ranked_rows.stepped(world, krum, backwards)
    assert found == test_ranked_rows.stepped(World(2), krum)
