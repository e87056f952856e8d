"""A publisher's signature is of every file of a bundle, and of nothing else."""

from __future__ import annotations

import json
from hashlib import sha256
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from umbel.protocol.bundles import CONTENTS, MOST, SIGNATURES, sign, signed, signers
from umbel.protocol.errors import Malformed

KEY, OTHER = (Ed25519PrivateKey.from_private_bytes(bytes([n]) * 32) for n in (1, 2))
FILES = {"b.py": sha256(b"b").digest(), "a/c.py": sha256(b"c").digest()}


def public(key: Ed25519PrivateKey) -> bytes:
    return key.public_key().public_bytes_raw()


def test_what_is_signed_is_written_by_hand() -> None:
    def lp(part: bytes) -> bytes:
        return len(part).to_bytes(8, "little") + part

    by_hand = b"umbel/bundle/1" + lp(b"a/c.py") + lp(FILES["a/c.py"])
    by_hand += lp(b"b.py") + lp(FILES["b.py"])
    assert signed(FILES) == by_hand
    KEY.public_key().verify(bytes.fromhex(_rows(sign(FILES, KEY, None))[0]["signature"]), by_hand)


def test_the_signatures_and_flowers_own_list_are_not_signed() -> None:
    more = {**FILES, SIGNATURES: bytes(32), CONTENTS: bytes(32)}
    assert signed(more) == signed(FILES)


def test_a_second_publisher_signs_beside_the_first() -> None:
    both = sign(FILES, OTHER, sign(FILES, KEY, None))
    assert signers(FILES, both) == {public(KEY), public(OTHER)}
    again = sign(FILES, KEY, both)
    assert len(_rows(again)) == 2


@pytest.mark.parametrize(
    "changed",
    [
        {**FILES, "b.py": sha256(b"B").digest()},
        {**FILES, "more.py": bytes(32)},
        {"b.py": FILES["b.py"]},
        {"c.py": FILES["b.py"], "a/c.py": FILES["a/c.py"]},
        {"b.py": FILES["a/c.py"], "a/c.py": FILES["b.py"]},
    ],
)
def test_another_bundle_has_no_signer(changed: dict[str, bytes]) -> None:
    file = sign(FILES, KEY, None)
    assert signers(changed, file) == frozenset()
    assert [row["key"] for row in _rows(sign(changed, OTHER, file))] == [public(OTHER).hex()]


def test_a_signature_under_another_key_is_none() -> None:
    text = sign(FILES, KEY, None).decode().replace(public(KEY).hex(), public(OTHER).hex())
    assert signers(FILES, text.encode()) == frozenset()
    nobody = text.replace(public(OTHER).hex(), "ff" * 32)  # no point of the curve
    assert signers(FILES, nobody.encode()) == frozenset()


ROW = {"key": "00" * 32, "signature": "00" * 64}


@pytest.mark.parametrize(
    "tree",
    [
        [], {}, {"version": 2, "signatures": []}, {"version": True, "signatures": []},
        {"version": 1, "signatures": {}}, {"version": 1, "signatures": [], "more": 1},
        {"version": 1, "signatures": [ROW] * (MOST + 1)},
        {"version": 1, "signatures": [{**ROW, "key": "0g" * 32}]},
        {"version": 1, "signatures": [{**ROW, "key": "00"}]},
        {"version": 1, "signatures": [{**ROW, "signature": 7}]},
        {"version": 1, "signatures": [{"key": "00" * 32}]},
    ],
)  # fmt: skip
def test_what_is_no_file_of_signatures_is_refused(tree: Any) -> None:
    with pytest.raises(Malformed, match=SIGNATURES):
        signers(FILES, json.dumps(tree).encode())


def test_a_large_file_of_signatures_is_not_read() -> None:
    with pytest.raises(Malformed, match="at most 8192 bytes"):
        signers(FILES, b" " * 8193)


def test_no_more_than_the_most_can_sign() -> None:
    file = None
    for n in range(MOST):
        file = sign(FILES, Ed25519PrivateKey.from_private_bytes(bytes([n]) * 32), file)
    with pytest.raises(Malformed, match=f"at most {MOST}"):
        sign(FILES, Ed25519PrivateKey.from_private_bytes(b"\xff" * 32), file)


def _rows(file: bytes) -> list[dict[str, str]]:
    rows: list[dict[str, str]] = json.loads(file)["signatures"]
    return rows
