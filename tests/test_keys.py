"""Keys of scheme A: RFC vectors, another library, and what a holder must notice."""

from __future__ import annotations

import copy as copy_module
import hashlib
import itertools
import os
import pickle

import cryptography_vectors
import pytest
from Crypto.Cipher import ChaCha20_Poly1305
from Crypto.Hash import SHA256
from Crypto.Protocol.KDF import HKDF
from Crypto.PublicKey import ECC
from Crypto.Signature import eddsa
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import given
from hypothesis import strategies as st

from umbel.protocol import keys
from umbel.protocol.entropy import os_entropy
from umbel.protocol.errors import PeerError
from umbel.protocol.keys import KeyPair

CTX = bytes(range(32))
SMALL, LARGE = b"\x00" * 15 + b"\xff", b"\x01" + b"\x00" * 15
MASK_SHARE, SEED_SHARE = b"m" * 32, b"s" * 32
KEY = b"k" * 32
WHERE = {"ctx": CTX, "src": SMALL, "dst": LARGE}
HASHES = {
    "mask_hash": hashlib.sha256(MASK_SHARE).digest(),
    "seed_hash": hashlib.sha256(SEED_SHARE).digest(),
}
# The points of order 1, 2, 4 and 8 of Curve25519 and its twist, and their forms >= p.
LOW_ORDER = [
    "00" * 32,
    "01" + "00" * 31,
    "e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800",
    "5f9c95bca3508c24b1d0b1559c83ef5b04445cc4581c8e86d8224eddd09f1157",
    "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
]


def _rfc7748() -> list[tuple[bytes, bytes, bytes]]:
    """Return (scalar, u, result) of RFC 7748, section 5.2, from pyca's suite."""
    with cryptography_vectors.open_vector_file("asymmetric/X25519/rfc7748.txt", "r") as lines:
        values = [bytes.fromhex(line.split(" = ")[1]) for line in lines if "_" in line]
    return list(zip(values[::3], values[1::3], values[2::3], strict=True))


@pytest.mark.parametrize(("scalar", "u", "result"), _rfc7748())
def test_exchange_is_x25519_of_rfc_7748(scalar: bytes, u: bytes, result: bytes) -> None:
    assert KeyPair.from_secret(bytearray(scalar)).exchange(u) == result


def test_public_of_is_the_multiple_of_the_base_point() -> None:
    base = (9).to_bytes(32, "little")
    scalar, u, result = next(case for case in _rfc7748() if case[1] == base)
    assert (scalar, u) == (base, base)
    assert keys.public_of(scalar) == result


@pytest.mark.parametrize("point", LOW_ORDER)
def test_a_point_of_low_order_is_refused_by_name(point: str) -> None:
    pair = KeyPair.generate(entropy=os_entropy)
    with pytest.raises(PeerError, match=f"^node 7: X25519 key: .*low order, got {point}$"):
        pair.exchange(bytes.fromhex(point), "node 7")


@pytest.mark.parametrize("length", [0, 31, 33])
def test_keys_of_another_length_are_refused(length: int) -> None:
    with pytest.raises(PeerError, match="X25519 key: expected 32 bytes"):
        KeyPair.generate(entropy=os_entropy).exchange(bytes(length))
    with pytest.raises(ValueError, match=f"32 bytes, got {length}"):
        KeyPair.from_secret(bytearray(length))


def test_a_key_pair_shows_no_secret_and_is_wiped_in_place() -> None:
    secret = bytearray(os.urandom(32))
    pair, copy = KeyPair.from_secret(secret), bytes(secret)
    assert repr(pair) == f"KeyPair(public={pair.public.hex()})"
    for refuse in (pickle.dumps, copy_module.copy, copy_module.deepcopy):
        with pytest.raises(TypeError, match="never pickled or copied"):
            refuse(pair)
    pair.wipe()
    assert secret == bytes(32) != copy
    assert pair.secret is secret


def test_generate_asks_the_given_entropy() -> None:
    def count(buffer: bytearray | memoryview) -> None:
        buffer[:] = bytes(range(len(buffer)))

    assert KeyPair.generate(entropy=count).secret == bytes(range(32))


