"""Robust rules in worlds of ranks: the bits of the world of one, whoever is killed."""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from umbel.protocol.codec import Codec
from umbel.protocol.digest import model_digest
from umbel.protocol.errors import TooFewMembers
from umbel.protocol.layout import MessageLayout
from umbel.protocol.manifest import Manifest
from umbel.server.core.kept import Keeping
from umbel.server.core.ranked_world import RankedWorld
from umbel.server.core.run_model import RunModel
from umbel.server.core.segments import Shelf
from umbel.server.core.world import World
from umbel.server.stepping import StepOrder
from umbel.strategies.robust_rules import RULES, Robust
from umbel.strategies.server_rules import FedAvg
from umbel.tests.ranked import Lines

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from umbel.server.core.worlds import AnySum, AnyWorld

pytestmark = pytest.mark.slow  # one short one is with the other ranks: test_ranked_world.py
CLIENTS = 9
MODEL: dict[str, Any] = {
    "n": np.array([3, 4], np.int64),
    "w": np.linspace(-1, 1, 70_001, dtype=np.float32),
    "d": np.linspace(0, 1, 33),
}
MANIFEST = Manifest.of(MODEL)
LAYOUT = MessageLayout(MANIFEST, {}, "train")
CODEC = Codec(CLIENTS, 0.5, 40)
NUMBERS: dict[str, dict[str, Any]] = {
    "centred-clipping": {"radius": 2.0, "iterations": 2},
    "norm-bounding": {"radius": 2.0},
    "bulyan": {"byzantine": 1},
    "trimmed-mean": {"byzantine": 1},
}
SERVED = sorted(set(RULES) - {"fltrust"})


@pytest.fixture(scope="module", params=[1, 2, 3])
def world(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RankedWorld]:
    home = tmp_path_factory.mktemp("home")
    lines = Lines()
    found = RankedWorld(request.param, 2, Shelf(home, lines.say, home), lines.say)
    yield found
    found.close()
    assert not list(home.iterdir())


def robust_of(name: str) -> Robust:
    return Robust(**{"rule": name, "byzantine": 2, **NUMBERS.get(name, {})})


def a_sum(world: AnyWorld, robust: Robust, order: Sequence[int] = range(CLIENTS)) -> AnySum:
    """Return a sum of one message a client, the last two of them hostile."""
    rng = np.random.default_rng(3)
    common = rng.normal(0, 3e4, LAYOUT.words32)
    codes = np.rint(common + rng.normal(0, 2e4, (CLIENTS, LAYOUT.words32))).astype("<i4")
    codes[-2:] *= -40
    total = world.open(LAYOUT.total_bytes, LAYOUT.split, Keeping(robust, CODEC))
    for client in order:
        slot = total.slot(f"node {client}")
        assert slot is not None
        slot[: LAYOUT.split] = codes[client].tobytes()
        slot[LAYOUT.split :] = np.array([1, 4 * client + 1, 0, 1], "<u8").tobytes()
        total.fold(f"node {client}")
    return total


def a_model(world: AnyWorld) -> RunModel:
    packed = MANIFEST.pack(MODEL)
    return RunModel(MANIFEST, model_digest(packed), packed, world.make)


def order_of(robust: Robust) -> StepOrder:
    weight = sum(4 * client + 1 for client in range(CLIENTS))
    return StepOrder(FedAvg(robust=robust), 1, LAYOUT, CODEC, CLIENTS, weight)


def stepped(world: AnyWorld, robust: Robust, order: Sequence[int] = range(CLIENTS)) -> bytes:
    total, model = a_sum(world, robust, order), a_model(world)
    digest = total.step(model, order_of(robust))
    assert digest == model_digest(model.stepped_packed)
    total.close()
    model.close()
    return digest


@pytest.mark.parametrize("name", SERVED)
def test_the_bits_are_those_of_the_world_of_one(world: RankedWorld, name: str) -> None:
    robust = robust_of(name)
    backwards = range(CLIENTS - 1, -1, -1)
    assert stepped(world, robust, backwards) == stepped(World(2), robust)


def test_the_numbers_are_summed_and_the_memory_is_used_again(world: RankedWorld) -> None:
    paths = []
    for _ in range(2):
        total = a_sum(world, robust_of("median"))
        numbers = np.frombuffer(total.numbers(), "<u8").tolist()
        assert numbers == [CLIENTS, sum(4 * c + 1 for c in range(CLIENTS)), 0, CLIENTS]
        paths.append({str(block.path) for block in total._store._lease.blocks})  # type: ignore[attr-defined]
        total.close()
    assert paths[0] == paths[1]
    assert len(paths[0]) == CLIENTS


def test_a_rank_killed_while_it_makes_products_repeats_its_part(world: RankedWorld) -> None:
    robust, victim = robust_of("krum"), world.ranks - 1
    total, model, before = a_sum(world, robust), a_model(world), world.supervisor.pids
    digests: list[bytes] = []
    os.kill(before[victim], signal.SIGSTOP)
    worker = threading.Thread(target=lambda: digests.append(total.step(model, order_of(robust))))
    worker.start()
    while not world.supervisor._links[victim].sent:
        time.sleep(0.001)
    os.kill(before[victim], signal.SIGKILL)
    worker.join()
    assert digests == [stepped(World(2), robust)]
    assert world.supervisor.pids[:victim] == before[:victim]
    total.close()
    model.close()


def test_too_few_end_the_round_and_nothing_else(world: RankedWorld) -> None:
    total, model = a_sum(world, robust_of("krum"), range(6)), a_model(world)
    with pytest.raises(TooFewMembers, match="7 or more clients"):
        total.step(model, order_of(robust_of("krum")))
    total.close()
    model.close()
