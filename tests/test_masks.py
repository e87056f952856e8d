"""Mask streams: RFC vectors, another library, integer arithmetic; and that masks cancel."""

from __future__ import annotations

import hashlib
import itertools
import mmap
import os
from typing import TYPE_CHECKING, Any

import cryptography_vectors
import numpy as np
import pytest
from Crypto.Cipher import ChaCha20 as OtherChaCha20
from hypothesis import given, settings
from hypothesis import strategies as st

from umbel.protocol import masks
from umbel.protocol.masks import TILE_BYTES, apply, stream

if TYPE_CHECKING:
    from numpy.typing import NDArray

KEY = bytes(range(32))
NO_RESERVE = 0x4000  # MAP_NORESERVE of Linux: address space without memory


def _other(key: bytes, nbytes: int, start: int = 0) -> bytes:
    cipher = OtherChaCha20.new(key=key, nonce=bytes(12))
    cipher.seek(start)
    return cipher.encrypt(bytes(nbytes))


def _expected(message: bytes, split: int, streams: list[tuple[bytes, int]]) -> bytes:
    """Add and subtract word by word, with Python's integers."""
    sections = []
    for start, stop, width in ((0, split, 4), (split, len(message), 8)):
        for at in range(start, stop, width):
            word = int.from_bytes(message[at : at + width], "little")
            for key, sign in streams:
                word += sign * int.from_bytes(_other(key, width, at), "little")
            sections.append((word % 2 ** (8 * width)).to_bytes(width, "little"))
    return b"".join(sections)


def test_the_stream_of_rfc_8439() -> None:
    with cryptography_vectors.open_vector_file("ciphers/ChaCha20/rfc7539.txt", "r") as file:
        lines = [line.strip().split(" = ") for line in file if " = " in line]
    first = dict(lines[1:6])  # the one vector of the file with nonce 0
    assert int(first["NONCE"], 16) == int(first["INITIAL_BLOCK_COUNTER"]) == 0
    assert int(first["PLAINTEXT"], 16) == 0
    expected = bytes.fromhex(first["CIPHERTEXT"])
    assert stream(bytes.fromhex(first["KEY"]), len(expected)) == expected


def test_the_small_vectors_of_the_protocol() -> None:
    words = np.frombuffer(stream(KEY, 4_000_000), "<u4")
    assert [f"{word:08x}" for word in words[:4]] == ["7d2bfd39", "6a19c5d9", "7703bd8d", "494adcb8"]
    block = np.frombuffer(stream(KEY, 16, 64_000), "<u4")
    assert [f"{word:08x}" for word in block] == ["be95db20", "afeb495d", "adb6d424", "c1a6890a"]
    assert int(words.sum(dtype=np.uint64)) % 2**32 == 3231698836
    digest = "dc1630936402d68f1b6ffa6247de54ac774f006452eb3af3c8ff70638a66e1bb"
    assert hashlib.sha256(words.tobytes()).hexdigest() == digest


@given(st.binary(min_size=32, max_size=32), st.integers(0, 300), st.integers(0, 10_000))
def test_the_stream_is_that_of_another_library(key: bytes, nbytes: int, start: int) -> None:
    assert stream(bytearray(key), nbytes, start) == _other(key, nbytes, start)


def test_the_last_block_is_there_and_the_next_is_not() -> None:
    end = masks.MAX_STREAM_BYTES
    assert end == 256 * 2**30
    # With 8 zero bytes of nonce the other library counts in 64 bits and has a next block, too.
    other = OtherChaCha20.new(key=KEY, nonce=bytes(8))
    other.seek(end - 64)
    assert stream(KEY, 64, end - 64) == other.encrypt(bytes(64))
    for nbytes, start in ((65, end - 64), (1, end), (-1, 0), (1, -1)):
        with pytest.raises(ValueError, match="outside one ChaCha20 stream"):
            stream(KEY, nbytes, start)


def test_a_message_beyond_one_stream_is_refused_untouched() -> None:
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NO_RESERVE
    with mmap.mmap(-1, masks.MAX_STREAM_BYTES + 64, flags=flags) as message:
        view = memoryview(message)
        with pytest.raises(ValueError, match=f"at most {masks.MAX_STREAM_BYTES} bytes"):
            apply(view, 0, [(KEY, 1)])
        assert view[0] == 0
        view.release()


