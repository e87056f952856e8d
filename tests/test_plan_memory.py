"""What a plan says of the server's memory is what the core itself takes and tells."""

from __future__ import annotations

import subprocess
import sys

import pytest

from umbel.protocol.codec import Codec
from umbel.protocol.graph import parameters
from umbel.protocol.layout import MessageLayout
from umbel.protocol.manifest import Manifest
from umbel.server.core.kept import Keeping
from umbel.server.core.run_model import RunModel
from umbel.server.core.world import World
from umbel.server.core_cli import SLOTS
from umbel.server.stepping import StepOrder
from umbel.simulation.capacity.memory import server_memory
from umbel.strategies.robust_rules import Robust
from umbel.strategies.server_rules import FedAdam, FedAvg, Rule

MANIFEST = Manifest.lay_out([("a", (1000, 30), "float32"), ("b", (17,), "float32")])
LAYOUT = MessageLayout(MANIFEST, {"examples": 0, "loss": 24}, "train")
BYTES = 120_000 + 128
"""Of the model: 30,000 numbers, and 17 in a block of 64 bytes each."""


@pytest.mark.parametrize(
    ("rule", "members"),
    [
        (FedAvg(), 20),
        (FedAdam(), 20),
        (FedAvg(robust=Robust(rule="median")), 20),
        (FedAvg(robust=Robust(rule="trimmed-mean", cut=0.1)), 40),
    ],
)
def test_the_terms_are_those_that_the_core_tells(rule: Rule, members: int) -> None:
    codec = Codec(members, 1.0, 1)
    keeping = None if rule.robust is None else Keeping(rule.robust, codec)
    opened = World(SLOTS).open(LAYOUT.total_bytes, LAYOUT.split, keeping)
    model = RunModel(MANIFEST, bytes(32), bytes(MANIFEST.total_bytes))
    model.begin(StepOrder(rule, 1, LAYOUT, codec, members, members))
    assert server_memory(LAYOUT, rule, members).terms == {**opened.memory, **model.memory}
    opened.close()


def test_by_hand() -> None:
    message = BYTES + 6 * 8  # 1, w, saturated, two metrics, 1
    found = server_memory(LAYOUT, FedAdam(), 100, parameters(100))
    assert found.terms == {
        "accumulators": message,
        "slots": 4 * message,
        "model": BYTES,
        "next model": BYTES,
        "moment m": BYTES,
        "moment v": BYTES,
        "shares": 177 * 100 * parameters(100).k,
    }
    assert found.peak == sum(found.terms.values()) - BYTES


def test_ranks_keep_two_accumulators_and_eight_slots_of_whole_pages() -> None:
    found = server_memory(LAYOUT, FedAvg(), 100, ranks=2)
    page = -(-(BYTES + 48) // 4096) * 4096
    assert found.terms["slots"] == 8 * page
    assert found.terms["accumulators"] == 4096 + 2 * page
    assert found.peak == sum(found.terms.values())


ROUND = """
import gc
import numpy as np
from umbel.benchmarks.process_memory import peak, reset_peak, resident
from umbel.protocol.codec import Codec
from umbel.protocol.digest import model_digest
from umbel.protocol.layout import MessageLayout
from umbel.protocol.manifest import Manifest
from umbel.server.core.run_model import RunModel
from umbel.server.core.world import World
from umbel.server.core_cli import SLOTS
from umbel.server.stepping import StepOrder
from umbel.strategies.server_rules import FedAdam

def play(params):
    manifest = Manifest.lay_out([("weight", (params,), "float32")])
    layout, codec = MessageLayout(manifest, {}, "train"), Codec(SLOTS, 1.0, 1)
    world, rule = World(SLOTS), FedAdam()
    model = RunModel(manifest, bytes(32), memoryview(np.zeros(manifest.total_bytes, np.uint8)))
    for number in (1, 2):  # the moments are there while the second round's uploads come
        found = world.open(layout.total_bytes, layout.split)
        for place in range(SLOTS):
            slot = found.slot(str(place))
            np.frombuffer(slot[: layout.split], np.uint8)[:] = 1
            np.frombuffer(slot[layout.split :], "<u8")[:] = [1, 1, 0, 1]
            del slot
        for place in range(SLOTS):
            found.fold(str(place))
        digest = found.step(model, StepOrder(rule, number, layout, codec, SLOTS, SLOTS))
        model.adopt(digest)
        found.close()

play(1000)
gc.collect()
reset_peak()
before = resident()
play(PARAMS)
print(peak() - before)
"""


@pytest.mark.slow
def test_a_measured_round_peaks_where_the_plan_says() -> None:
    params = 1_000_000  # above 1 << 20 numba is loaded for the step, 70 MB of its own
    layout = MessageLayout(Manifest.lay_out([("weight", (params,), "float32")]), {}, "train")
    code = ROUND.replace("PARAMS", str(params))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr
    measured, said = int(done.stdout), server_memory(layout, FedAdam(), 8)
    assert said.peak == sum(said.terms.values()) - said.terms["next model"]
    heap = 4 << 20  # of the process beside the model: its allocator keeps what small objects had
    assert 0.95 * said.peak < measured < 1.05 * said.peak + heap
