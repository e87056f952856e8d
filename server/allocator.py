"""How the C library keeps memory that was freed, for a process that receives all day.

gRPC allocates what it reads, a megabyte at a time. By its defaults glibc gives such memory back to
the kernel at once and gets it anew, page by page, for the next frame: a fifth of a gateway's time.
"""

from __future__ import annotations

import ctypes

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""M_TRIM_THRESHOLD and M_MMAP_THRESHOLD of malloc.h."""
KEPT = 32 << 20
"""Bytes at the end of a heap that are kept for the next allocation."""
LARGE = 4 << 20
"""Bytes from which on an allocation is a mapping of its own, given back when it is freed: models
and slots are, what holds a frame is not."""


def keep_frames() -> bool:
    """Set the two thresholds; say whether this C library knows them."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:  # musl, macOS
        return False
    return bool(mallopt(_MMAP_THRESHOLD, LARGE) and mallopt(_TRIM_THRESHOLD, KEPT))
