"""A backup's file: what goes in comes out, and nothing that was changed does."""

from __future__ import annotations

import hashlib
import io
import json
import struct
from typing import TYPE_CHECKING

import pytest
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

from umbel.protocol.errors import StateError
from umbel.server import archive, sealing
from umbel.server.archive import MAGIC, Packer, Unpacker
from umbel.server.sealing import PIECE, SALT, TAG

if TYPE_CHECKING:
    from collections.abc import Callable

MEMBERS = {"a": b"", "b": b"umbel" * 9, "c": bytes(range(256)) * 5000}
SECRET = b"a passphrase of some length"


@pytest.fixture(autouse=True)
def cheap(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a key cost less than half a second."""
    monkeypatch.setattr(sealing, "COST", 4)


def packed(passphrase: bytes | None, members: dict[str, bytes] = MEMBERS) -> bytes:
    out = io.BytesIO()
    packer = Packer(out, passphrase)
    for name, content in members.items():
        packer.add(name, io.BytesIO(content), len(content))
    packer.close({"made": "today"})
    return out.getvalue()


def unpacked(data: bytes, passphrase: bytes | None = None) -> dict[str, bytes]:
    found: dict[str, io.BytesIO] = {}

    def into(name: str, _: int) -> io.BytesIO:
        return found.setdefault(name, io.BytesIO())

    contents = Unpacker(io.BytesIO(data), "b.umbel", passphrase).unpack(MEMBERS.__contains__, into)
    assert contents.about == {"made": "today"}
    for member in contents.members:
        content = found[member.name].getvalue()
        assert (member.size, member.sha256) == (len(content), hashlib.sha256(content).hexdigest())
    return {name: taken.getvalue() for name, taken in found.items()}


@pytest.mark.parametrize("passphrase", [None, SECRET])
def test_what_goes_in_comes_out(passphrase: bytes | None) -> None:
    assert unpacked(packed(passphrase), passphrase) == MEMBERS


def test_a_plain_one_is_what_the_description_says() -> None:
    data = packed(None, {"b": b"umbel"})
    text = json.dumps(
        {"about": {"made": "today"}, "members": [["b", 5, hashlib.sha256(b"umbel").hexdigest()]]}
    ).encode()
    assert data == b"".join((
        b"umbel backup 1\np", struct.pack(">H", 1), b"b", struct.pack(">Q", 5), b"umbel",
        bytes(2), struct.pack(">I", len(text)), text, hashlib.sha256(text).digest(),
    ))  # fmt: skip


def test_a_sealed_one_is_opened_by_the_libraries_own_calls() -> None:
    plain, data = packed(None)[len(MAGIC) + 1 :], packed(SECRET)
    head, body = data[: len(MAGIC) + 1 + SALT + 1], data[len(MAGIC) + 1 + SALT + 1 :]
    assert head.startswith(MAGIC + b"s")
    assert head[-1] == 4
    key = Scrypt(salt=head[-SALT - 1 : -1], length=32, n=2**4, r=8, p=1).derive(SECRET)
    found = b""
    pieces = [body[at : at + PIECE + TAG] for at in range(0, len(body), PIECE + TAG)]
    assert len(pieces) == 2
    for number, piece in enumerate(pieces):
        nonce = struct.pack(">QB3x", number, number == len(pieces) - 1)
        found += ChaCha20Poly1305(key).decrypt(nonce, piece, head)
    assert found == plain
    for content in MEMBERS.values():
        assert not content or content[:16] not in data


def test_two_of_the_same_share_no_byte_of_the_seal() -> None:
    one, other = (packed(SECRET)[len(MAGIC) + 1 :] for _ in range(2))
    assert one[:SALT] != other[:SALT]
    assert one[SALT + 1 :][:1000] != other[SALT + 1 :][:1000]


@pytest.mark.parametrize("passphrase", [None, SECRET])
def test_no_byte_can_be_changed_and_no_end_cut_off(passphrase: bytes | None) -> None:
    data = packed(passphrase, {"a": b"", "b": b"umbel" * 9})
    for place in range(len(data)):
        wrong = bytearray(data)
        wrong[place] ^= 1
        with pytest.raises(StateError):
            unpacked(bytes(wrong), passphrase)
    for length in range(len(data)):
        with pytest.raises(StateError):
            unpacked(data[:length], passphrase)
    with pytest.raises(StateError):
        unpacked(data + b"x", passphrase)


def _swapped(data: bytes) -> bytes:
    start = len(MAGIC) + 1 + SALT + 1
    pieces = [data[at : at + PIECE + TAG] for at in range(start, len(data), PIECE + TAG)]
    return data[:start] + pieces[1] + pieces[0] + b"".join(pieces[2:])


def _without_the_last(data: bytes) -> bytes:
    start = len(MAGIC) + 1 + SALT + 1
    whole = (len(data) - start) // (PIECE + TAG)
    return data[: start + whole * (PIECE + TAG)]


@pytest.mark.parametrize("change", [_swapped, _without_the_last])
def test_sealed_pieces_stay_in_their_places(change: Callable[[bytes], bytes]) -> None:
    data = packed(SECRET, {"c": MEMBERS["c"] * 2})
    with pytest.raises(StateError, match="passphrase that it was sealed with, and every byte"):
        unpacked(change(data), SECRET)


def test_another_passphrase_and_none_are_told_apart() -> None:
    with pytest.raises(StateError, match="another one, or damage in MiB 1"):
        unpacked(packed(SECRET), SECRET + b"!")
    with pytest.raises(StateError, match="expected its passphrase, got none"):
        unpacked(packed(SECRET))


def test_a_cost_that_would_take_this_machines_memory_is_refused() -> None:
    data = bytearray(packed(SECRET))
    data[len(MAGIC) + 1 + SALT] = 30  # scrypt would take a terabyte
    with pytest.raises(StateError, match="a sealed backup"):
        unpacked(bytes(data), SECRET)


def test_a_file_that_changes_while_it_is_packed_is_named() -> None:
    for size in (4, 6):
        with pytest.raises(StateError, match=f"^a: expected {size} bytes"):
            Packer(io.BytesIO(), None).add("a", io.BytesIO(b"umbel"), size)


def test_damage_is_named_by_its_member() -> None:
    data = packed(None)
    place = data.index(MEMBERS["b"])
    with pytest.raises(StateError, match="expected b as it was written, got other bytes"):
        unpacked(data[:place] + b"X" + data[place + 1 :])


def test_a_manifest_of_any_size_takes_no_memory() -> None:
    data = MAGIC + b"p" + bytes(2) + struct.pack(">I", archive.MOST_MANIFEST + 1)
    with pytest.raises(StateError, match="a manifest of at most"):
        unpacked(data)
