"""One thread for the linear algebra of a process that is about to be forked from this one.

A fresh process is told by its environment (host/spawned.py). One that is forked from a caller has
the libraries loaded and their threads counted: how many there are decides how a product is cut, and
so its last bits, and several busy workers with several threads each are much slower than with one.
OpenBLAS has no other door than its C functions; numpy and scipy each bring a copy under names of
their own. It takes no such call after the fork, so the caller has one thread for a moment, too.
"""

from __future__ import annotations

import ctypes
import sys
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

_NAMES = tuple(
    (f"{prefix}openblas_get_num_threads{suffix}", f"{prefix}openblas_set_num_threads{suffix}")
    for prefix in ("", "scipy_")
    for suffix in ("", "64_")
)


@contextmanager
def one_thread() -> Iterator[None]:
    """Let OpenBLAS, in every copy that is loaded, and torch compute with one thread inside."""
    found = list(_libraries())
    torch = sys.modules.get("torch")
    if torch is not None:
        found.append((torch.get_num_threads, torch.set_num_threads))
    before = [count() for count, _ in found]
    for _, limit in found:
        limit(1)
    try:
        yield
    finally:
        for (_, limit), threads in zip(found, before, strict=True):
            limit(threads)


def _libraries() -> Iterator[tuple[Any, Any]]:
    """Yield the functions that get and set the number of threads of each OpenBLAS."""
    lines = Path("/proc/self/maps").read_text("utf-8", "replace").splitlines()
    paths = {line.split(maxsplit=5)[5] for line in lines if line.count("/")}
    for path in sorted(path for path in paths if "openblas" in Path(path).name):
        with suppress(OSError):
            library = ctypes.CDLL(path)
            for get, limit in _NAMES:
                if hasattr(library, limit):
                    yield getattr(library, get), getattr(library, limit)
