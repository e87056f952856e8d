"""The keys of scheme A: round keys, derived keys, sealed shares, commitments, signatures.

Round keys are raw X25519 keys, fresh for every ctx0. Every other key is HKDF-SHA256 with
salt = ctx and info = label + ids, so that one key serves one stream or one message, ever:

| Key       | Input                 | Info                               | Used as              |
|-----------|-----------------------|------------------------------------|----------------------|
| pair mask | DH of the mask keys   | `umbel/A/1/pair` + min id + max id | ChaCha20, one stream |
| self mask | the seed b            | `umbel/A/1/self` + id              | ChaCha20, one stream |
| sealing   | DH of the seal keys   | `umbel/A/1/seal` + src + dst       | one AEAD message     |

Ids have 16 bytes and compare as big-endian numbers, which is how Python compares bytes.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import TYPE_CHECKING

from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from .canonical import lp
from .entropy import random_bytes, wipe
from .errors import PeerError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import (
        Ed25519PrivateKey,
        Ed25519PublicKey,
    )

    from .entropy import Entropy

KEY_BYTES = 32
ID_BYTES = 16
BLOB_BYTES = 81
_TAG_BYTES = 16
_LABEL = b"umbel/A/1/"
_ZERO_NONCE = bytes(12)  # A sealing key seals one message, so its nonce need not vary.

Octets = bytes | bytearray | memoryview


class KeyPair:
    """An X25519 key pair; its repr shows no secret.

    Attributes:
        public: The 32 bytes that others see.
        secret: The 32 bytes that are shared out and then wiped.
    """

    __slots__ = ("_private", "public", "secret")

    def __init__(self, secret: bytearray) -> None:
        """Take over `secret`, 32 bytes; `wipe` zeroes this very buffer."""
        self._private: X25519PrivateKey | None = _private_of(secret)
        self.public = self._private.public_key().public_bytes_raw()
        self.secret = secret

    @classmethod
    def generate(cls, *, entropy: Entropy) -> KeyPair:
        """Return a fresh pair."""
        return cls(random_bytes(KEY_BYTES, entropy))

    @classmethod
    def from_secret(cls, secret: bytearray) -> KeyPair:
        """Return the pair of a secret, which the pair takes over.

        Raises:
            ValueError: The secret does not have 32 bytes.
        """
        return cls(secret)

    def exchange(self, peer_public: bytes, peer: str = "peer") -> bytearray:
        """Return the shared secret with a peer, 32 bytes.

        Raises:
            PeerError: The key has another length or is of low order, so that the result
                would be all zero and known to everyone; `peer` is named.
        """
        # Making the library's object costs more than an exchange; it goes when the secret goes.
        private = self._private or _private_of(self.secret)
        try:
            return bytearray(private.exchange(X25519PublicKey.from_public_bytes(peer_public)))
        except ValueError as error:
            expected = "32 bytes that are no point of low order"
            raise PeerError(peer, "X25519 key", expected, peer_public.hex()) from error

    def wipe(self) -> None:
        """Zero the secret; the pair is of no use afterwards."""
        wipe(self.secret)
        self._private = None

    def __reduce__(self) -> str:
        """Refuse to be pickled or copied: a secret lives in one buffer of one process."""
        raise TypeError("a key pair is never pickled or copied")

    def __repr__(self) -> str:
        return f"KeyPair(public={self.public.hex()})"


def check_public(public: bytes, peer: str) -> None:
    """Refuse a public key that would give everybody the same, known secret.

    Every X25519 scalar is a multiple of 8, so one scalar finds the points of low order for all.

    Raises:
        PeerError: As `KeyPair.exchange`.
    """
    wipe(KeyPair(bytearray(KEY_BYTES)).exchange(public, peer))


def public_of(secret: Octets) -> bytes:
    """Return the public key of a 32-byte secret.

    Raises:
        ValueError: The secret does not have 32 bytes.
    """
    return _private_of(secret).public_key().public_bytes_raw()


def _private_of(secret: Octets) -> X25519PrivateKey:
    """Return the library's key of a 32-byte secret."""
    if len(secret) != KEY_BYTES:
        raise ValueError(f"an X25519 secret has {KEY_BYTES} bytes, got {len(secret)}")
    return X25519PrivateKey.from_private_bytes(secret)


def pair_key(shared: Octets, ctx: bytes, id_a: bytes, id_b: bytes) -> bytearray:
    """Return the mask key of two members, the same in either order of the ids.

    Raises:
        ValueError: The ids are equal, or a field has another length.
    """
    if id_a == id_b:
        raise ValueError("a member has no pair mask with itself")
    return _derive(shared, ctx, b"pair", min(id_a, id_b), max(id_a, id_b))


def pair_sign(own: bytes, other: bytes) -> int:
    """Return +1 where `own` adds the pair stream, -1 where it subtracts it.

    The smaller id adds, so that the two cancel in the sum.
    """
    return 1 if own < other else -1


def self_key(seed: Octets, ctx: bytes, id: bytes) -> bytearray:  # noqa: A002 - the protocol's word
    """Return a member's own mask key; the seed itself never keys a cipher."""
    return _derive(seed, ctx, b"self", id)


def seal_key(shared: Octets, ctx: bytes, src: bytes, dst: bytes) -> bytearray:
    """Return the key that seals the one message from `src` to `dst`."""
    return _derive(shared, ctx, b"seal", src, dst)


