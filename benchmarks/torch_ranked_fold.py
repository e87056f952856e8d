"""Ring sums by the ranks themselves, for `umbel bench fold`: processes over shared memory.

As many messages as there are clients pass through the eight slots of a sum. What a client would
write lies there already, so that folds alone are timed, from the first message to the frozen sum:
back-pressure, commands, commits and the zeroing of the slots are in it.
"""

from __future__ import annotations

import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch

from .ingest_publish import world_of
from .record import Measurement, interleave
from ..protocol.errors import VoidRound
from ..server.core.shards import shards

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ..server.core.ranked_world import RankedWorld
    from ..server.core.world import World

RANKS = (1, 2)
_NUMBERS = 64
_ARRAYS = 4
_STREAM, _FOLD = 12, 5
"""Bytes a value: of an accumulate c += s * x, and of a fold of eight rows."""


def cases(params: int, clients: int, runs: int) -> Iterator[Measurement]:
    """Race one rank, two, and STREAM's accumulate on as many threads."""
    values = params - params % 16
    with ExitStack() as stack:
        stream = Stream(values, stack.enter_context(ThreadPoolExecutor(max(RANKS))))
        calls: dict[str, Callable[[], float]] = {}
        for ranks in RANKS:
            world = stack.enter_context(world_of(ranks))
            calls[f"ranks={ranks}"] = partial(seconds, world, values, clients)
            calls[f"stream/{ranks}"] = partial(stream.seconds, ranks)
        for call in (*calls.values(), *calls.values()):  # the second finds everything compiled
            call()
        found = interleave(calls, runs)
    rates = {
        name: [4e-9 * values * (clients if name.startswith("r") else 1) / one for one in took]
        for name, took in found.items()
    }
    for ranks in RANKS:
        yield Measurement(
            bench="fold",
            case=f"ring/ranks={ranks}",
            unit="GB/s",
            samples=rates[f"ranks={ranks}"],
            peer=rates["ranks=1"],
            peer_name="one rank",
            limit=_STREAM / _FOLD * statistics.median(rates[f"stream/{ranks}"]),
            limit_name=f"STREAM accumulate at {_FOLD} bytes a value, {ranks} thread"
            + "s" * (ranks > 1),
        )


def seconds(world: World | RankedWorld, values: int, clients: int) -> float:
    """Return how long a sum takes; its bits are those of what lies in the slots, zeros.

    Raises:
        VoidRound: A message did not get in.
    """
    found = world.open(4 * values + _NUMBERS, 4 * values)
    try:
        start = time.perf_counter()
        for place in range(clients):
            if (slot := found.slot(str(place))) is None:
                raise VoidRound("bench fold: no slot is free")
            np.frombuffer(slot[4 * values :], "<u8")[:] = 1
            found.fold(str(place))
        numbers = np.frombuffer(found.numbers(), "<u8")
        took = time.perf_counter() - start
        if not (numbers == clients).all():
            raise VoidRound(f"bench fold: {numbers[0]} of {clients} messages are in the sum")
        return took
    finally:
        found.close()


class Stream:
    """STREAM's accumulate over arrays beyond the cache."""

    def __init__(self, values: int, pool: ThreadPoolExecutor) -> None:
        """Make the arrays."""
        self._arrays = [torch.ones(values) for _ in range(_ARRAYS)]
        self._pool = pool

    def seconds(self, threads: int) -> float:
        """Return the wall seconds of one pass by so many threads."""
        bounds = shards(len(self._arrays[0]), threads)
        start = time.perf_counter()
        for done in [self._pool.submit(self._part, low, high) for low, high in bounds]:
            done.result()
        return (time.perf_counter() - start) / _ARRAYS

    def _part(self, low: int, high: int) -> None:
        for place, source in enumerate(self._arrays):
            self._arrays[place - 1][low:high].add_(source[low:high], alpha=0.5)
