"""Unmasking: GB/s of ChaCha20 key stream generated and taken off a sum, beside Flower's SecAgg+.

    chacha20/threads=1    the server's kernel, one thread
    chacha20/threads=2    the same on two

A GB is one of key stream, 4 bytes x words x masks. How it is measured: docs/benchmarks.md.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Annotated

import typer

from . import flower_masks as flower
from .record import Measurement, interleave
from .secure import key_stream
from ..protocol.errors import SettingsError, VoidRound
from ..server.core.unmask import COMPILED, unmask

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Streams = list[tuple[bytes, int]]

PEER_MASKS = 3
"""Masks of Flower's that are timed; each takes as long as the others."""
THREADS = (1, 2)
_BLOCK = 16
_NEED = {"words": _BLOCK, "masks": 1, "runs": 1}


def run(
    words: Annotated[int, typer.Option(help="Words of the sum, a multiple of 16.")] = 8_000_000,
    masks: Annotated[int, typer.Option(help="Masks that it carries.")] = 24,
    runs: Annotated[int, typer.Option(help="Interleaved runs; a figure needs five.")] = 5,
) -> Iterator[Measurement]:
    """Yield every case; the sizes are checked before anything is measured."""
    for name, value in {"words": words, "masks": masks, "runs": runs}.items():
        if value < _NEED[name]:
            raise SettingsError(f"--{name}", f"{_NEED[name]} or more", value)
    if words % _BLOCK:
        raise SettingsError("--words", f"a multiple of {_BLOCK}", words)
    said = "compiled by numba" if COMPILED.load() else "that of the bare cipher's library"
    print(f"umbel bench unmask: the kernel is {said}", file=sys.stderr, flush=True)
    streams = [(os.urandom(32), 1 if place % 2 else -1) for place in range(masks)]
    total = bytearray(4 * words)
    _agree(total, streams)
    calls = {f"chacha20/threads={n}": lambda n=n: _unmask(total, streams, n) for n in THREADS}
    limits = {f"limit/threads={n}": lambda n=n: _bare(4 * words, masks, n) for n in THREADS}
    peer = {"peer": lambda: flower.unmask(words, PEER_MASKS)}
    found = interleave({**calls, **limits, **peer}, runs)
    stream = 4.0 * words * masks / 1e9
    for n in THREADS:
        yield Measurement(
            bench="unmask",
            case=f"chacha20/threads={n}",
            unit="GB/s",
            samples=[stream / seconds for seconds in found[f"chacha20/threads={n}"]],
            peer=[stream / masks * PEER_MASKS / seconds for seconds in found["peer"]],
            peer_name=flower.NAME,
            limit=stream / statistics.median(found[f"limit/threads={n}"]),
            limit_name=f"bare ChaCha20 key stream, {n} thread{'s' * (n > 1)}",
        )


def _agree(total: bytearray, streams: Streams) -> None:
    """Take off on two threads what one has put on.

    Raises:
        VoidRound: Something is left.
    """
    unmask(total, len(total), streams)
    unmask(total, len(total), [(key, -sign) for key, sign in streams], threads=2)
    if any(total):
        raise VoidRound("bench unmask: the masks that were added did not come off again")


def _unmask(total: bytearray, streams: Streams, threads: int) -> float:
    clock = _clock(threads)
    start = clock()
    unmask(total, len(total), streams, threads=threads)
    return clock() - start


def _bare(nbytes: int, masks: int, threads: int) -> float:
    """Return the seconds of the key streams alone, a part of every stream for each thread."""
    clock = _clock(threads)
    if threads == 1:
        return key_stream(masks, nbytes, clock)
    start = clock()
    with ThreadPoolExecutor(threads) as pool:
        for done in [
            pool.submit(key_stream, masks, nbytes // threads, clock) for _ in range(threads)
        ]:
            done.result()
    return clock() - start


def _clock(threads: int) -> Callable[[], float]:
    """Return the CPU clock of one thread, the wall's for several."""
    return time.thread_time if threads == 1 else time.perf_counter