@given(st.binary(min_size=32, max_size=32), st.binary(min_size=32, max_size=32))
def test_derived_keys_are_hkdf_of_another_library(ikm: bytes, ctx: bytes) -> None:
    def derive(info: bytes) -> bytes:
        derived = HKDF(ikm, 32, ctx, SHA256, context=info)
        assert isinstance(derived, bytes)
        return derived

    pair = derive(b"umbel/A/1/pair" + SMALL + LARGE)
    assert keys.pair_key(ikm, ctx, LARGE, SMALL) == keys.pair_key(ikm, ctx, SMALL, LARGE) == pair
    assert keys.self_key(ikm, ctx, LARGE) == derive(b"umbel/A/1/self" + LARGE)
    assert keys.seal_key(ikm, ctx, LARGE, SMALL) == derive(b"umbel/A/1/seal" + LARGE + SMALL)


def test_the_smaller_id_adds_as_a_big_endian_number() -> None:
    # As little-endian numbers the two would compare the other way round.
    assert keys.pair_sign(SMALL, LARGE) == 1
    assert keys.pair_sign(LARGE, SMALL) == -1


def test_every_derived_key_is_distinct() -> None:
    """Three rounds, each with evaluation and a retry, among five members."""
    ids = [bytes([i]) * 16 for i in range(5)]
    seen = []
    for name in itertools.product(range(3), ("train", "evaluate"), range(2)):
        ctx = hashlib.sha256(repr(name).encode()).digest()
        masking = [KeyPair.generate(entropy=os_entropy) for _ in ids]
        sealing = [KeyPair.generate(entropy=os_entropy) for _ in ids]
        seen += [keys.self_key(os.urandom(32), ctx, id) for id in ids]  # noqa: A001
        for a, b in itertools.combinations(range(5), 2):
            shared = masking[a].exchange(masking[b].public)
            seen.append(keys.pair_key(shared, ctx, ids[a], ids[b]))
        for a, b in itertools.permutations(range(5), 2):
            shared = sealing[a].exchange(sealing[b].public)
            seen.append(keys.seal_key(shared, ctx, ids[a], ids[b]))
    assert len(seen) == 3 * 2 * 2 * (5 + 10 + 20)
    assert len({bytes(key) for key in seen}) == len(seen)


def test_one_secret_gives_a_key_of_its_own_to_every_use() -> None:
    other = bytes(reversed(CTX))
    derived = [
        function(KEY, ctx, *ids)
        for ctx in (CTX, other)
        for function, ids in (
            (keys.pair_key, (SMALL, LARGE)),
            (keys.self_key, (SMALL,)),
            (keys.self_key, (LARGE,)),
            (keys.seal_key, (SMALL, LARGE)),
            (keys.seal_key, (LARGE, SMALL)),
        )
    ]
    assert len({bytes(key) for key in derived}) == 10


def test_a_commitment_by_hand() -> None:
    expected = hashlib.sha256(b"umbel/A/1/commit" + CTX + SMALL + KEY).digest()
    assert keys.commitment(CTX, SMALL, bytearray(KEY)) == expected


def test_fields_of_another_length_are_refused() -> None:
    with pytest.raises(ValueError, match="no pair mask with itself"):
        keys.pair_key(KEY, CTX, SMALL, SMALL)
    with pytest.raises(ValueError, match="id has 16 bytes, got 15"):
        keys.seal_key(KEY, CTX, SMALL[:15], LARGE + b"x")
    with pytest.raises(ValueError, match="ctx has 32 bytes, got 31"):
        keys.commitment(CTX[:31], SMALL, KEY)
    with pytest.raises(ValueError, match="derived from 32 bytes, got 0"):
        keys.self_key(b"", CTX, SMALL)
    with pytest.raises(ValueError, match="share has 32 bytes"):
        keys.seal(KEY, **WHERE, x=1, mask_share=MASK_SHARE[:31], seed_share=SEED_SHARE)


def _seal(x: int = 7) -> bytes:
    return keys.seal(KEY, **WHERE, x=x, mask_share=MASK_SHARE, seed_share=SEED_SHARE)


def _blob_of(plain: bytes, x: int = 7) -> bytes:
    """Seal any content under the right AAD, as a corrupt owner could."""
    cipher = ChaCha20_Poly1305.new(key=KEY, nonce=bytes(12))
    cipher.update(CTX + SMALL + LARGE + bytes([x]) + HASHES["mask_hash"] + HASHES["seed_hash"])
    return b"".join(cipher.encrypt_and_digest(plain))


def test_a_blob_is_what_another_library_seals_and_opens_again() -> None:
    blob = _seal()
    assert blob == _blob_of(b"\x07" + MASK_SHARE + SEED_SHARE)
    opened = keys.unseal(KEY, blob, **WHERE, x=7, **HASHES)
    assert [bytes(share) for share in opened] == [MASK_SHARE, SEED_SHARE]
    assert all(isinstance(share, bytearray) for share in opened)


