"""Ranks: GB/s and seconds of one and two rank processes, beside the world of one.

    unmask/ranks=N    key streams taken off the sum         peer of N=1: the world of one
    step/ranks=N      FedAdam over the sum, and the digest  of N=2: one rank
    killed            a rank killed while it folds, until the batch is committed

All by the wall's clock: what several processes gain is the point, and needs as many idle cores. A
GB is one of key stream. Sums by ranks are in `umbel bench fold`. How: docs/benchmarks.md.
"""

from __future__ import annotations

import os
import signal
import tempfile
import time
from contextlib import ExitStack, closing
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np
import typer

from .record import Measurement, interleave
from ..protocol.codec import Codec
from ..protocol.digest import model_digest
from ..protocol.errors import SettingsError, VoidRound
from ..protocol.layout import MessageLayout
from ..protocol.manifest import Manifest
from ..server.core.ranked_world import RankedWorld
from ..server.core.run_model import RunModel
from ..server.core.segments import Shelf
from ..server.core.world import World
from ..server.stepping import StepOrder
from ..strategies.server_rules import FedAdam

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..server.core.worlds import AnySum, AnyWorld

SLOTS = 8
"""Slots of the ring."""
RANKS = (1, 2)
CASES = [f"{what}/ranks={n}" for what in ("unmask", "step") for n in RANKS] + ["killed"]
_NEED = {"params": 1000, "masks": 1, "runs": 1}


def run(
    params: Annotated[int, typer.Option(help="Parameters of the model, float32.")] = 10_000_000,
    masks: Annotated[int, typer.Option(help="Masks that the sum carries.")] = 24,
    runs: Annotated[int, typer.Option(help="Interleaved runs; a figure needs five.")] = 5,
) -> Iterator[Measurement]:
    """Yield every case; the sizes are checked before anything is measured."""
    for name, value in {"params": params, "masks": masks, "runs": runs}.items():
        if value < _NEED[name]:
            raise SettingsError(f"--{name}", f"{_NEED[name]} or more", value)
    if find_spec("torch") is None:
        reason = "torch is not installed; `pip install umbel[torch]`"
        for case in CASES:
            unit = "s" if case.startswith(("step", "killed")) else "GB/s"
            yield Measurement(bench="ranks", case=case, unit=unit, absent=reason)
        return
    with ExitStack() as stack:
        shelf = Shelf(Path(stack.enter_context(tempfile.TemporaryDirectory())), _mute)
        worlds = {
            n: stack.enter_context(closing(RankedWorld(n, SLOTS, shelf, _mute))) for n in RANKS
        }
        yield from _cases(worlds, params, masks, runs)


def _cases(
    worlds: dict[int, RankedWorld], params: int, masks: int, runs: int
) -> Iterator[Measurement]:
    races = {0: Race(World(SLOTS), params, masks)}
    races |= {n: Race(world, params, masks) for n, world in worlds.items()}
    if len({race.essence() for race in races.values()}) > 1:
        raise VoidRound("bench ranks: the worlds came to other sums or models")
    whats = {"unmask": (4e-9 * params * masks, "GB/s"), "step": (0.0, "s")}
    calls = {f"{w}/{n}": getattr(race, w) for n, race in races.items() for w in whats}
    found = interleave(calls, runs)
    for what, (size, unit) in whats.items():
        figures = {n: [size / s if size else s for s in found[f"{what}/{n}"]] for n in races}
        for n in RANKS:
            yield Measurement(
                bench="ranks",
                case=f"{what}/ranks={n}",
                unit=unit,
                samples=figures[n],
                peer=figures[n - 1],
                peer_name="one rank" if n > 1 else "the world of one",
            )
    last = worlds[RANKS[-1]]
    killed = [races[RANKS[-1]].killed(last.supervisor.pids[-1]) for _ in range(runs)]
    yield Measurement(bench="ranks", case="killed", unit="s", samples=killed)


class Race:
    """One world, with a sum that is folded into and one that is opened again and again."""

    def __init__(self, world: AnyWorld, params: int, masks: int) -> None:
        """Fill every slot of the first sum once; the bytes stay there."""
        model = {"w": np.linspace(-1, 1, params, dtype=np.float32)}
        manifest = Manifest.of(model)
        self._layout, self._turn = MessageLayout(manifest, {}, "train"), 0
        packed = manifest.pack(model)
        self._model = RunModel(manifest, model_digest(packed), packed, world.make)
        keys = np.random.default_rng(1)
        self._streams = [(keys.bytes(32), 1 if i % 2 else -1) for i in range(masks)]
        self._sum = self._open(world)
        for place, node in enumerate(self._ring()):
            np.frombuffer(self._slot(node), np.uint8)[:] = place + 1
            self._sum.fold(node)
        self._frozen = self._open(world)
        words = np.arange(self._layout.total_bytes // 4, dtype="<u4")
        self._frozen.load(words.tobytes(), ["a", "b"])

    def essence(self) -> tuple[bytes, bytes]:
        """Return what must be the same in every world: digests of an opened sum and of a step."""
        self.unmask()
        self.step()
        return model_digest(self._frozen.result()), self._model.digest

    def unmask(self) -> float:
        """Take every stream off once, and return the seconds."""
        start = time.perf_counter()
        self._frozen.unmask(self._streams)
        return time.perf_counter() - start

    def step(self) -> float:
        """Make a step and adopt its model; return the seconds of the step."""
        self._turn += 1
        codec = Codec(2, 0.5, 40)
        order = StepOrder(FedAdam(), self._turn, self._layout, codec, 2, 60)
        start = time.perf_counter()
        digest = self._frozen.step(self._model, order)
        seconds = time.perf_counter() - start
        self._model.adopt(digest)
        return seconds

    def killed(self, rank: int) -> float:
        """Kill a rank with a batch before it; return the seconds until that is committed."""
        nodes = self._taken()
        os.kill(rank, signal.SIGSTOP)
        for node in nodes:
            self._sum.fold(node)
        start = time.perf_counter()
        os.kill(rank, signal.SIGKILL)
        for node in self._taken():
            self._sum.discard(node)
        return time.perf_counter() - start

    def _open(self, world: AnyWorld) -> AnySum:
        return world.open(self._layout.total_bytes, self._layout.split)

    def _ring(self) -> list[str]:
        """Return names of nodes that nobody had, one a slot."""
        self._turn += 1
        return [f"{self._turn}/{place}" for place in range(SLOTS)]

    def _taken(self) -> list[str]:
        """Take every slot, for which all that is open must have been committed."""
        nodes = self._ring()
        for node in nodes:
            self._slot(node)
        return nodes

    def _slot(self, node: str) -> memoryview:
        slot = self._sum.slot(node)
        if slot is None:
            raise VoidRound("bench ranks: no slot is free when nothing is open")
        return slot


def _mute(_kind: str, _line: str) -> None: ...
