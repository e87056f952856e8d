"""The masks: ChaCha20 key streams added to a message, or subtracted from it, in place.

The stream of a key is ChaCha20 (RFC 8439) with nonce 0 and counter 0; the byte position in
the stream is the byte position in the message, and one key masks one message, ever. Words
are little-endian, modulo 2^32 below `split` and modulo 2^64 from there on.

Work goes in tiles that stay in the core's cache, every stream over one tile before the next
tile: the message is read and written once, whatever the number of streams.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20

from .entropy import wipe

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cryptography.hazmat.primitives.ciphers import CipherContext

BLOCK_BYTES = 64
KEY_BYTES = 32
MAX_STREAM_BYTES = 2**32 * BLOCK_BYTES
TILE_BYTES = 256 * 1024
_ZEROS = bytes(TILE_BYTES)


def apply(
    buffer: memoryview | bytearray,
    split: int,
    streams: Sequence[tuple[bytes | bytearray, int]],
    start: int = 0,
) -> None:
    """Add or subtract the stream of every key to or from a message, or a shard of it, in place.

    Args:
        buffer: The message: uint32 words in [0, split), uint64 words in [split, end), all
            little-endian; a multiple of 8 bytes.
        split: Bytes of the first section, a multiple of 64.
        streams: (32-byte key, +1 to add or -1 to subtract) for each mask.
        start: Where `buffer` begins in its message, a multiple of 64: the streams are entered
            there, and nothing before is computed.

    Raises:
        ValueError: A length, a key or a sign is wrong, or the message is longer than the
            2^32 blocks of one stream: the block counter would start again.
    """
    view = memoryview(buffer).cast("B")
    check(len(view), split, streams, start)
    block = start // BLOCK_BYTES
    keyed = [(_encryptor(key, block), np.add if sign > 0 else np.subtract) for key, sign in streams]
    noise = bytearray(min(TILE_BYTES, len(view)))
    for first, stop, dtype in ((0, split, "<u4"), (split, len(view), "<u8")):
        for low in range(first, stop, TILE_BYTES):
            size = min(TILE_BYTES, stop - low)
            words = np.frombuffer(view[low : low + size], dtype)
            mask = np.frombuffer(noise, dtype, size // words.itemsize)
            source = memoryview(_ZEROS)[:size]
            for encryptor, ufunc in keyed:
                encryptor.update_into(source, noise)
                ufunc(words, mask, out=words)
    wipe(noise)


def write(buffer: memoryview | bytearray, key: bytes | bytearray) -> None:
    """Write a key's stream over a buffer, from the stream's start on.

    Raises:
        ValueError: The key is none, or the buffer is longer than one stream.
    """
    view = memoryview(buffer).cast("B")
    check(len(view), 0, [])
    encryptor, zeros = _encryptor(key), memoryview(_ZEROS)
    for low in range(0, len(view), TILE_BYTES):
        part = view[low : low + TILE_BYTES]
        encryptor.update_into(zeros[: len(part)], part)


def stream(key: bytes | bytearray, nbytes: int, start: int = 0) -> bytes:
    """Return `nbytes` of a key's stream from byte `start` on.

    Raises:
        ValueError: A negative argument, or an end beyond the stream's 2^32 blocks.
    """
    if start < 0 or nbytes < 0 or start + nbytes > MAX_STREAM_BYTES:
        raise ValueError(f"bytes {start} to {start + nbytes} lie outside one ChaCha20 stream")
    block, skip = divmod(start, BLOCK_BYTES)
    return _encryptor(key, block).update(bytes(skip + nbytes))[skip:]


def _encryptor(key: bytes | bytearray, block: int = 0) -> CipherContext:
    """Return a context at the start of a block; the nonce is LE32 counter, then 12 zeros."""
    nonce = block.to_bytes(4, "little") + bytes(12)
    return Cipher(ChaCha20(key, nonce), mode=None).encryptor()


def check(
    length: int,
    split: int,
    streams: Sequence[tuple[bytes | bytearray, int]],
    start: int = 0,
) -> None:
    """Refuse lengths, keys and signs that `apply` cannot take.

    Raises:
        ValueError: As `apply`.
    """
    if start < 0 or start % BLOCK_BYTES:
        raise ValueError(f"start {start}: expected a multiple of {BLOCK_BYTES}")
    if start + length > MAX_STREAM_BYTES:
        raise ValueError(f"a message has at most {MAX_STREAM_BYTES} bytes, got {start + length}")
    if length % 8 or not 0 <= split <= length or split % BLOCK_BYTES:
        raise ValueError(f"split {split} of {length} bytes: expected multiples of 64 and of 8")
    if any(sign not in {1, -1} for _, sign in streams):
        raise ValueError("a stream is added (+1) or subtracted (-1)")
    if any(len(key) != KEY_BYTES for key, _ in streams):
        raise ValueError(f"a key has {KEY_BYTES} bytes")
