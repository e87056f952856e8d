"""Keys, masks and field arithmetic of scheme A once more, from hmac and pycryptodome only.

What docs/protocol.md, section 5 says, without a line of the package: so a test of a role can
compute what the role must have done from the secrets that it holds.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from typing import TYPE_CHECKING

import numpy as np
from Crypto.Cipher import ChaCha20
from Crypto.Protocol.DH import import_x25519_private_key, import_x25519_public_key, key_agreement

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

LABEL = b"umbel/A/1/"


def lp(*parts: bytes) -> bytes:
    """Return each part behind its length, 8 bytes little-endian."""
    return b"".join(struct.pack("<Q", len(part)) + part for part in parts)


def sha(data: bytes) -> bytes:
    """Return SHA-256."""
    return hashlib.sha256(data).digest()


def hkdf(ikm: bytes, salt: bytes, info: bytes) -> bytes:
    """Return one block of RFC 5869 with SHA-256."""
    prk = hmac.new(salt, ikm, hashlib.sha256).digest()
    return hmac.new(prk, info + b"\x01", hashlib.sha256).digest()


def public_of(secret: bytes) -> bytes:
    """Return the X25519 public key of 32 secret bytes."""
    raw: bytes = import_x25519_private_key(bytes(secret)).public_key().export_key(format="raw")
    return raw


def pair_key(secret: bytes, public: bytes, ctx: bytes, one: bytes, other: bytes) -> bytes:
    """Return the mask key of two members."""
    shared = key_agreement(
        static_priv=import_x25519_private_key(bytes(secret)),
        static_pub=import_x25519_public_key(public),
        kdf=lambda shared: shared,
    )
    return hkdf(bytes(shared), ctx, LABEL + b"pair" + min(one, other) + max(one, other))


def self_key(seed: bytes, ctx: bytes, own: bytes) -> bytes:
    """Return the key of a member's own mask."""
    return hkdf(bytes(seed), ctx, LABEL + b"self" + own)


def commitment(seed: bytes, ctx: bytes, own: bytes) -> bytes:
    """Return what a member commits to its seed with."""
    return sha(LABEL + b"commit" + ctx + own + bytes(seed))


def moved(message: bytes, split: int, streams: Iterable[tuple[bytes, int]]) -> bytes:
    """Return the message with streams added (+1) and subtracted (-1), word by word."""
    parts = [
        np.frombuffer(message[:split], "<u4").copy(),
        np.frombuffer(message[split:], "<u8").copy(),
    ]
    for key, sign in streams:
        stream = ChaCha20.new(key=bytes(key), nonce=bytes(12)).encrypt(bytes(len(message)))
        others = np.frombuffer(stream[:split], "<u4"), np.frombuffer(stream[split:], "<u8")
        for i, other in enumerate(others):
            parts[i] = parts[i] + other if sign > 0 else parts[i] - other
    return b"".join(part.tobytes() for part in parts)


# ---- GF(256) modulo x^8 + x^4 + x^3 + x + 1 ----------------------------------------------------


def times(a: int, b: int) -> int:
    """Multiply by shifting and adding."""
    product = 0
    while b:
        product ^= a * (b & 1)
        a, b = (a << 1) ^ (0x11B if a & 0x80 else 0), b >> 1
    return product


def inverse(a: int) -> int:
    """Return a^254."""
    result = 1
    for _ in range(254):
        result = times(result, a)
    return result


def combined(shares: Sequence[tuple[int, bytes]]) -> bytes:
    """Return the value at 0 of the polynomials through these (point, bytes)."""
    secret = bytearray(len(shares[0][1]))
    for x, share in shares:
        weight = 1
        for other, _ in shares:
            if other != x:
                weight = times(weight, times(other, inverse(x ^ other)))
        for i, byte in enumerate(share):
            secret[i] ^= times(weight, byte)
    return bytes(secret)
