"""A million registered clients: the process behind `umbel bench clock`, started anew for each run.

The fleet is that of the simulator's reference (docs/benchmarks.md), from a fleet.toml: 20 bytes a
client. Memory is the kernel's peak less what the process held before it, code loaded, so arrays,
what drawing them needs, and what rounds leave behind are all in it.
"""

from __future__ import annotations

import gc
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .ingest_process import answering
from .process_memory import peak, reset_peak, resident
from ..simulation.clock.buffered import Buffered, Flow
from ..simulation.clock.synchronous import Synchronous, Terms
from ..simulation.fleet.devices import Load
from ..simulation.fleet.toml import read

if TYPE_CHECKING:
    from ..simulation.fleet.profiles import ArrayFleet

FLEET = """seed = 7
[cohorts.all]
share = 1
samples = { loguniform = [12.2, 90.0] }
speed = { lognormal = { median = 0.02, sigma = 0.6 } }
bandwidth = { loguniform = [2e5, 4e6] }
jitter = 0.1
dropout = 0.02
online = { hours = { uniform = [1.92, 11.52] }, from = { uniform = [0, 24] } }
"""
_LOAD = Load(down=240_000, up=240_000)
_OVER = 1.3
_DEADLINE = 120.0
_WARM_UP = 1000


def registered(clients: int) -> ArrayFleet:
    """Return a fleet of that many clients, from its file."""
    with tempfile.TemporaryDirectory(prefix="um") as folder:
        file = Path(folder, "fleet.toml")
        file.write_text(FLEET, "utf-8")
        return read(file).fleet(clients, seed=7)


def play(clients: int, cohort: int, rounds: int) -> dict[str, Any]:
    """Register, go through some rounds, and through as many buffers of an asynchronous run."""
    began = time.perf_counter()
    fleet = registered(clients)
    invited = int(_OVER * cohort)
    terms = Terms(cohort=cohort, invited=invited, deadline=_DEADLINE, load=_LOAD, seed=7)
    clock = Synchronous(fleet, terms)
    ready = time.perf_counter()
    took = []
    for number in range(1, rounds + 1):
        at = time.perf_counter()
        clock.decide(number)
        took.append(time.perf_counter() - at)
    flow = Flow(concurrency=cohort, buffer=max(1, cohort // 10), load=_LOAD, seed=7)
    buffered, at = Buffered(fleet, flow), time.perf_counter()
    ended = sum(len(buffered.decide(number).invited) for number in range(1, rounds + 1))
    return {
        "register": ready - began,
        "rounds": took,
        "event": (time.perf_counter() - at) / ended,
    }


def answer(asked: dict[str, Any]) -> dict[str, Any]:
    """Play what is asked for, after a small one that loads code."""
    play(_WARM_UP, 10, 10)
    gc.collect()
    reset_peak()
    before = resident()
    found = play(asked["clients"], asked["cohort"], asked["rounds"])
    return {**found, "memory": peak() - before}


if __name__ == "__main__":
    answering(answer)
