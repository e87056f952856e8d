"""The compiled key streams: the RFC's, and another library's over every tile, sign and counter."""

from __future__ import annotations

import hashlib
import importlib.util
import threading
from typing import TYPE_CHECKING, Any

import cryptography_vectors
import numpy as np
import pytest
from Crypto.Cipher import ChaCha20 as OtherChaCha20

from umbel.protocol import masks
from umbel.server.core import unmask
from umbel.strategies.compiled import Compiled

if TYPE_CHECKING:
    from numpy.typing import NDArray

if importlib.util.find_spec("numba") is None:
    pytest.skip("numba is not installed: it comes with umbel[fast]", allow_module_level=True)

from umbel.server.core import numba_chacha20
from umbel.server.core.numba_chacha20 import TILE

KEYS = [hashlib.sha256(bytes([i])).digest() for i in range(7)]
LAST = 2**32 - TILE // 64
"""Block at which the last tile of a stream begins."""


def _streams(signs: tuple[int, ...]) -> list[tuple[bytes | bytearray, int]]:
    return list(zip(KEYS, signs, strict=False))


def _message(nbytes: int) -> bytes:
    return hashlib.shake_128(b"message").digest(nbytes)


def _expected(message: bytes, streams: list[Any], block: int) -> NDArray[Any]:
    words = np.frombuffer(message, "<u4")
    for key, sign in streams:
        cipher = OtherChaCha20.new(key=key, nonce=bytes(12))
        cipher.seek(64 * block)
        noise = np.frombuffer(cipher.encrypt(bytes(len(message))), "<u4")
        words = words + noise if sign > 0 else words - noise
    return words


def test_the_stream_of_the_rfc() -> None:
    with cryptography_vectors.open_vector_file("ciphers/ChaCha20/rfc7539.txt", "r") as file:
        lines = [line.strip().split(" = ") for line in file if " = " in line]
    first = dict(lines[1:6])  # the one vector of the file with nonce 0
    words = np.zeros(TILE // 4, np.uint32)
    numba_chacha20.add_streams(words, [(bytes.fromhex(first["KEY"]), 1)], 0)
    expected = bytes.fromhex(first["CIPHERTEXT"])
    assert words.tobytes()[: len(expected)] == expected


@pytest.mark.parametrize("block", [0, 1, 12345, 2**31 - 7, LAST - 3 * TILE // 64])
@pytest.mark.parametrize("signs", [(1,), (-1,), (1, -1, -1, 1, -1, 1, 1), (-1, -1), (1, 1), ()])
def test_tiles_meet_their_part_of_every_stream(signs: tuple[int, ...], block: int) -> None:
    message = _message(3 * TILE)
    words = np.frombuffer(bytearray(message), np.uint32)
    numba_chacha20.add_streams(words, _streams(signs), block)
    assert np.array_equal(words, _expected(message, _streams(signs), block))


def test_the_last_tile_of_a_stream_is_reached() -> None:
    words = np.zeros(TILE // 4, np.uint32)
    numba_chacha20.add_streams(words, [(KEYS[0], 1)], LAST)
    assert words.tobytes() == masks.stream(KEYS[0], TILE, 64 * LAST)


def test_the_keys_are_left_as_they_were() -> None:
    keys = [bytearray(key) for key in KEYS]
    numba_chacha20.add_streams(np.zeros(TILE // 4, np.uint32), [(key, -1) for key in keys], 0)
    assert keys == KEYS


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("split", [64, TILE - 64, TILE, 9 * TILE + 192, 12 * TILE])
def test_a_shard_is_the_same_with_the_kernel_and_without(
    split: int, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unmask.COMPILED, "module", numba_chacha20)
    message, streams = _message(12 * TILE + 40), _streams((1, -1, 1))
    shard, reference = bytearray(message), bytearray(message)
    unmask.unmask(shard, split, streams, start=6400, threads=threads)
    masks.apply(reference, split, streams, 6400)
    assert shard == reference


def test_the_first_large_unmasking_does_not_wait_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    found = Compiled(".numba_chacha20", "umbel.server.core")
    monkeypatch.setattr(unmask, "COMPILED", found)
    monkeypatch.setattr(unmask, "LARGE", 2048)
    monkeypatch.setattr(numba_chacha20, "fits", lambda: True)
    shard = bytearray(1024)
    unmask.unmask(shard, 1024, [(KEYS[0], 1)])
    assert found.module is None
    unmask.unmask(shard, 1024, [(KEYS[0], -1), (KEYS[1], 1)])
    for thread in threading.enumerate():
        if thread.name == "umbel-compile":
            thread.join(60)
    assert found.module is numba_chacha20
    assert shard == masks.stream(KEYS[1], 1024)


def test_where_vectors_are_short_the_library_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numba_chacha20, "fits", lambda: False)
    assert not Compiled(".numba_chacha20", "umbel.server.core").load()
