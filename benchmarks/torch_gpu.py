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
from ..strategies.torch_tiles import TorchTiles

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import ModuleType

    Streams = list[tuple[bytes, int]]
    Call = tuple[Callable[[], object], float]

PLACES = ((16, 1, 0), (1000, 1, 7), (4096, 5, 123456), (515, 3, 2**31 + 5), (2048, 9, 2**32 - 200))
"""Words, masks and first block of the stream at which bits are compared."""
WIDE = 3 * folds.TILE + 77
"""Columns at which folds are compared."""
MASKS = (1, 64)
MEDIANS = (16, 32)
CPU_WORDS = 1 << 20
"""Words of the CPU's turns, at most: it is measured to compare, not to wait for."""


def present() -> bool:
    """Tell whether torch sees a CUDA device."""
    return torch.cuda.is_available()


def streams(count: int) -> Streams:
    """Return random keys with alternating signs."""
    return [(os.urandom(32), 1 - 2 * (place % 2)) for place in range(count)]


class Device:
    """One device and the kernels for it."""

    def __init__(self, name: str, chacha20: ModuleType, tiles: TorchTiles) -> None:
        """Take a torch device by name, triton_chacha20 and a TritonTiles or what stands for it."""
        self._device, self._chacha20, self._tiles = torch.device(name), chacha20, tiles
        self._cpu = TorchTiles(max(MEDIANS))

    def check(self, places: Sequence[tuple[int, int, int]] = PLACES) -> None:
        """Compare every kernel with the CPU, bit for bit.

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
        self._check_sums(torch.randn(5, WIDE))
        for clients in (*MEDIANS, 9):
            rows, near = torch.randn(clients, 1000), torch.empty(1000)
            there = torch.empty(1000, device=self._device)
            self._cpu.median(rows, near)
            self._tiles.median(rows.to(self._device), there)
            self._same(f"median of {clients}", there, near)

    def _check_sums(self, rows: torch.Tensor) -> None:
        """Compare ring folds and exact folds of `rows`, taken as words and as values."""
        work, devices = exact.tiles(), ("cpu", self._device)
        one, other = (buffer.to(self._device) for buffer in work)
        ring, there = rows.view(torch.int32), rows.to(self._device)
        sums = [torch.zeros(rows.shape[1], dtype=torch.int32, device=d) for d in devices]
        wholes = [torch.zeros(rows.shape[1], dtype=torch.int64, device=d) for d in devices]
        folds.fold_ring(sums[0], ring)
        folds.fold_ring(sums[1], there.view(torch.int32))
        self._same("ring fold", sums[1], sums[0])
        for near, far in zip(rows, there, strict=True):
            exact.fold_exact(wholes[0], near, 123.456, 30, work)
            exact.fold_exact(wholes[1], far, 123.456, 30, (one, other))
        self._same("exact fold", wholes[1], wholes[0])

    def cases(self, words: int, clients: int, runs: int) -> Iterator[Measurement]:
        """Check the bits, then measure shards of `words` and yield the cases."""
        self.check()
        calls = self._calls(words, clients)
        calls |= self._cpu_calls(min(words, CPU_WORDS), clients)
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
                moved = _moved(name)
                yield Measurement(
                    bench="gpu",
                    case=name,
                    unit="GB/s",
                    samples=samples,
                    peer=rates.get(f"cpu/{name.partition('/masks')[0]}", ()),
                    peer_name=None if name in {"copy", "upload"} else "one CPU thread",
                    limit=copy * 4 / moved,
                    limit_name="copy on the device" + f", {moved:g} bytes a value",
                )

    def _calls(self, words: int, clients: int) -> dict[str, Call]:
        """Return what is timed on the device, and the bytes that count."""
        stock = torch.randn(max(clients, *MEDIANS), words, device=self._device)
        rows, total, size = stock[:clients], self._zeros(words), 4.0 * words
        ring, sums = rows.view(torch.int32), self._zeros(words, torch.int32)
        weights, host = torch.ones(clients, device=self._device), torch.zeros(words)
        host = host.pin_memory() if self._device.type == "cuda" else host
        keys = streams(max(MASKS))

        def unmasking(count: int) -> Call:
            return lambda: self._chacha20.unmask(sums, keys[:count]), count * size

        return {
            "copy": (lambda: total.copy_(rows[0]), 2 * size),
            "upload": (lambda: total.copy_(host, non_blocking=True), size),
            **{f"chacha20/masks={n}": unmasking(n) for n in MASKS},
            "fold/float": (lambda: folds.fold(total, rows, weights), clients * size),
            "fold/ring": (lambda: folds.fold_ring(sums, ring), clients * size),
            **{f"median/n={n}": _median(self._tiles, stock[:n], total) for n in MEDIANS},
        }

    def _cpu_calls(self, words: int, clients: int) -> dict[str, Call]:
        """Return what one thread of the CPU does of it, and the bytes that count."""
        stock, total = torch.randn(max(clients, *MEDIANS), words), torch.zeros(words)
        rows, sums, size = stock[:clients], torch.zeros(words, dtype=torch.int32), 4.0 * words
        ring, weights = rows.view(torch.int32), torch.ones(clients)
        buffer, keys = bytearray(4 * words), streams(4)
        return {
            "cpu/chacha20": (lambda: unmask_cpu(buffer, len(buffer), keys), len(keys) * size),
            "cpu/fold/float": (lambda: folds.fold(total, rows, weights), clients * size),
            "cpu/fold/ring": (lambda: folds.fold_ring(sums, ring), clients * size),
            **{f"cpu/median/n={n}": _median(self._cpu, stock[:n], total) for n in MEDIANS},
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


def _median(tiles: TorchTiles, rows: torch.Tensor, out: torch.Tensor) -> Call:
    return lambda: tiles.median(rows, out), 4.0 * rows.numel()


def _moved(case: str) -> float:
    """Return the bytes of memory traffic for 4 that the case counts; 4 compares with copy as is."""
    if case.startswith("fold/"):
        return 4 + 8 / folds.BATCH
    if case.startswith("median/"):
        return 4 + 4 / int(case.rpartition("=")[2])
    return 4
