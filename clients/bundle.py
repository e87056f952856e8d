"""Reading an app bundle without running anything of it: a zip, whose every entry is bounded.

Flower unpacks bundles with the same zipfile module, so what is read here is what would run. Not a
judgement on the code: that is for whoever reads `umbel client apps diff`.

Refused: more bytes than allowed once unpacked, whatever the entries claim; more than `MOST_FILES`
entries; a name that leaves the folder, occurs twice, is a folder and a file, or steers a terminal;
links, devices and encrypted entries; other entries beside Flower's list of contents in `.info/`.
"""

from __future__ import annotations

import io
import re
import stat
import zipfile
import zlib
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Self

from ..protocol.bundles import CONTENTS, SIGNATURES, signers
from ..protocol.documents import read_toml
from ..protocol.errors import Malformed

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_BYTES = 16 << 20
"""Of a bundle as it comes; Flower builds none above 10 MiB."""
MAX_UNPACKED = 128 << 20
MOST_FILES = 2048
_LONGEST_NAME = 240
_PEER = "bundle"
_ENTRY = b"PK\x01\x02"
"""How each entry of a zip's table of contents begins."""
_PLAIN = {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}
_PROJECT = "pyproject.toml"
_PART = re.compile(r"[^/\\:]+")
_BROKEN = (zipfile.BadZipFile, zlib.error, EOFError, ValueError, OSError, NotImplementedError)
"""What zipfile raises for bytes that are no zip; OverflowError and the like are ValueErrors."""


@dataclass(frozen=True, kw_only=True)
class Bundle:
    """A bundle that has been read."""

    digest: bytes
    """SHA-256 of its bytes."""
    files: Mapping[str, bytes] = field(repr=False)
    """Every file but Flower's list of contents."""
    publisher: str
    """What it says of itself; nobody has checked it."""
    name: str
    version: str

    @classmethod
    def read(cls, content: bytes, most: int = MAX_UNPACKED) -> Self:
        """Return what is in a bundle; `most` bounds the bytes of all files once unpacked.

        Raises:
            Malformed: It is no bundle, or larger than allowed.
        """
        if len(content) > MAX_BYTES:
            raise Malformed(_PEER, "size", f"at most {MAX_BYTES} bytes", len(content))
        if (count := content.count(_ENTRY)) > MOST_FILES:  # before zipfile makes objects of them
            raise Malformed(_PEER, "entries", f"at most {MOST_FILES}", count)
        try:
            with zipfile.ZipFile(io.BytesIO(content)) as archive:
                files = _unpacked(archive, most)
        except (*_BROKEN, RuntimeError) as error:
            raise Malformed(_PEER, "is no zip archive that can be read") from error
        files.pop(CONTENTS, None)
        publisher, name, version = _about(files)
        return cls(
            digest=sha256(content).digest(), files=files,
            publisher=publisher, name=name, version=version,
        )  # fmt: skip

    @property
    def app(self) -> str:
        """`publisher/name`, as it calls itself."""
        return f"{self.publisher}/{self.name}"

    @cached_property
    def digests(self) -> dict[str, bytes]:
        """SHA-256 of each file."""
        return {name: sha256(data).digest() for name, data in self.files.items()}

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(map(len, self.files.values()))

    def signers(self) -> frozenset[bytes]:
        """Return the keys of those whose signature in the bundle holds.

        Raises:
            Malformed: Its file of signatures is none.
        """
        found = self.files.get(SIGNATURES)
        return frozenset() if found is None else signers(self.digests, found)


def _unpacked(archive: zipfile.ZipFile, most: int) -> dict[str, bytes]:
    files: dict[str, bytes] = {}
    left = most
    for entry in archive.infolist():
        name = _checked(entry, files)
        if entry.is_dir():
            continue
        with archive.open(entry) as packed:
            data = packed.read(left + 1)
        if len(data) > left:
            raise Malformed(_PEER, "unpacked", f"at most {most} bytes", "more")
        left -= len(data)
        files[name] = data
    folders = {name[:at] for name in files for at in range(len(name)) if name[at] == "/"}
    if both := sorted(folders & files.keys()):
        raise Malformed(_PEER, "a name", "a file or a folder", f"both: {both[0]}")
    return files


def _checked(entry: zipfile.ZipInfo, known: Mapping[str, bytes]) -> str:
    """Return the name of an entry that may stand in a bundle."""
    name = entry.filename
    parts = name.removesuffix("/").split("/")
    plain = len(name) <= _LONGEST_NAME and name.isprintable() and entry.orig_filename == name
    inside = all(_PART.fullmatch(part) and part not in {".", ".."} for part in parts)
    if not plain or not inside:
        raise Malformed(_PEER, "a name", "a relative path of plain characters", repr(name))
    kind = stat.S_IFMT(entry.external_attr >> 16)
    odd = kind not in {0, stat.S_IFREG, stat.S_IFDIR} or entry.compress_type not in _PLAIN
    if odd or entry.flag_bits & 1:
        raise Malformed(_PEER, repr(name), "a plain file", "a link, a device or an odd packing")
    if name in known or (parts[0] == ".info" and name not in {".info/", CONTENTS}):
        raise Malformed(_PEER, repr(name), "an entry of its own", "a second one, or Flower's")
    return name


def _about(files: Mapping[str, bytes]) -> tuple[str, str, str]:
    """Return publisher, name and version, as the bundle's own pyproject.toml has them."""
    try:
        tables: Any = read_toml(files[_PROJECT].decode("utf-8"))
        project = tables["project"]
        found = tables["tool"]["flwr"]["app"]["publisher"], project["name"], project["version"]
    except (KeyError, TypeError, ValueError) as error:
        raise Malformed(_PEER, _PROJECT, "publisher, name and version", "others") from error
    if not all(isinstance(text, str) and re.fullmatch(r"[\w.+ -]{1,100}", text) for text in found):
        raise Malformed(_PEER, _PROJECT, "a publisher, name and version of plain letters", "others")
    return found
