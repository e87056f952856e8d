"""Masks added to, or taken off, a ring sum on a GPU: fused ChaCha20, the key stream never stored.

The stream is that of protocol/masks.py (RFC 8439, nonce 0): word w of a message meets word w mod 16
of block w // 16 of each key's stream. One lane holds one block of 64 bytes in registers: it loads
16 words of the sum, adds every key's stream to them, and stores them once. ALU-bound from
one mask on; memory traffic is 8 bytes a word, whatever the number of masks. There is no table and
no branch that depends on a key.

A lane's counter is (first block + its own) modulo 2^32, as the RFC's is; `unmask` refuses a range
in which it would start again. On CPU the same work is unmask.py; without a GPU this kernel runs in
Triton's interpreter (TRITON_INTERPRET=1), which is how its bits are tested.
"""

# Registers are a tuple that grows; Triton's compiler knows `+` and no unpacking.
# ruff: noqa: RUF005
# mypy: disable-error-code="assignment, untyped-decorator"

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import triton
import triton.language as tl

from ...protocol.errors import SettingsError
from ...protocol.masks import BLOCK_BYTES, MAX_STREAM_BYTES

if TYPE_CHECKING:
    from collections.abc import Sequence

BLOCK, WARPS = 128, 4
"""Lanes of a program, one a thread: with two blocks a thread the registers spill."""
WORDS = BLOCK_BYTES // 4


@triton.jit
def _quarter(a, b, c, d):  # type: ignore[no-untyped-def]
    """RFC 8439, 2.1."""
    a += b
    d ^= a
    d = (d << 16) | (d >> 16)
    c += d
    b ^= c
    b = (b << 12) | (b >> 20)
    a += b
    d ^= a
    d = (d << 8) | (d >> 24)
    c += d
    b ^= c
    b = (b << 7) | (b >> 25)
    return a, b, c, d


@triton.jit
def _double_round(x):  # type: ignore[no-untyped-def]
    """RFC 8439, 2.3: the four columns, then the four diagonals."""
    x0, x4, x8, x12 = _quarter(x[0], x[4], x[8], x[12])
    x1, x5, x9, x13 = _quarter(x[1], x[5], x[9], x[13])
    x2, x6, x10, x14 = _quarter(x[2], x[6], x[10], x[14])
    x3, x7, x11, x15 = _quarter(x[3], x[7], x[11], x[15])
    x0, x5, x10, x15 = _quarter(x0, x5, x10, x15)
    x1, x6, x11, x12 = _quarter(x1, x6, x11, x12)
    x2, x7, x8, x13 = _quarter(x2, x7, x8, x13)
    x3, x4, x9, x14 = _quarter(x3, x4, x9, x14)
    return (x0, x1, x2, x3, x4, x5, x6, x7, x8, x9, x10, x11, x12, x13, x14, x15)


@triton.jit
def _state(key, nonce, counter):  # type: ignore[no-untyped-def]
    """RFC 8439, 2.3: four constants, the key, the counter, the nonce; a register for each."""
    zero = counter - counter
    state = (zero + 0x61707865, zero + 0x3320646E, zero + 0x79622D32, zero + 0x6B206574)
    for j in tl.static_range(8):
        state = state + (zero + tl.load(key + j).to(tl.uint32, bitcast=True),)
    state = state + (counter,)
    for j in tl.static_range(3):
        state = state + (zero + tl.load(nonce + j).to(tl.uint32, bitcast=True),)
    return state


@triton.jit
def add_streams(total, out, keys, nonces, signs, n_words, n_keys, first, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: N803, PLR0913, PLR0917
    """Write `total` plus `signs` times the streams of `keys`, words modulo 2^32, to `out`.

    Args:
        total: Pointer to int32 words; `out` may be the same.
        out: Pointer to int32 words.
        keys: Pointer to 8 words a key.
        nonces: Pointer to 3 words a key.
        signs: Pointer to one word a key, 1 or -1.
        n_words: Words of `total`.
        n_keys: Keys.
        first: Block of the stream that word 0 of `total` meets.
        BLOCK: Lanes of a program.
    """
    block = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    counter = (block + first).to(tl.uint32)
    word = block * 16
    y = ()
    for j in tl.static_range(16):
        mine = tl.load(total + word + j, mask=word + j < n_words, other=0)
        y = y + (mine.to(tl.uint32, bitcast=True),)
    for k in range(n_keys):
        sign = tl.load(signs + k).to(tl.uint32, bitcast=True)
        start = _state(keys + 8 * k, nonces + 3 * k, counter)
        x = start
        for _ in tl.static_range(10):
            x = _double_round(x)
        z = ()
        for j in tl.static_range(16):
            z = z + (y[j] + sign * (x[j] + start[j]),)
        y = z
    for j in tl.static_range(16):
        tl.store(out + word + j, y[j].to(tl.int32, bitcast=True), mask=word + j < n_words)


def unmask(
    total: Any, streams: Sequence[tuple[bytes | bytearray, int]], first_word: int = 0
) -> None:
    """Add (+1) or subtract (-1) every key's stream to or from a shard of a ring sum, in place.

    Args:
        total: A torch tensor of int32 words, contiguous, on a GPU (or the CPU, interpreted).
        streams: (32-byte key, +1 or -1) for each mask.
        first_word: Where the shard begins in the message, a multiple of 16.

    Raises:
        SettingsError: The start is none, the shard ends beyond a key's 2^32 blocks, or a
            key or sign is wrong.
    """
    if first_word % WORDS or first_word < 0 or 4 * (first_word + len(total)) > MAX_STREAM_BYTES:
        expected = f"a multiple of {WORDS}, and an end within {MAX_STREAM_BYTES} bytes"
        raise SettingsError("unmask shard", expected, (first_word, len(total)))
    if any(len(key) != 32 or sign not in {1, -1} for key, sign in streams):  # noqa: PLR2004
        raise SettingsError("unmask streams", "keys of 32 bytes with +1 or -1", "others")
    if not streams or not len(total):
        return
    joined = np.frombuffer(b"".join(key for key, _ in streams), np.int32)
    keys = total.new_tensor(joined.reshape(-1, 8))
    signs = total.new_tensor([sign for _, sign in streams])
    launch(total, keys, total.new_zeros(len(streams), 3), signs, first_word // WORDS)
    keys.zero_()


def launch(total: Any, keys: Any, nonces: Any, signs: Any, first: int) -> None:
    """Start the kernel over `total`, in place: tensors as `add_streams` takes them."""
    blocks = triton.cdiv(len(total), WORDS)
    add_streams[(triton.cdiv(blocks, BLOCK),)](
        total, total, keys, nonces, signs, len(total), len(keys), first, BLOCK, num_warps=WARPS
    )