def commitment(ctx: bytes, id: bytes, seed: Octets) -> bytes:  # noqa: A002
    """Return SHA-256(`umbel/A/1/commit` + ctx + id + seed), 32 bytes."""
    _check_ids(ctx, id)
    return hashlib.sha256(b"".join((_LABEL, b"commit", ctx, id, seed))).digest()


def seal(
    key: Octets,
    *,
    ctx: bytes,
    src: bytes,
    dst: bytes,
    x: int,
    mask_share: Octets,
    seed_share: Octets,
) -> bytes:
    """Return the sealed blob of one holder: x, its share of the mask key, its share of b.

    Args:
        key: From `seal_key` for this ctx, src and dst; never used for anything else.
        ctx: The round's context, 32 bytes.
        src: Id of the owner of the shares.
        dst: Id of the holder.
        x: The holder's point, 1 .. 254.
        mask_share: 32 bytes.
        seed_share: 32 bytes.

    Returns:
        81 bytes: 65 of ciphertext and the tag.
    """
    if len(mask_share) != KEY_BYTES or len(seed_share) != KEY_BYTES:
        raise ValueError(f"a share has {KEY_BYTES} bytes")
    hashes = hashlib.sha256(mask_share).digest(), hashlib.sha256(seed_share).digest()
    plain = bytearray(b"".join((bytes((x,)), mask_share, seed_share)))
    blob = bytearray(BLOB_BYTES)
    aad = _seal_aad(ctx, src, dst, x, *hashes)
    ChaCha20Poly1305(key).encrypt_into(_ZERO_NONCE, plain, aad, blob)
    wipe(plain)
    return bytes(blob)


def unseal(
    key: Octets,
    blob: bytes,
    *,
    ctx: bytes,
    src: bytes,
    dst: bytes,
    x: int,
    mask_hash: bytes,
    seed_hash: bytes,
) -> tuple[bytearray, bytearray]:
    """Open a blob and return (mask share, seed share), 32 bytes each.

    Args:
        key: From `seal_key` for this ctx, src and dst.
        blob: What came from `src`.
        ctx: The round's context, 32 bytes.
        src: Id of the owner of the shares, named in errors.
        dst: Id of the holder, who opens.
        x: The point that the holder has in the owner's ring order.
        mask_hash: SHA-256 of the mask share, as the owner signed it.
        seed_hash: SHA-256 of the seed share, as the owner signed it.

    Raises:
        PeerError: The blob has another length, does not open under this context, carries
            another x, or holds a share that is not the one that its hash was signed for.
    """
    peer = f"member {src.hex()}"
    if len(blob) != BLOB_BYTES:
        raise PeerError(peer, "sealed blob", f"{BLOB_BYTES} bytes", len(blob))
    plain = bytearray(BLOB_BYTES - _TAG_BYTES)
    aad = _seal_aad(ctx, src, dst, x, mask_hash, seed_hash)
    try:
        ChaCha20Poly1305(key).decrypt_into(_ZERO_NONCE, blob, aad, plain)
    except InvalidTag as error:
        raise PeerError(peer, "sealed blob does not open in this round") from error
    shares = plain[1 : 1 + KEY_BYTES], plain[1 + KEY_BYTES :]
    point = plain[0]
    wipe(plain)
    if point != x:
        wipe(*shares)
        raise PeerError(peer, "share point", x, point)
    for share, signed in zip(shares, (mask_hash, seed_hash), strict=True):
        if not hmac.compare_digest(hashlib.sha256(share).digest(), signed):
            wipe(*shares)
            raise PeerError(peer, "share does not match its signed hash")
    return shares


def sign(signing_key: Ed25519PrivateKey, message: str, *fields: bytes) -> bytes:
    """Return the 64-byte signature over `umbel/A/1/<message>` and lp of the fields."""
    return signing_key.sign(_signed(message, fields))


def verify(public: Ed25519PublicKey, signature: bytes, message: str, *fields: bytes) -> bool:
    """Return whether `signature` is the signer's over this message and these fields."""
    try:
        public.verify(signature, _signed(message, fields))
    except InvalidSignature:
        return False
    return True


def _signed(message: str, fields: tuple[bytes, ...]) -> bytes:
    """Return the bytes under a signature."""
    return _LABEL + message.encode() + lp(*fields)


def _derive(ikm: Octets, ctx: bytes, name: bytes, *ids: bytes) -> bytearray:
    """Return 32 bytes of HKDF-SHA256 with salt = ctx and info = label, then the ids."""
    if len(ikm) != KEY_BYTES:
        raise ValueError(f"a key is derived from {KEY_BYTES} bytes, got {len(ikm)}")
    _check_ids(ctx, *ids)
    info = b"".join((_LABEL, name, *ids))
    key = bytearray(KEY_BYTES)
    HKDF(algorithm=SHA256(), length=KEY_BYTES, salt=ctx, info=info).derive_into(ikm, key)
    return key


def _seal_aad(
    ctx: bytes, src: bytes, dst: bytes, x: int, mask_hash: bytes, seed_hash: bytes
) -> bytes:
    """Return ctx + src + dst + x + H(mask share) + H(seed share), the blob's AAD."""
    _check_ids(ctx, src, dst)
    return b"".join((ctx, src, dst, bytes((x,)), mask_hash, seed_hash))


def _check_ids(ctx: bytes, *ids: bytes) -> None:
    """Refuse lengths under which two different lists of fields would join to equal bytes."""
    if len(ctx) != KEY_BYTES:
        raise ValueError(f"ctx has {KEY_BYTES} bytes, got {len(ctx)}")
    for one in ids:
        if len(one) != ID_BYTES:
            raise ValueError(f"an id has {ID_BYTES} bytes, got {len(one)}")
