"""Umbel's side and the limit of `umbel bench fold`: the rank's kernels over one set of updates."""

from __future__ import annotations

import statistics
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import torch

from . import flower_fold as flower
from .layer_sizes import layer_sizes
from .record import Measurement, interleave
from ..protocol.errors import VoidRound
from ..server.core import torch_folds as folds
from ..server.core import torch_kernels as kernels
from ..server.core.shards import shards

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

FLIP = 16
"""Updates folded between two flips of a pair."""
DENSITY = 100
"""One value of so many is in a sparse update."""
_LINE = 64
_STREAM = 12
"""Bytes of an accumulate c += s * x: two floats read, one written."""
_NEAR = 1e-5


def traffic(clients: int, compiled: bool) -> dict[str, float]:
    """Return the bytes that a value of an update moves between core and memory, by case.

    A fold reads and writes the accumulator once a batch, one by tiles once for all updates; a
    sparse value fetches and writes back a cache line of it.
    """
    once, batch = 8 / clients, 8 / min(clients, 8 if compiled else folds.BATCH)
    return {
        "float/threads=1": 4 + batch,
        "float/threads=2": 4 + batch,
        "ring/threads=1": 4 + (batch if compiled else once),
        "bf16/threads=1": 2 + once,
        "int8/threads=1": 1 + once,
        "sparse/threads=1": (4 + 4 + 2 * _LINE) / DENSITY,
    }


class Race:
    """The updates of a round in every form, and who folds them."""

    def __init__(self, params: int, clients: int, runs: int) -> None:
        """Make everything once: what is measured allocates nothing large."""
        generator = torch.Generator().manual_seed(0)
        self._runs = runs
        self._rows = torch.empty(clients, params).normal_(generator=generator)
        self._weights = torch.arange(50.0, 50.0 + clients)
        self._total, self._other = torch.zeros(params), torch.zeros(params)
        self._words = torch.zeros(params, dtype=torch.int32)
        # STREAM wants arrays beyond the cache; one accumulator of this size may lie in it.
        self._many = torch.zeros(-(-clients // 2), params)
        self._ring = self._rows.view(torch.int32)  # any words will do: the same bits
        self._narrow = self._rows.bfloat16()
        self._small = self._rows.view(torch.int8)[:, :params]
        self._tile = torch.empty(folds.tile_shape(clients))
        kept = params // DENSITY
        jitter = torch.randint(0, DENSITY, (clients, kept), generator=generator, dtype=torch.int32)
        self._indices = torch.arange(kept, dtype=torch.int32) * DENSITY + jitter
        self._scratch = torch.empty(kept, dtype=torch.int32)
        self._halves = shards(params, 2)
        self._pool = ThreadPoolExecutor(2)
        sizes = layer_sizes(params)
        self._replies = flower.replies(self._rows.numpy(), self._weights.tolist(), sizes)

    def cases(self) -> Iterator[Measurement]:
        """Compare the two means, measure, then yield the cases."""
        said = "compiled by numba" if kernels.compiled() else "in torch: numba is not installed"
        print(f"umbel bench fold: float and ring folds run {said}", file=sys.stderr, flush=True)
        self._agree()
        calls: dict[str, Callable[[], object]] = {
            "float/threads=1": lambda: kernels.fold(self._total, self._rows, self._weights),
            "float/pair": self._pair,
            "float/threads=2": lambda: self._both(self._part),
            "ring/threads=1": lambda: kernels.fold_ring(self._words, self._ring),
            "bf16/threads=1": lambda: self._cast(self._narrow),
            "int8/threads=1": lambda: self._cast(self._small),
            "sparse/threads=1": self._sparse,
            "peer": lambda: flower.aggregate(self._replies),
            "read": self._rows.sum,
            "stream/1": lambda: self._stream(0, len(self._total)),
            "stream/2": lambda: self._both(self._stream),
        }
        for work in calls.values():
            work()
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            found = interleave(
                {name: self._timed(name, work) for name, work in calls.items()}, self._runs
            )
        finally:
            torch.set_num_threads(threads)
            self._pool.shutdown()
        clients, params = self._rows.shape
        yield from measurements(found, clients, params, kernels.compiled() is not None)

    def _agree(self) -> None:
        """Compare Flower's mean with this one's, in which no value is far from 0.

        Raises:
            VoidRound: They differ by more than rounding.
        """
        kernels.fold(self._total.zero_(), self._rows, self._weights)
        theirs = torch.from_numpy(flower.flat(flower.aggregate(self._replies)))
        apart = float((self._total / self._weights.sum() - theirs).abs().max())
        if not apart <= _NEAR:
            raise VoidRound(f"bench fold: the means of Umbel and Flower differ by {apart:g}")

    @staticmethod
    def _timed(name: str, work: Callable[[], object]) -> Callable[[], float]:
        """Return a call that takes the thread's CPU seconds, of two threads the wall's."""
        clock = time.perf_counter if name.endswith("2") else time.thread_time

        def call() -> float:
            start = clock()
            work()
            return clock() - start

        return call

    def _both(self, work: Callable[[int, int], None]) -> None:
        for done in [self._pool.submit(work, low, high) for low, high in self._halves]:
            done.result()

    def _part(self, low: int, high: int) -> None:
        kernels.fold(self._total[low:high], self._rows[:, low:high], self._weights)

    def _pair(self) -> None:
        one, other = self._total, self._other
        for first in range(0, len(self._rows), FLIP):
            some = slice(first, first + FLIP)
            kernels.fold(one, self._rows[some], self._weights[some], other)
            one, other = other, one

    def _cast(self, rows: torch.Tensor) -> None:
        folds.fold_cast(self._total, rows, self._weights, self._tile)

    def _sparse(self) -> None:
        for indices, row, weight in zip(
            self._indices, self._rows, self._weights.tolist(), strict=True
        ):
            values = row[: len(indices)]
            folds.fold_sparse(self._total, 0, indices, values, weight, self._scratch)

    def _stream(self, low: int, high: int) -> None:
        for place, row in enumerate(self._rows):
            total = self._many[place % len(self._many)]
            total[low:high].add_(row[low:high], alpha=0.5)


def measurements(
    found: dict[str, list[float]], clients: int, params: int, compiled: bool
) -> Iterator[Measurement]:
    """Yield the cases from seconds, in GB/s of updates.

    Args:
        found: Seconds by case, and of "peer", "read", "stream/1" and "stream/2".
        clients: Updates.
        params: Values of each.
        compiled: Whether numba's folds ran.
    """
    nbytes = 4.0 * clients * params
    rates = {name: [nbytes / one / 1e9 for one in seconds] for name, seconds in found.items()}

    def case(name: str, peer: str, limit: str, limit_name: str, scale: float = 1.0) -> Measurement:
        return Measurement(
            bench="fold",
            case=name,
            unit="GB/s",
            samples=rates["float/threads=1" if name == "float/read" else name],
            peer=rates[peer],
            peer_name=flower.NAME if peer == "peer" else "in place",
            limit=scale * statistics.median(rates[limit]),
            limit_name=limit_name,
        )

    for name, moved in traffic(clients, compiled).items():
        stream = "stream/2" if name.endswith("=2") else "stream/1"
        said = f"STREAM accumulate at {moved:.3g} bytes a value"
        yield case(name, "peer", stream, said, _STREAM / moved)
    yield case("float/read", "peer", "read", "reading the updates once")
    yield case("float/pair", "float/threads=1", "read", "reading the updates once")
