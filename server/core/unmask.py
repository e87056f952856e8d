"""Masks taken off a shard of a ring sum on the CPU: the tiled ChaCha20 of masks.py, on threads.

A shard begins anywhere in the message at a multiple of 64 bytes, one ChaCha20 block: every key's
stream is entered there, nothing before it is computed. Threads take ranges of whole 64 KiB; the
cipher and numpy let go of the interpreter's lock for pieces of that size, and for smaller ones the
hand-over costs what the second core gains. The bits do not depend on the number of threads.

Where numba is installed, the extra `[fast]`, and the processor has vectors of 512 bits, whole tiles
of uint32 words go through numba_chacha20.py, with the same bits. It is loaded and compiled beside
the first large unmasking, which does not wait for it (strategies/compiled.py).
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np

from ...protocol import masks
from ...protocol.errors import SettingsError
from ...strategies.compiled import Compiled

if TYPE_CHECKING:
    from collections.abc import Sequence

LEAST = 64 * 1024
"""Bytes of the smallest range of a thread."""
LARGE = 1 << 28
"""Bytes of key stream from which on the next unmasking had better be compiled: 40 ms."""
COMPILED = Compiled(".numba_chacha20", __package__)


def unmask(
    shard: memoryview | bytearray,
    split: int,
    streams: Sequence[tuple[bytes | bytearray, int]],
    *,
    start: int = 0,
    threads: int = 1,
) -> None:
    """Add (+1) or subtract (-1) every key's stream to or from a shard, in place.

    Args:
        shard: Bytes [start, start + len) of a message, writable, a multiple of 8.
        split: Bytes of the shard that are uint32 words, a multiple of 64; the others are uint64.
        streams: (32-byte key, +1 or -1) for each mask.
        start: Where the shard begins in the message, a multiple of 64.
        threads: How many to use at most.

    Raises:
        SettingsError: No thread is to work.
        ValueError: As masks.apply.
    """
    view = memoryview(shard).cast("B")
    if threads < 1:
        raise SettingsError("core.threads", "1 or more", threads)
    masks.check(len(view), split, streams, start)  # before any thread has written
    if len(view) * len(streams) >= LARGE:
        COMPILED.load_beside()
    cuts = ranges(len(view), threads)
    if len(cuts) < 2:  # noqa: PLR2004
        _apply(view, split, streams, start)
        return

    def part(low: int, high: int) -> None:
        inner = min(max(split - low, 0), high - low)
        _apply(view[low:high], inner, streams, start + low)

    with ThreadPoolExecutor(len(cuts)) as pool:
        for done in [pool.submit(part, low, high) for low, high in cuts]:
            done.result()


def _apply(
    view: memoryview, split: int, streams: Sequence[tuple[bytes | bytearray, int]], start: int
) -> None:
    """Do what masks.apply does, whole tiles by the compiled kernel where it is there."""
    whole = 0
    if (kernel := COMPILED.module) is not None and split >= kernel.TILE:
        whole = split - split % kernel.TILE
        words: Any = np.frombuffer(view, "<u4", whole // 4)
        kernel.add_streams(words, streams, start // masks.BLOCK_BYTES)
    masks.apply(view[whole:], split - whole, streams, start + whole)


def ranges(length: int, threads: int) -> list[tuple[int, int]]:
    """Return (first byte, end byte) of each thread's range: whole `LEAST`, but for the last."""
    per = -(-length // (threads * LEAST)) * LEAST
    return [(low, min(low + per, length)) for low in range(0, length, per)] if length else []
