"""Attacks on the numbers: masks that are no noise, codes that overflow or are biased, drift.

Reference list: 17, 18, 20 and 25, in short form: test_codec.py, test_masks.py and test_layout.py
have the rest.
"""

from __future__ import annotations

import hashlib
import hmac

import numpy as np
import pytest
from Crypto.Cipher import ChaCha20

from umbel.protocol import masks
from umbel.protocol.codec import Codec, headroom
from umbel.protocol.errors import SettingsError, VoidRound
from umbel.protocol.layout import MessageLayout
from umbel.protocol.manifest import Manifest
from umbel.tests.actors import SPLIT, Game, agreed
from umbel.tests.opened import opened

# ---- 20: the masks are noise ---------------------------------------------------------------------


def _linear_complexity(bits: list[int]) -> int:
    """Return the length of the shortest GF(2) register of a sequence: Berlekamp and Massey.

    Polynomials are integers; `window` holds the sequence so far, the last bit lowest.
    """
    current, before, length, since, window = 1, 1, 0, 1, 0
    for position, bit in enumerate(bits):
        window = window << 1 | bit
        if (current & window).bit_count() & 1:
            kept = current
            current ^= before << since
            if 2 * length <= position:
                length, before, since = position + 1 - length, kept, 0
        since += 1
    return length


def test_whoever_attacks_a_masked_zero_vector_by_linear_algebra_or_statistics_fails() -> None:
    """MT19937's low bits are 19,937 long in GF(2), for any sum of its streams (F2)."""
    count = 44_000
    twister = np.random.RandomState(7).randint(0, 2**32, count, dtype=np.uint64)
    assert _linear_complexity((twister & 1).tolist()) == 19937
    game = Game(5).to_shared()
    zeros = bytearray(4 * count)
    step = game.members[0].inbox(game.inboxes[0], zeros, 4 * count)
    assert step.message.masked.bytes == 4 * count
    low = (np.frombuffer(zeros, "<u4") & 1).tolist()
    assert abs(_linear_complexity(low) - count // 2) < 40  # P of more: about 2^-78
    observed = np.bincount(np.frombuffer(zeros, np.uint8), minlength=256)
    expected = len(zeros) / 256
    chi2 = float(((observed - expected) ** 2 / expected).sum())
    assert 140 < chi2 < 390  # 255 degrees of freedom, 255 +- 5 sigma (22.6)


# ---- 25: another implementation ------------------------------------------------------------------


def _hkdf(ikm: bytes, salt: bytes, info: bytes) -> bytes:
    """RFC 5869 with one block of output, from the standard library."""
    prk = hmac.new(salt, ikm, hashlib.sha256).digest()
    return hmac.new(prk, info + b"\x01", hashlib.sha256).digest()


def test_another_implementation_takes_the_masks_off_to_the_bit() -> None:
    """Python integers, hmac and pycryptodome in place of numpy and OpenSSL."""
    game = Game(6, terms=agreed(round=3)).to_masked()
    place = 2
    actor, own = game.members[place], game.people[place].id
    seed, mask = bytes(actor._seed), actor._keys()[0]
    streams = [(_hkdf(seed, actor.ctx, b"umbel/A/1/self" + own), 1)]
    for other in game.around(place):
        entry = game.server.entries[other]
        low, high = sorted([own, entry.id])
        info = b"umbel/A/1/pair" + low + high
        shared = bytes(mask.exchange(entry.mask_pk))
        streams.append((_hkdf(shared, actor.ctx, info), 1 if own < entry.id else -1))
    whole = game.masked[place]
    noise = [
        (ChaCha20.new(key=key, nonce=bytes(12)).encrypt(bytes(len(whole))), sign)
        for key, sign in streams
    ]
    bare = b""
    for start, stop, size in ((0, SPLIT, 4), (SPLIT, len(whole), 8)):
        for at in range(start, stop, size):
            word = int.from_bytes(whole[at : at + size], "little")
            word -= sum(s * int.from_bytes(n[at : at + size], "little") for n, s in noise)
            bare += (word % 2 ** (8 * size)).to_bytes(size, "little")
    assert bare == game.plain[place]


# ---- 17, 18: the code ----------------------------------------------------------------------------


def test_members_cannot_make_the_sum_of_their_codes_wrap() -> None:
    headroom(1, 2**31 - 1)
    with pytest.raises(SettingsError):
        headroom(2, 2**30)
    for n in (3, 10, 100, 128, 1024, 1250):
        assert n * Codec(n, 0.5, 40).q_max <= 2**31 - 1


@pytest.mark.parametrize("sign", [1, -1])
def test_a_value_at_the_edge_with_the_worst_rounding_word_stays_at_the_edge(sign: int) -> None:
    codec = Codec(128, 0.5, 1)
    for u in (0, 2**32 - 1):
        words = np.empty(3, np.uint32)
        values = np.array([0.5 * sign, 0.75 * sign, np.nextafter(0.5, 1) * sign])
        codec.encode(values, 1, words, np.full(3, u, np.uint32))
        assert words.view(np.int32).tolist() == [codec.q_max * sign] * 3


def test_rounding_at_the_least_weight_is_unbiased() -> None:
    """4 standard errors over 100,000 encodings of one value; the error of each is below 1."""
    codec, count = Codec(1024, 8.0, 2**20), 100_000
    value = 0.123456
    words = np.empty(count, np.uint32)
    noise = np.frombuffer(masks.stream(b"r" * 32, 4 * count), "<u4")
    clamped = codec.encode(np.full(count, value), 1, words, noise)
    assert clamped == 0
    y = codec.scale * value
    spread = np.sqrt((y % 1) * (1 - y % 1) / count)
    assert abs(words.view(np.int32).mean() - y) < 4 * spread


# ---- void rules ----------------------------------------------------------------------------------


def _sum(first: int = 3, weight: int = 6, last: int = 3, code: int = 0) -> bytes:
    words = np.zeros(16, np.int64)
    words[0] = code
    tail = np.array([first, weight, 0, last], np.uint64)
    return words.astype(np.int32).tobytes() + tail.tobytes()


@pytest.mark.parametrize(
    "wrong",
    [
        {"first": 4},
        {"last": 2},
        {"first": 2**63 + 3},
        {"weight": 2},
        {"weight": 121},
        {"code": 3 * (2**29 - 1) + 1},
        {"code": -3 * (2**29 - 1) - 1},
    ],
)
def test_a_member_with_a_wrong_mask_or_weight_makes_the_round_void(wrong: dict[str, int]) -> None:
    """Three survivors of four, weights up to 40: Q = 2^29 - 1."""
    manifest = Manifest.of({"w": np.zeros(4, np.float32)})
    layout, codec = MessageLayout(manifest, {}, "train"), Codec(4, 0.5, 40)
    assert codec.q_max == 2**29 - 1
    assert opened(layout, _sum(), 3, codec).weight == 6
    assert opened(layout, _sum(weight=120, code=3 * codec.q_max), 3, codec).weight == 120
    with pytest.raises(VoidRound, match="masks did not cancel"):
        opened(layout, _sum(**wrong), 3, codec)
