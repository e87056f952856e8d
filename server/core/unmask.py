"""Masks taken off a shard of a ring sum on the CPU: the tiled ChaCha20 of masks.py, on threads.

A shard begins anywhere in the message at a multiple of 64 bytes, one ChaCha20 block: every key's
stream is entered there, nothing before it is computed. Threads take ranges of whole 64 KiB; the
cipher and numpy let go of the interpreter's lock for pieces of that size, and for smaller ones the
hand-over costs what the second core gains. The bits do not depend on the number of threads.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from ...protocol import masks
from ...protocol.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Sequence

LEAST = 64 * 1024
"""Bytes of the smallest range of a thread."""


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
    cuts = ranges(len(view), threads)
    if len(cuts) < 2:  # noqa: PLR2004
        masks.apply(view, split, streams, start)
        return
    masks.check(len(view), split, streams, start)  # before any thread has written

    def part(low: int, high: int) -> None:
        inner = min(max(split - low, 0), high - low)
        masks.apply(view[low:high], inner, streams, start + low)

    with ThreadPoolExecutor(len(cuts)) as pool:
        for done in [pool.submit(part, low, high) for low, high in cuts]:
            done.result()


def ranges(length: int, threads: int) -> list[tuple[int, int]]:
    """Return (first byte, end byte) of each thread's range: whole `LEAST`, but for the last."""
    per = -(-length // (threads * LEAST)) * LEAST
    return [(low, min(low + per, length)) for low in range(0, length, per)] if length else []
