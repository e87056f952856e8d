"""Who stands for an app bundle: Ed25519 signatures over the SHA-256 of every file in it.

The signatures stand in a file of the bundle, `SIGNATURES`, in JSON:

    {"version": 1, "signatures": [{"key": 64 hex digits, "signature": 128 hex digits}, ...]}

What is signed is `umbel/bundle/1` and, length-prefixed, name and SHA-256 of each other file, sorted
by the bytes of the names. Flower's own list of contents is none of them: it names the signatures,
too, and Flower compares it with the files by itself. So one changed byte, a file more or a file
less, or another name, and no signature holds.

A publisher is its public key. Which ones may speak for a device says the device's own policy.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from .canonical import lp
from .documents import read_json
from .errors import Malformed

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

LABEL = b"umbel/bundle/1"
SIGNATURES = "umbel-signatures.json"
"""A name that Flower takes into a bundle: `**/*.json`."""
CONTENTS = ".info/CONTENT"
MOST = 16
"""Signatures in one bundle."""
MAX_BYTES = 8192
_PEER = f"bundle: {SIGNATURES}"


def signed(digests: Mapping[str, bytes]) -> bytes:
    """Return the bytes that a publisher signs, for the SHA-256 of each file by its name."""
    names = sorted(digests.keys() - {SIGNATURES, CONTENTS}, key=lambda name: name.encode())
    return LABEL + lp(*(part for name in names for part in (name.encode(), digests[name])))


def sign(digests: Mapping[str, bytes], key: Ed25519PrivateKey, others: bytes | None) -> bytes:
    """Return the file of signatures with one by `key`.

    Args:
        digests: SHA-256 of each file of the bundle, by its name.
        key: The publisher's.
        others: The file as it was, if there is one; signatures in it that still hold stay.

    Raises:
        Malformed: `others` is no such file, or holds as many signatures as there may be.
    """
    body = signed(digests)
    kept = {} if others is None else _holding(others, body)
    kept[key.public_key().public_bytes_raw()] = key.sign(body)
    if len(kept) > MOST:
        raise Malformed(_PEER, "signatures", f"at most {MOST}", len(kept))
    rows = [{"key": k.hex(), "signature": s.hex()} for k, s in sorted(kept.items())]
    return (json.dumps({"version": 1, "signatures": rows}, indent=1) + "\n").encode()


def signers(digests: Mapping[str, bytes], file: bytes) -> frozenset[bytes]:
    """Return the public keys, 32 bytes each, whose signature in `file` holds for these files.

    Raises:
        Malformed: `file` is no file of signatures.
    """
    return frozenset(_holding(file, signed(digests)))


def _holding(file: bytes, body: bytes) -> dict[bytes, bytes]:
    return {key: signature for key, signature in _read(file) if _holds(key, signature, body)}


def _holds(key: bytes, signature: bytes, body: bytes) -> bool:
    try:
        Ed25519PublicKey.from_public_bytes(key).verify(signature, body)
    except (InvalidSignature, ValueError):
        return False
    return True


def _read(file: bytes) -> list[tuple[bytes, bytes]]:
    """Return (key, signature) of each row."""
    if len(file) > MAX_BYTES:
        raise Malformed(_PEER, "size", f"at most {MAX_BYTES} bytes", len(file))
    try:
        tree = read_json(file)
    except ValueError as error:
        raise Malformed(_PEER, "valid JSON", "a table", str(error)) from error
    if not isinstance(tree, dict) or tree.keys() != {"version", "signatures"}:
        raise Malformed(_PEER, "keys", "version and signatures", "others")
    if type(tree["version"]) is not int or tree["version"] != 1:
        raise Malformed(_PEER, "version", 1, "another")
    rows = tree["signatures"]
    if not isinstance(rows, list) or len(rows) > MOST:
        raise Malformed(_PEER, "signatures", f"a list of at most {MOST}", type(rows).__name__)
    return [_row(row) for row in rows]


def _row(row: object) -> tuple[bytes, bytes]:
    if not isinstance(row, dict) or row.keys() != {"key", "signature"}:
        raise Malformed(_PEER, "a row", "key and signature", "others")
    for name, digits in (("key", 64), ("signature", 128)):
        value = row[name]
        if not isinstance(value, str) or re.fullmatch(f"[0-9a-f]{{{digits}}}", value) is None:
            raise Malformed(_PEER, name, f"{digits} lower-case hex digits", "something else")
    return bytes.fromhex(row["key"]), bytes.fromhex(row["signature"])
