"""Zeros that nobody has written take no memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from umbel.server.core.pages import LARGE, zeros


@pytest.mark.parametrize("size", [0, 1, LARGE - 1, LARGE, LARGE + 8])
def test_they_are_zeros_and_writable(size: int) -> None:
    found = zeros(size)
    assert (len(found), found.readonly) == (size, False)
    assert not any(found[:4096])
    assert not any(found[-4096:])
    found[-1:] = b"x"[:size]
    assert bytes(found[-1:]) == b"x"[:size]


def test_what_is_not_written_takes_no_memory() -> None:
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text("ascii").split()[1]) * 4096

    before = resident()
    found = zeros(64 << 20)
    assert resident() - before < 8 << 20
    found[: 32 << 20] = bytes(32 << 20)
    assert resident() - before > 24 << 20
    del found
    assert resident() - before < 16 << 20
