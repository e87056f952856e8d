"""What `umbel bench gpu` checks and measures on its device, in torch.

Named `cpu` as the device, with the kernels in Triton's interpreter, it does the same at any speed:
that is how it is tested.
"""

from __future__ import annotations

import os
import statistics
import time
from typing import TYPE_CHECKING, Any

import torch

from .record import Measurement, interleave
from ..protocol.errors import VoidRound
from ..server.core import torch_exact as exact
from ..server.core import torch_folds as folds
from ..server.core.torch_kernels import unmask_each
from ..server.core.unmask import unmask as unmask_cpu

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import ModuleType

    Streams = list[tuple[bytes, int]]

PLACES = ((16, 1, 0), (1000, 1, 7), (4096, 5, 123456), (515, 3, 2**31 + 5), (2048, 9, 2**32 - 200))
"""Words, masks and first block of the stream at which bits are compared."""
WIDE = 3 * folds.TILE + 77
"""Columns at which folds are compared."""
MASKS = (1, 64)
CPU_WORDS = 1 << 20
"""Words of the CPU's turns, at most: it is measured to compare, not to wait for."""


def present() -> bool:
    """Tell whether torch sees a CUDA device."""
    return torch.cuda.is_available()


def streams(count: int) -> Streams:
    """Return random keys with alternating signs."""
    return [(os.urandom(32), 1 - 2 * (place % 2)) for place in range(count)]


class Device:
    """One device and the ChaCha20 kernel for it."""

    def __init__(self, name: str, chacha20: ModuleType) -> None:
        """Take a torch device by name, and triton_chacha20 or what stands for it."""
        self._device, self._chacha20 = torch.device(name), chacha20

    def check(self, places: Sequence[tuple[int, int, int]] = PLACES) -> None:
        """Compare unmasking, ring folds and exact sums with the CPU, bit for bit.

        Raises:
            VoidRound: Bits differ; the message says of what.
        """
        for words, masks, first in places:
            keys = streams(masks)
            ours = torch.arange(words, dtype=torch.int32)
            theirs = ours.clone()
            unmask_each(theirs, keys, 16 * first)
            found = ours.to(self._device)
            self._chacha20.unmask(found, keys, 16 * first)
            self._same(f"chacha20, {words} words from block {first}, {masks} masks", found, theirs)
        rows = torch.randn(5, WIDE)
        ring, work = rows.view(torch.int32), exact.tiles()
        there = tuple(buffer.to(self._device) for buffer in work)
        sums = [torch.zeros(WIDE, dtype=torch.int32, device=d) for d in ("cpu", self._device)]
        wholes = [torch.zeros(WIDE, dtype=torch.int64, device=d) for d in ("cpu", self._device)]
        folds.fold_ring(sums[0], ring)
        folds.fold_ring(sums[1], ring.to(self._device))
        self._same("ring fold", sums[1], sums[0])
        for row in rows:
            exact.fold_exact(wholes[0], row, 123.456, 30, work)
            exact.fold_exact(wholes[1], row.to(self._device), 123.456, 30, (there[0], there[1]))
        self._same("exact fold", wholes[1], wholes[0])

    def cases(self, words: int, clients: int, runs: int) -> Iterator[Measurement]:
        """Check the bits, then measure shards of `words` and yield the cases."""
        self.check()
        calls = self._calls(words, clients)
        for work, _ in calls.values():
            work()  # compiles kernels
        timed = {name: self._timed(work) for name, (work, _) in calls.items()}
        found = interleave(timed, runs)
        rates = {
            name: [calls[name][1] / seconds / 1e9 for seconds in found[name]] for name in calls
        }
        copy = statistics.median(rates["copy"])
        for name, samples in rates.items():
            if not name.startswith("cpu/"):
                fold = name.startswith("fold/")
                yield Measurement(
                    bench="gpu",
                    case=name,
                    unit="GB/s",
                    samples=samples,
                    peer=rates.get(f"cpu/{name.partition('/masks')[0]}", ()),
                    peer_name=None if name in {"copy", "upload"} else "one CPU thread",
                    limit=copy / (1 + 2 / folds.BATCH) if fold else copy,
                    limit_name="copy on the device"
                    + f", at {4 + 8 / folds.BATCH:g} bytes a value" * fold,
                )

    def _calls(self, words: int, clients: int) -> dict[str, tuple[Callable[[], object], float]]:
        """Return what is timed and the bytes that count, by case."""
        few = min(words, CPU_WORDS)
        rows, total = torch.randn(clients, words, device=self._device), self._zeros(words)
        ring, sums = rows.view(torch.int32), self._zeros(words, torch.int32)
        weights = torch.ones(clients, device=self._device)
        host = torch.zeros(words)
        host = host.pin_memory() if self._device.type == "cuda" else host
        near, near_sums = torch.randn(clients, few), torch.zeros(few, dtype=torch.int32)
        near_total, ones = torch.zeros(few), torch.ones(clients)
        buffer, keys = bytearray(4 * few), streams(max(MASKS))
        size, small = 4.0 * words, 4.0 * few

        def unmasking(count: int) -> Callable[[], object]:
            return lambda: self._chacha20.unmask(sums, keys[:count])

        return {
            "copy": (lambda: total.copy_(rows[0]), 2 * size),
            "upload": (lambda: total.copy_(host, non_blocking=True), size),
            **{f"chacha20/masks={n}": (unmasking(n), n * size) for n in MASKS},
            "fold/float": (lambda: folds.fold(total, rows, weights), clients * size),
            "fold/ring": (lambda: folds.fold_ring(sums, ring), clients * size),
            "cpu/chacha20": (lambda: unmask_cpu(buffer, len(buffer), keys[:4]), 4 * small),
            "cpu/fold/float": (lambda: folds.fold(near_total, near, ones), clients * small),
            "cpu/fold/ring": (
                lambda: folds.fold_ring(near_sums, near.view(torch.int32)),
                clients * small,
            ),
        }

    def _zeros(self, words: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.zeros(words, dtype=dtype, device=self._device)

    def _timed(self, work: Callable[[], object]) -> Callable[[], float]:
        def call() -> float:
            self._ready()
            start = time.perf_counter()
            work()
            self._ready()
            return time.perf_counter() - start

        return call

    def _ready(self) -> None:
        """Wait until the device has done what it was told."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    @staticmethod
    def _same(what: str, found: torch.Tensor, expected: Any) -> None:
        apart = int((found.cpu() != expected).sum())
        if apart:
            raise VoidRound(
                f"bench gpu: {what}: {apart} of {len(expected)} words differ from CPU's"
            )
