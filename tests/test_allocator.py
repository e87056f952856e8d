"""Memory for frames is kept when it is freed, and large memory is not."""

from __future__ import annotations

import ctypes
import resource
import subprocess
import sys

import pytest

from umbel.server import allocator

if not hasattr(ctypes.CDLL(None), "mallopt"):
    pytest.skip("this C library has no mallopt", allow_module_level=True)

FRAMES = """
import resource
from umbel.server import allocator
assert allocator.keep_frames()
def faults(size, times):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(times):
        b"x" * size
    return (resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) / times
faults(1 << 20, 4)
print(faults(1 << 20, 50), faults(allocator.LARGE, 8))
"""


def test_a_frame_takes_no_new_pages_and_a_model_does() -> None:
    said = subprocess.run(
        [sys.executable, "-c", FRAMES], capture_output=True, text=True, check=True
    )
    frame, large = map(float, said.stdout.split())
    page = resource.getpagesize()
    assert frame < 0.1 * (1 << 20) / page
    assert large > 0.9 * allocator.LARGE / page
