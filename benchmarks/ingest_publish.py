"""From the last frame of a round to its published model: what `umbel bench ingest` calls publish.

The world is the core service's, with one process or with ranks; three clients' messages are built
by the device's own layout and code. All but one frame have come and been hashed, all but one client
are in the sum. Then, in seconds: the last frame, the last of the hash, the last fold, the numbers
of the sum and its bound, the server step with the model's digest, the next model in force.
"""

from __future__ import annotations

import itertools
import tempfile
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ..protocol.codec import Codec
from ..protocol.digest import model_digest
from ..protocol.errors import VoidRound
from ..protocol.frames import Assembly, Kind, frames
from ..protocol.layout import MessageLayout
from ..protocol.manifest import Manifest
from ..server.core.ranked_world import RankedWorld
from ..server.core.run_model import RunModel
from ..server.core.segments import Shelf
from ..server.core.world import World
from ..server.core_cli import RANKED_SLOTS, SLOTS
from ..server.running_hash import RunningHash
from ..server.stepping import StepOrder
from ..strategies import one_pass
from ..strategies.server_rules import FedAdam, FedAvg

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ..server.core.worlds import AnySum
    from ..strategies.server_rules import Rule

NODES = ("a", "b", "c")
WEIGHT = 64
_SUBJECT = bytes(32)
_SETTLE = 0.05
"""Seconds in which ranks finish what came before: a frame comes later than its neighbour."""
_NEAR = 1e-5


class Case(NamedTuple):
    """One way to publish."""

    name: str
    rule: Rule
    ranks: int = 0
    """0 for the world of one process."""


CASES = (
    Case("publish", FedAvg()),
    Case("publish/fedadam", FedAdam()),
    Case("publish/ranks=2", FedAvg(), 2),
)


class Round:
    """Messages of one round, sent again and again."""

    def __init__(self, params: int) -> None:
        """Build the messages, and compile what a service would have compiled by then."""
        one_pass.COMPILED.load()
        arrays = {"weight": np.zeros(params, np.float32)}
        manifest = Manifest.of(arrays)
        self.packed = manifest.pack(arrays)
        self.model = RunModel(manifest, model_digest(self.packed), self.packed)
        self._layout = MessageLayout(manifest, {}, "train")
        self._codec = Codec(len(NODES), 1.0, WEIGHT)
        self._values = np.random.default_rng(params).normal(0.0, 0.01, params).astype(np.float32)
        self._frames = []
        for place, _ in enumerate(NODES):
            key = bytes([place]) * 32
            update = {"weight": self._values}
            message = self._layout.build(update, WEIGHT, {}, self._codec, key)
            self._frames.append(list(frames(Kind.UPLOAD, _SUBJECT, message)))

    def ends(self, stack: ExitStack, case: Case) -> Callable[[], float]:
        """Start the case's world; return what plays a round there and returns its end's seconds.

        Raises:
            VoidRound: The first model is not the mean update.
        """
        world = stack.enter_context(world_of(case.ranks))
        made = {} if isinstance(world, World) else {"make": world.make}
        model = RunModel(self.model.manifest, self.model.digest, self.packed, **made)
        stack.callback(model.close)
        numbers = itertools.count(1)

        def play() -> float:
            return self._play(world, model, case.rule, next(numbers))

        play()
        weights = np.frombuffer(model.packed, np.float32, len(self._values))
        if case.rule == FedAvg() and not np.allclose(weights, self._values, atol=_NEAR):
            raise VoidRound(f"bench ingest: {case.name}: the model is not the mean")
        return play

    def digest_seconds(self) -> float:
        """Return how long one core takes for the model's digest alone."""
        start = time.perf_counter()
        model_digest(self.packed)
        return time.perf_counter() - start

    def _play(self, world: World | RankedWorld, model: RunModel, rule: Rule, t: int) -> float:
        found = world.open(self._layout.total_bytes, self._layout.split)
        try:
            start = self._fill(found)
            sums = self._layout.read(found.numbers(), len(NODES), self._codec)
            found.check(self._codec.bound(len(NODES)))
            order = StepOrder(rule, t, self._layout, self._codec, len(NODES), sums.weight)
            model.adopt(found.step(model, order))
            return time.perf_counter() - start
        finally:
            found.close()

    def _fill(self, found: AnySum) -> float:
        """Let every client's frames come, and enter the sum; return when the last frame came."""
        start = 0.0
        for node, pieces in zip(NODES, self._frames, strict=True):
            if (slot := found.slot(node)) is None:
                raise VoidRound("bench ingest: no slot is free")
            upload, running = Assembly(Kind.UPLOAD, _SUBJECT, len(slot), node, slot), RunningHash()
            for piece in pieces:
                if piece is pieces[-1]:
                    running.wait()
                    time.sleep(_SETTLE)
                    start = time.perf_counter()
                upload.accept(piece)
                running.update(slot[running.length : upload.received])
            running.digest()
            found.fold(node)
        return start


@contextmanager
def world_of(ranks: int) -> Iterator[World | RankedWorld]:
    """Give a world as the core service makes it."""
    if not ranks:
        yield World(SLOTS)
        return
    with tempfile.TemporaryDirectory() as folder:
        shelf = Shelf(Path(folder), lambda _kind, _line: None)
        world = RankedWorld(ranks, RANKED_SLOTS, shelf, lambda _kind, _line: None)
        try:
            yield world
        finally:
            world.close()
