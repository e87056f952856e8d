"""The published vectors of the transcript layer, `vectors/transcript.json`.

The file is for other implementations as much as for ours, so the code under test has no part
in it: `reference()` computes it from the text of the protocol with hashlib, hmac, struct and
pycryptodome. `python tests/test_vectors.py` writes the file anew; a test says whether the
file is what the reference gives, the others whether our code agrees with the file.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import struct
import unicodedata
from pathlib import Path
from typing import Any

import pytest
from Crypto.Cipher import ChaCha20 as OtherChaCha20
from Crypto.Cipher import ChaCha20_Poly1305
from Crypto.Protocol.DH import import_x25519_private_key, import_x25519_public_key, key_agreement
from Crypto.PublicKey import ECC
from Crypto.Signature import eddsa
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from umbel.protocol import context, keys, masks
from umbel.protocol.canonical import canonical
from umbel.protocol.context import RosterEntry, Terms

FILE = Path(__file__).parent / "vectors" / "transcript.json"

# (key, tag, value): values are written as JSON can hold them, bytes in hex.
TABLES: list[list[tuple[str, str, Any]]] = [
    [],
    [("lr", "f", 0.1), ("epochs", "i", 3), ("shuffle", "b", True), ("name", "s", "mnist")],
    [("a.10", "i", -1), ("a.2", "i", 0), ("a", "y", "00ff"), ("Z", "b", False)],
    [
        ("caf\u00e9", "s", "e\u0301"),
        ("empty", "s", ""),
        ("zero", "f", -0.0),
        ("big", "i", 2**63 - 1),
    ],
]
BITMAPS = [(1, [0]), (8, [7]), (9, [8]), (10, [0, 3, 9]), (32, []), (33, list(range(33)))]
TEXT_FIELDS = {
    "protocol": 1,
    "scheme": "A",
    "run": "run-7",
    "round": 12,
    "phase": "train",
    "attempt": 2,
}


def _pattern(tag: int, length: int) -> bytes:
    """Return `length` bytes that start with `tag` and count up."""
    return bytes((tag + i) % 256 for i in range(length))


def _lp(*parts: bytes) -> bytes:
    return b"".join(struct.pack("<Q", len(part)) + part for part in parts)


def _canonical(table: list[tuple[str, str, Any]]) -> bytes:
    encode = {
        "i": lambda v: str(v).encode("ascii"),
        "f": lambda v: struct.pack("<d", v),
        "s": lambda v: unicodedata.normalize("NFC", v).encode("utf-8"),
        "b": lambda v: b"1" if v else b"0",
        "y": bytes.fromhex,
    }
    rows = [
        (unicodedata.normalize("NFC", key).encode("utf-8"), tag.encode("ascii"), encode[tag](value))
        for key, tag, value in table
    ]
    return b"".join(_lp(*row) for row in sorted(rows))


def _hkdf(ikm: bytes, salt: bytes, info: bytes) -> bytes:
    """RFC 5869 with SHA-256, for the 32 bytes of one block: extract, then T(1)."""
    prk = hmac.new(salt, ikm, hashlib.sha256).digest()
    return hmac.new(prk, info + b"\x01", hashlib.sha256).digest()


def _x25519(secret: bytes, public: bytes) -> bytes:
    shared = key_agreement(
        static_priv=import_x25519_private_key(secret),
        static_pub=import_x25519_public_key(public),
        kdf=lambda shared: shared,
    )
    return bytes(shared)


def _public(secret: bytes) -> bytes:
    return import_x25519_private_key(secret).public_key().export_key(format="raw")


def _sha(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


def _reference_context() -> dict[str, Any]:
    digests = {
        name: _pattern(tag, 32)
        for tag, name in ((1, "ca"), (2, "app"), (3, "model"), (4, "layout"))
    }
    text = {name: str(value).encode("ascii") for name, value in TEXT_FIELDS.items()}
    config, params = _canonical(TABLES[1]), _canonical(TABLES[2])
    ctx0 = _sha(
        _lp(
            b"umbel", text["protocol"], text["scheme"], digests["ca"], digests["app"], text["run"],
            text["round"], text["phase"], text["attempt"], digests["model"], config, params,
            digests["layout"],
        )
    )  # fmt: skip
    entries = [
        _pattern(16 * i, 16) + b"".join(_pattern(50 * i + j, 32) for j in (1, 2, 3))
        for i in range(3)
    ]
    root = _sha(b"".join(entries))
    return {
        **TEXT_FIELDS,
        **{name: value.hex() for name, value in digests.items()},
        "config": 1,
        "params": 2,
        "ctx0": ctx0.hex(),
        "roster": [entry.hex() for entry in entries],
        "roster_root": root.hex(),
        "ctx": _sha(_lp(b"umbel/ctx", ctx0, root, bytes(32))).hex(),
    }


def _reference_keys(ctx: bytes) -> dict[str, Any]:
    src, dst = _pattern(0x20, 16), _pattern(0x10, 16)  # src is the larger id
    a, b, seed = _pattern(0x31, 32), _pattern(0x62, 32), _pattern(0x93, 32)
    shared = _x25519(a, _public(b))
    label = b"umbel/A/1/"
    pair = _hkdf(shared, ctx, label + b"pair" + dst + src)
    seal = _hkdf(shared, ctx, label + b"seal" + src + dst)
    own = _hkdf(seed, ctx, label + b"self" + src)
    x, mask_share, seed_share = 7, _pattern(0xA1, 32), _pattern(0xC2, 32)
    cipher = ChaCha20_Poly1305.new(key=seal, nonce=bytes(12))
    cipher.update(ctx + src + dst + bytes([x]) + _sha(mask_share) + _sha(seed_share))
    blob = b"".join(cipher.encrypt_and_digest(bytes([x]) + mask_share + seed_share))
    signing = _pattern(0xE0, 32)
    key = ECC.construct(curve="Ed25519", seed=signing)  # type: ignore[arg-type]
    signer = eddsa.new(key, "rfc8032")
    signed = label + b"survivors" + _lp(ctx, _sha(b"U2"), _sha(b"U"))
    values = {
        "ctx": ctx, "src": src, "dst": dst, "secret_a": a, "secret_b": b, "public_a": _public(a),
        "public_b": _public(b), "shared": shared, "seed": seed, "pair_key": pair, "self_key": own,
        "seal_key": seal, "commitment": _sha(label + b"commit" + ctx + src + seed),
        "mask_share": mask_share, "seed_share": seed_share, "blob": blob,
        "pair_stream_64": OtherChaCha20.new(key=pair, nonce=bytes(12)).encrypt(bytes(64)),
        "signing_key": signing, "signed": signed, "signature": signer.sign(signed),
    }  # fmt: skip
    return {**{name: value.hex() for name, value in values.items()}, "x": x}


def reference() -> dict[str, Any]:
    """Return every published value, computed without the code under test."""
    transcript = _reference_context()
    bitmaps = []
    for n, positions in BITMAPS:
        bits = sum(1 << i for i in positions).to_bytes(-(-n // 8), "little")
        bitmaps.append(
            {"n": n, "positions": positions, "bytes": bits.hex(), "sha256": _sha(bits).hex()}
        )
    return {
        "about": "Umbel scheme A, protocol 1: canonical(), contexts, bitmaps, keys, one sealed "
        "blob, one signature. Bytes are hex; config and params are indices into canonical.",
        "canonical": [{"entries": table, "bytes": _canonical(table).hex()} for table in TABLES],
        "context": transcript,
        "bitmaps": bitmaps,
        "keys": _reference_keys(bytes.fromhex(transcript["ctx"])),
    }


def _load() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
    return loaded


PUBLISHED = _load() if FILE.exists() else reference()


def _table(index: int) -> dict[str, object]:
    entries = PUBLISHED["canonical"][index]["entries"]
    return {key: bytes.fromhex(value) if tag == "y" else value for key, tag, value in entries}


def _bytes(name: str) -> bytes:
    return bytes.fromhex(PUBLISHED["keys"][name])


def test_the_file_is_what_the_reference_gives() -> None:
    assert _load() == json.loads(json.dumps(reference()))


@pytest.mark.parametrize("index", range(len(TABLES)))
def test_canonical(index: int) -> None:
    assert canonical(_table(index)).hex() == PUBLISHED["canonical"][index]["bytes"]


def test_contexts() -> None:
    published = PUBLISHED["context"]
    fields: dict[str, Any] = {name: published[name] for name in TEXT_FIELDS}
    for name in ("ca", "app", "model", "layout"):
        fields[name] = bytes.fromhex(published[name])
    for name in ("config", "params"):
        fields[name] = _table(published[name])
    terms = Terms(**fields)
    assert terms.ctx0().hex() == published["ctx0"]
    entries = RosterEntry.unpack_all(bytes.fromhex("".join(published["roster"])))
    assert context.roster_root(entries).hex() == published["roster_root"]
    ctx = context.context(terms.ctx0(), context.roster_root(entries))
    assert ctx.hex() == published["ctx"]


@pytest.mark.parametrize("case", PUBLISHED["bitmaps"], ids=lambda case: f"n{case['n']}")
def test_bitmaps(case: dict[str, Any]) -> None:
    packed = context.bitmap(case["positions"], case["n"])
    assert packed.hex() == case["bytes"]
    assert hashlib.sha256(packed).hexdigest() == case["sha256"]
    assert context.positions(packed, case["n"]) == tuple(case["positions"])


def test_keys() -> None:
    ctx, src, dst = _bytes("ctx"), _bytes("src"), _bytes("dst")
    a = keys.KeyPair.from_secret(bytearray(_bytes("secret_a")))
    b = keys.KeyPair.from_secret(bytearray(_bytes("secret_b")))
    assert (a.public, b.public) == (_bytes("public_a"), _bytes("public_b"))
    shared = a.exchange(b.public)
    assert shared == b.exchange(a.public) == _bytes("shared")
    pair = keys.pair_key(shared, ctx, src, dst)
    assert pair == keys.pair_key(shared, ctx, dst, src) == _bytes("pair_key")
    assert masks.stream(pair, 64) == _bytes("pair_stream_64")
    assert keys.self_key(_bytes("seed"), ctx, src) == _bytes("self_key")
    assert keys.seal_key(shared, ctx, src, dst) == _bytes("seal_key")
    assert keys.commitment(ctx, src, _bytes("seed")) == _bytes("commitment")


def test_the_sealed_blob() -> None:
    shares = {name: _bytes(name) for name in ("mask_share", "seed_share")}
    ids = {name: _bytes(name) for name in ("ctx", "src", "dst")}
    x = PUBLISHED["keys"]["x"]
    blob = keys.seal(_bytes("seal_key"), **ids, x=x, **shares)
    assert blob == _bytes("blob")
    hashes = (hashlib.sha256(share).digest() for share in shares.values())
    opened = keys.unseal(
        _bytes("seal_key"), blob, **ids, x=x, mask_hash=next(hashes), seed_hash=next(hashes)
    )
    assert [bytes(share) for share in opened] == [*shares.values()]


def test_the_signature() -> None:
    key = Ed25519PrivateKey.from_private_bytes(_bytes("signing_key"))
    fields = (_bytes("ctx"), hashlib.sha256(b"U2").digest(), hashlib.sha256(b"U").digest())
    assert keys.sign(key, "survivors", *fields) == _bytes("signature")
    assert keys.verify(key.public_key(), _bytes("signature"), "survivors", *fields)


if __name__ == "__main__":
    FILE.write_text(json.dumps(reference(), indent=1) + "\n", encoding="utf-8")
