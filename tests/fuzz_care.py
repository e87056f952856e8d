"""What the care of a server reads: backups."""

from __future__ import annotations

import hashlib
import io
import json
import struct

from umbel.protocol.errors import StateError
from umbel.server.archive import MAGIC, SEALED, Contents, Packer, Unpacker
from umbel.server.sealing import COST, PIECE
from umbel.tests.fuzzing import Parser

MEMBERS = {"a": b"", "b": b"umbel" * 9, "c": bytes(range(256)) * 40}
SECRET = b"a passphrase of some length"


def _unpack(data: bytes) -> Contents:
    """Take a plain archive; one whose spoilt head says that it is sealed is tried as that."""
    passphrase = SECRET if data.startswith(MAGIC + SEALED) else None
    return Unpacker(io.BytesIO(data), "b.umbel", passphrase).unpack(
        MEMBERS.__contains__, lambda *_: io.BytesIO()
    )


def _packed() -> bytes:
    out = io.BytesIO()
    packer = Packer(out, None)
    for name, content in MEMBERS.items():
        packer.add(name, io.BytesIO(content), len(content))
    packer.close({"made": "today", "left_out": []})
    return out.getvalue()


def _manifest() -> list[bytes]:
    data = _packed()
    return [data[data.index(b'{"about"') : -32]]


def _with_manifest(text: bytes) -> bytes:
    data = _packed()
    start = data[: data.index(b'{"about"') - 4]
    return start + struct.pack(">I", len(text)) + text + hashlib.sha256(text).digest()


def _again(found: Contents) -> bytes:
    text = json.dumps({"about": found.about, "members": found.members}).encode()
    return _with_manifest(text)


CARE = (
    Parser(
        name="archive.unpack", parse=_unpack, errors=(StateError,), make=lambda: [_packed()],
        spare=4 * PIECE + (256 << COST) // 256,
    ),
    Parser(
        name="archive.unpack, manifest", parse=_unpack, errors=(StateError,), make=_manifest,
        form="json", seal=_with_manifest, again=_again,
    ),
)  # fmt: skip
