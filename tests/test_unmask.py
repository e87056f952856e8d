"""Unmasking of shards: another library's stream at any place, on any number of threads."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from Crypto.Cipher import ChaCha20 as OtherChaCha20
from hypothesis import given, settings
from hypothesis import strategies as st

from umbel.protocol import masks
from umbel.protocol.errors import SettingsError
from umbel.server.core.shards import shards
from umbel.server.core.unmask import LEAST, ranges, unmask

KEYS = [hashlib.sha256(bytes([i])).digest() for i in range(4)]
STREAMS = [(key, 1 if place % 2 else -1) for place, key in enumerate(KEYS)]


def _other(key: bytes, nbytes: int, start: int) -> bytes:
    cipher = OtherChaCha20.new(key=key, nonce=bytes(12))
    cipher.seek(start)
    return cipher.encrypt(bytes(nbytes))


def _expected(message: bytes, split: int, start: int) -> bytes:
    """Both sections in numpy's unsigned words, by the other library's streams."""
    found = b""
    for low, high, dtype in ((0, split, "<u4"), (split, len(message), "<u8")):
        words = np.frombuffer(message[low:high], dtype).copy()
        for key, sign in STREAMS:
            mask = np.frombuffer(_other(key, high - low, start + low), dtype)
            words = words + mask if sign > 0 else words - mask
        found += words.tobytes()
    return found


@given(
    blocks=st.integers(0, 2**26),
    low=st.integers(0, 40),
    high=st.integers(0, 40),
    threads=st.integers(1, 4),
)
@settings(max_examples=40, deadline=None)
def test_a_shard_anywhere_meets_its_part_of_the_stream(
    blocks: int, low: int, high: int, threads: int
) -> None:
    message = hashlib.shake_128(b"message").digest(64 * low + 8 * high)
    shard = bytearray(message)
    unmask(shard, 64 * low, STREAMS, start=64 * blocks, threads=threads)
    assert shard == _expected(message, 64 * low, 64 * blocks)


@pytest.mark.parametrize("threads", [1, 2, 3, 7])
@pytest.mark.parametrize("split", [0, LEAST - 64, 2 * LEAST, 4 * LEAST + 128])
def test_threads_give_the_bits_of_one(threads: int, split: int) -> None:
    message = hashlib.shake_128(b"long").digest(4 * LEAST + 128 + 40)
    shard = bytearray(message)
    unmask(shard, split, STREAMS, start=192, threads=threads)
    assert shard == _expected(message, split, 192)


@pytest.mark.parametrize("world", [1, 2, 5, 8])
def test_the_shards_of_any_world_are_unmasked_as_the_whole(world: int) -> None:
    whole = bytearray(hashlib.shake_128(b"sum").digest(4 * 9008))
    apart = bytearray(whole)
    masks.apply(whole, len(whole), STREAMS)
    for low, high in shards(9008, world):
        part = memoryview(apart)[4 * low : 4 * high]
        unmask(part, len(part), STREAMS, start=4 * low)
    assert apart == whole


def test_the_last_blocks_of_a_stream_are_reached_and_not_passed() -> None:
    end, shard = masks.MAX_STREAM_BYTES, bytearray(128)
    unmask(shard, 128, [(KEYS[0], 1)], start=end - 128)
    assert shard == masks.stream(KEYS[0], 128, end - 128)
    with pytest.raises(ValueError, match="at most"):
        unmask(bytearray(128), 128, [(KEYS[0], 1)], start=end - 64)


def test_ranges_by_hand() -> None:
    assert ranges(0, 4) == []
    assert ranges(100, 4) == [(0, 100)]
    assert ranges(LEAST + 8, 2) == [(0, LEAST), (LEAST, LEAST + 8)]
    # five parts of 64 KiB and a rest for two: three each
    assert ranges(5 * LEAST + 8, 2) == [(0, 3 * LEAST), (3 * LEAST, 5 * LEAST + 8)]


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("start", "split"), [(32, 64), (-64, 64), (0, 32)])
def test_a_shard_between_blocks_is_refused_untouched(threads: int, start: int, split: int) -> None:
    shard = bytearray(2 * LEAST)
    with pytest.raises(ValueError, match=r"multiples? of 64"):
        unmask(shard, split, STREAMS, start=start, threads=threads)
    assert not any(shard)


def test_a_wrong_key_is_refused_before_anything_is_written() -> None:
    for threads in (1, 2):
        shard = bytearray(2 * LEAST)
        with pytest.raises(ValueError, match="key"):
            unmask(shard, 0, [(KEYS[0], 1), (KEYS[0][:31], 1)], threads=threads)
        assert not any(shard)


def test_no_thread_is_none() -> None:
    with pytest.raises(SettingsError, match="1 or more"):
        unmask(bytearray(8), 0, STREAMS, threads=0)