@given(
    low=st.integers(0, 6),
    high=st.integers(0, 20),
    seed=st.binary(min_size=1, max_size=1),
    signs=st.lists(st.sampled_from([1, -1]), max_size=4),
)
@settings(max_examples=40)
def test_apply_is_integer_arithmetic(low: int, high: int, seed: bytes, signs: list[int]) -> None:
    message = hashlib.shake_128(seed).digest(64 * low + 8 * high)
    streams = [(hashlib.sha256(seed + bytes([i])).digest(), sign) for i, sign in enumerate(signs)]
    buffer = bytearray(message)
    apply(buffer, 64 * low, streams)
    assert buffer == _expected(message, 64 * low, streams)


@pytest.mark.parametrize(
    ("split", "length"),
    [
        (TILE_BYTES, TILE_BYTES),
        (TILE_BYTES - 64, TILE_BYTES + 24),
        (TILE_BYTES + 64, TILE_BYTES + 72),
        (2 * TILE_BYTES + 128, 4 * TILE_BYTES + 8),
        (0, TILE_BYTES + 8),
    ],
)
def test_positions_go_on_across_tiles_and_sections(split: int, length: int) -> None:
    buffer = bytearray(length)
    apply(buffer, split, [(KEY, 1)])
    assert buffer == _other(KEY, length)
    # Subtracting from zero is the two's complement of each word.
    apply(buffer, split, [(KEY, -1), (KEY, -1)])
    for part, dtype in ((slice(0, split), "<u4"), (slice(split, length), "<u8")):
        words = np.frombuffer(buffer[part], dtype)
        mask = np.frombuffer(_other(KEY, length)[part], dtype)
        assert np.array_equal(words, np.zeros_like(mask) - mask)


def test_carries_stay_inside_their_word() -> None:
    buffer = bytearray(b"\xff" * 72)
    apply(buffer, 64, [(KEY, 1)])
    mask = _other(KEY, 72)
    low = [(int.from_bytes(mask[at : at + 4], "little") - 1) % 2**32 for at in range(0, 64, 4)]
    high = (int.from_bytes(mask[64:], "little") - 1) % 2**64
    assert np.frombuffer(buffer[:64], "<u4").tolist() == low
    assert int.from_bytes(buffer[64:], "little") == high