@pytest.mark.parametrize("at", range(81))
def test_one_flipped_bit_anywhere_is_noticed(at: int) -> None:
    blob = bytearray(_seal())
    blob[at] ^= 1 << at % 8
    with pytest.raises(PeerError, match=f"^member {SMALL.hex()}: sealed blob does not open"):
        keys.unseal(KEY, bytes(blob), **WHERE, x=7, **HASHES)


@pytest.mark.parametrize(
    "change",
    [
        {"ctx": bytes(32)},
        {"src": LARGE, "dst": SMALL},
        {"dst": SMALL},
        {"x": 8},
        {"mask_hash": HASHES["seed_hash"], "seed_hash": HASHES["mask_hash"]},
        {"mask_hash": bytes(32)},
        {"seed_hash": bytes(32)},
    ],
    ids="-".join,
)
def test_a_blob_of_another_place_does_not_open(change: dict[str, bytes]) -> None:
    # The key is left the same on purpose: the AAD alone must tell.
    with pytest.raises(PeerError, match="does not open in this round"):
        keys.unseal(KEY, _seal(), **{**WHERE, "x": 7, **HASHES, **change})  # type: ignore[arg-type]


def test_another_key_does_not_open() -> None:
    with pytest.raises(PeerError, match="does not open"):
        keys.unseal(b"j" * 32, _seal(), **WHERE, x=7, **HASHES)


@pytest.mark.parametrize("length", [0, 16, 80, 82])
def test_a_truncated_blob_is_refused(length: int) -> None:
    with pytest.raises(PeerError, match=f"sealed blob: expected 81 bytes, got {length}"):
        keys.unseal(KEY, (_seal() + b"x")[:length], **WHERE, x=7, **HASHES)


@pytest.mark.parametrize(
    ("plain", "message"),
    [
        (b"\x08" + MASK_SHARE + SEED_SHARE, "share point: expected 7, got 8"),
        (b"\x00" + MASK_SHARE + SEED_SHARE, "share point: expected 7, got 0"),
        (b"\x07" + SEED_SHARE + MASK_SHARE, "does not match its signed hash"),
        (b"\x07" + MASK_SHARE + b"S" + SEED_SHARE[1:], "does not match its signed hash"),
    ],
)
def test_a_corrupt_owner_is_named_without_its_shares(plain: bytes, message: str) -> None:
    with pytest.raises(PeerError, match=f"^member {SMALL.hex()}: .*{message}") as caught:
        keys.unseal(KEY, _blob_of(plain), **WHERE, x=7, **HASHES)
    for share in (MASK_SHARE, SEED_SHARE):
        assert share.hex() not in str(caught.value)
        assert share.decode() not in repr(caught.value)


def test_a_signature_is_ed25519_of_another_library() -> None:
    key = Ed25519PrivateKey.from_private_bytes(KEY)
    raw = key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
    message = b"umbel/A/1/keys" + b"\x02" + bytes(7) + b"ab" + bytes(8) + b"\x01" + bytes(7) + b"c"
    other = eddsa.new(ECC.construct(curve="Ed25519", seed=KEY), "rfc8032")  # type: ignore[arg-type]
    assert keys.sign(key, "keys", b"ab", b"", b"c") == other.sign(message)
    eddsa.new(eddsa.import_public_key(raw), "rfc8032").verify(
        message, keys.sign(key, "keys", b"ab", b"", b"c")
    )


@pytest.mark.parametrize(
    ("message", "fields"),
    [
        ("shares", (b"ab", b"c")),
        ("keys", (b"a", b"bc")),
        ("keys", (b"abc",)),
        ("keys", (b"ab", b"c", b"")),
        ("keys", (b"c", b"ab")),
        ("keysa", (b"b", b"c")),
    ],
)
def test_a_signature_holds_for_its_message_and_fields_only(
    message: str, fields: tuple[bytes, ...]
) -> None:
    key = Ed25519PrivateKey.generate()
    signature = keys.sign(key, "keys", b"ab", b"c")
    assert keys.verify(key.public_key(), signature, "keys", b"ab", b"c")
    assert not keys.verify(key.public_key(), signature, message, *fields)


def test_forged_signatures_do_not_verify() -> None:
    key, other = Ed25519PrivateKey.generate(), Ed25519PrivateKey.generate()
    signature = keys.sign(key, "keys", b"a")
    assert not keys.verify(other.public_key(), signature, "keys", b"a")
    for forged in (b"", signature[:-1], signature + b"x", bytes(64), signature[::-1]):
        assert not keys.verify(key.public_key(), forged, "keys", b"a")
