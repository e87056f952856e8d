"""Memory of zeros: what it holds, and how the kernel is asked for it."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from umbel.server.core.pages import LARGE, zeros
from umbel.server.core.world import World

SMAPS = Path("/proc/self/smaps")
HUGE = Path("/sys/kernel/mm/transparent_hugepage/enabled")


@pytest.mark.parametrize("size", [0, 1, LARGE - 1, LARGE, LARGE + 1, 8 * LARGE + 24])
def test_it_is_so_many_writable_zeros(size: int) -> None:
    view = zeros(size)
    assert (len(view), view.readonly) == (size, False)
    numbers = np.frombuffer(view, np.uint8)
    assert not numbers.any()
    numbers[:] = 7
    assert bytes(view[-1:]) == b"\7"[:size]
    assert not np.frombuffer(zeros(size), np.uint8).any()


def test_without_room_it_is_a_memory_error_as_callers_expect() -> None:
    with pytest.raises(MemoryError, match="Cannot allocate memory"):
        World().open(1 << 60, 0)


@pytest.mark.skipif(not (SMAPS.exists() and HUGE.exists()), reason="this kernel has no huge pages")
def test_a_large_one_is_advised_to_be_in_huge_pages() -> None:
    view = zeros(8 * LARGE)
    address = np.frombuffer(view, np.uint8).ctypes.data
    flags = ""
    for mapping in re.split(r"\n(?=[0-9a-f]+-[0-9a-f]+ )", SMAPS.read_text()):
        low, high = (int(end, 16) for end in mapping.split(maxsplit=1)[0].split("-"))
        if low <= address < high:
            flags = mapping.rpartition("VmFlags:")[2]
    assert "hg" in flags.split()
