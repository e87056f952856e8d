"""Entropy: what is filled, what is refused, what is zero afterwards."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from umbel.protocol import entropy
from umbel.protocol.errors import StateError

if TYPE_CHECKING:
    from pathlib import Path


def test_the_operating_system_fills_the_whole_buffer_and_nothing_else() -> None:
    buffer = bytearray(96)
    entropy.os_entropy(memoryview(buffer)[32:64])
    assert buffer[:32] == buffer[64:] == bytes(32)
    # 32 bytes repeat, or leave their last 16 at zero, with probability 2^-128 or less.
    assert any(buffer[48:64])
    assert entropy.random_bytes(32, entropy.os_entropy) != buffer[32:64]


def test_long_buffers_are_filled_to_the_end() -> None:
    # More than one read of the kernel; 64 zero bytes in a row have probability below 2^-480.
    buffer = entropy.random_bytes(40 << 20, entropy.os_entropy)
    assert bytes(64) not in (buffer[:64], buffer[-64:], buffer[len(buffer) // 2 :][:64])


def test_an_empty_buffer_needs_no_source() -> None:
    assert entropy.random_bytes(0, entropy.os_entropy) == b""


def test_random_bytes_asks_the_given_source() -> None:
    def sevens(buffer: bytearray | memoryview) -> None:
        buffer[:] = b"\x07" * len(buffer)

    assert entropy.random_bytes(3, sevens) == b"\x07\x07\x07"


def test_a_source_that_ends_early_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "short"
    source.write_bytes(b"12345")
    monkeypatch.setattr(entropy, "SOURCE", str(source))
    with pytest.raises(StateError, match="27 more random bytes, got end of file"):
        entropy.os_entropy(bytearray(32))


def test_a_source_that_is_missing_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(entropy, "SOURCE", str(tmp_path / "none"))
    with pytest.raises(StateError, match="no secret can be made"):
        entropy.os_entropy(bytearray(32))


def test_wipe_zeroes_in_place() -> None:
    buffer = bytearray(b"secret")
    matrix = np.arange(12.0).reshape(3, 4)
    entropy.wipe(buffer, matrix[:, 1::2])
    assert buffer == bytes(6)
    assert matrix.tolist() == [[0, 0, 2, 0], [4, 0, 6, 0], [8, 0, 10, 0]]
    with memoryview(buffer):  # wiping never resizes, so exported views do not matter
        entropy.wipe(buffer)


def test_wipe_refuses_what_it_cannot_zero() -> None:
    array = np.frombuffer(b"secret", np.uint8)
    with pytest.raises(ValueError, match="read-only"):
        entropy.wipe(array)