@given(st.integers(2, 7), st.binary(min_size=1, max_size=4))
@settings(max_examples=25)
def test_the_pair_masks_of_a_cohort_cancel(members: int, seed: bytes) -> None:
    """The sum of masked messages, minus the self masks, is the sum of the messages."""
    split, length = 128, 168
    vectors = [hashlib.shake_128(seed + bytes([i])).digest(length) for i in range(members)]
    pairs = {
        pair: hashlib.sha256(seed + bytes(pair)).digest()
        for pair in itertools.combinations(range(members), 2)
    }
    own = [hashlib.sha256(b"own" + seed + bytes([i])).digest() for i in range(members)]
    sums: list[NDArray[Any]] = [
        np.zeros(split // 4, np.uint32),
        np.zeros((length - split) // 8, np.uint64),
    ]
    clear = [total.copy() for total in sums]
    for i, vector in enumerate(vectors):
        buffer = bytearray(vector)
        mine = [(key, 1 if pair[0] == i else -1) for pair, key in pairs.items() if i in pair]
        apply(buffer, split, [(own[i], 1), *mine])
        assert buffer != vector
        for total, message in ((sums, buffer), (clear, vector)):
            total[0] += np.frombuffer(message[:split], "<u4")
            total[1] += np.frombuffer(message[split:], "<u8")
    result = bytearray(sums[0].tobytes() + sums[1].tobytes())
    apply(result, split, [(key, -1) for key in own])
    assert result == clear[0].tobytes() + clear[1].tobytes()


def test_a_part_of_a_larger_buffer_is_masked_in_place() -> None:
    buffer = bytearray(256)
    apply(memoryview(buffer)[64:192], 64, [(KEY, 1)])
    assert buffer == bytes(64) + _other(KEY, 128) + bytes(64)
    words = np.zeros(32, np.uint32)
    apply(words.data, 128, [(bytearray(KEY), 1)])
    assert words.tobytes() == _other(KEY, 128)


def test_nothing_to_do_changes_nothing() -> None:
    buffer = bytearray(b"12345678")
    apply(buffer, 0, [])
    assert buffer == b"12345678"
    apply(bytearray(), 0, [(KEY, 1)])


@pytest.mark.parametrize(
    ("length", "split", "streams", "message"),
    [
        (63, 0, [(KEY, 1)], "split 0 of 63 bytes"),
        (128, 32, [(KEY, 1)], "split 32 of 128 bytes"),
        (64, 128, [(KEY, 1)], "split 128 of 64 bytes"),
        (64, -64, [(KEY, 1)], "split -64 of 64 bytes"),
        (64, 64, [(KEY, 1), (KEY, 2)], "added .* or subtracted"),
        (64, 64, [(KEY, 1), (KEY, 0)], "added .* or subtracted"),
        (64, 64, [(KEY, 1), (KEY[:31], 1)], "key"),
    ],
)
def test_what_cannot_be_masked_is_refused_untouched(
    length: int, split: int, streams: list[tuple[bytes, int]], message: str
) -> None:
    buffer = bytearray(length)
    with pytest.raises(ValueError, match=message):
        apply(buffer, split, streams)
    assert buffer == bytes(length)


def test_a_read_only_message_is_refused() -> None:
    with pytest.raises(ValueError, match="read-only"):
        apply(memoryview(bytes(64)), 64, [(KEY, 1)])


# Uniformity of a masked zero vector. Keys are fixed, so that the tests are no lottery.


def _masked_zeros(nbytes: int, count: int) -> bytes:
    buffer = bytearray(nbytes)
    apply(buffer, nbytes, [(hashlib.sha256(bytes([i])).digest(), 1) for i in range(count)])
    return bytes(buffer)


@pytest.mark.parametrize("count", [1, 8])
def test_the_bytes_of_a_masked_zero_vector_are_uniform(count: int) -> None:
    counts = np.bincount(np.frombuffer(_masked_zeros(1 << 20, count), np.uint8), minlength=256)
    mean = (1 << 20) / 256
    chi2 = float(((counts - mean) ** 2 / mean).sum())
    # 255 degrees of freedom: mean 255, standard deviation sqrt(510) = 22.6; five of them.
    assert 255 - 113 < chi2 < 255 + 113


def _linear_complexity(bits: list[int]) -> int:
    """Berlekamp-Massey over GF(2); polynomials and the window are Python integers."""
    c, b, length, shift, window = 1, 1, 0, 1, 0
    for n, bit in enumerate(bits):
        window = window << 1 | bit  # bit i is the sequence at n - i
        if (c & window).bit_count() & 1:
            previous = c
            c ^= b << shift
            if 2 * length <= n:
                length, b, shift = n + 1 - length, previous, 0
        shift += 1
    return length


def test_the_lowest_bits_of_a_masked_zero_vector_have_no_short_recurrence() -> None:
    # A sum of Mersenne Twister streams has linear complexity 19,937 in its lowest bits,
    # whatever their number; 44,000 random bits have 22,000, give or take a few.
    bits = 44_000
    twister = np.random.RandomState(1).bytes(4 * bits)
    assert _linear_complexity((np.frombuffer(twister, "<u4") & 1).tolist()) == 19_937
    words = np.frombuffer(_masked_zeros(4 * bits, 8), "<u4")
    assert abs(_linear_complexity((words & 1).tolist()) - bits // 2) <= 20


def test_fresh_keys_give_fresh_streams() -> None:
    assert len({stream(os.urandom(32), 16) for _ in range(50)}) == 50


@pytest.mark.parametrize("size", [0, 8, 64, TILE_BYTES, 2 * TILE_BYTES + 24])
def test_a_written_stream_is_the_keys_own_from_its_start(size: int) -> None:
    buffer = bytearray(b"\xff" * size)  # of which nothing may be left
    masks.write(buffer, KEY)
    assert bytes(buffer) == _other(KEY, size)


def test_a_stream_is_written_with_a_whole_key_only() -> None:
    with pytest.raises(ValueError, match="key"):
        masks.write(bytearray(64), bytes(31))
