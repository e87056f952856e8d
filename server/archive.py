r"""One file that holds others: how a backup is written, and read with suspicion.

    `umbel backup 1\n` · kind, 1 byte: `p` plain, `s` sealed (sealing.py) · the body
    body    members, then the manifest, then nothing
    member  length of its name, 2 bytes · name · size, 8 bytes · content
    manifest  two zero bytes · length, 4 bytes · JSON · SHA-256 of the JSON, 32 bytes

Numbers are big-endian. The manifest is `{"about": {...}, "members": [[name, size, SHA-256 in hex],
...]}` in the order of the members. There are no folders, links, owners or modes: a name is one of
those that its reader knows (`known`), and comes once. So no name leads anywhere else, and nothing
that nobody expects is written.

Memory: one piece of a member, and the manifest.
"""

from __future__ import annotations

import hashlib
import json
import struct
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

from .sealing import Sealer, Unsealer
from ..protocol.documents import read_json
from ..protocol.errors import StateError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from .sealing import Sink, Source

MAGIC = b"umbel backup 1\n"
PLAIN, SEALED = b"p", b"s"
PIECE = 1 << 20
MOST_MEMBERS = 50_000
MOST_NAME = 255
MOST_MANIFEST = 16 << 20
_SHORT, _WORD, _LONG = struct.Struct(">H"), struct.Struct(">I"), struct.Struct(">Q")
_HASH = 32
_MOVE = "take another copy"


class Member(NamedTuple):
    """One file of an archive."""

    name: str
    size: int
    sha256: str


class Contents(NamedTuple):
    """What an archive's manifest says."""

    about: Mapping[str, Any]
    members: tuple[Member, ...]


class Packer:
    """Writes an archive into a file that is open for writing."""

    def __init__(self, out: BinaryIO, passphrase: bytes | None) -> None:
        """Write the head; a passphrase seals the rest."""
        head = MAGIC + (PLAIN if passphrase is None else SEALED)
        out.write(head)
        self._sealer = None if passphrase is None else Sealer(out, passphrase, head)
        self._out: Sink = self._sealer or out
        self._members: list[Member] = []

    def add(self, name: str, file: BinaryIO, size: int) -> None:
        """Add a member.

        Raises:
            StateError: The file has fewer or more bytes than `size`: it changed meanwhile.
        """
        encoded = name.encode()
        self._out.write(_SHORT.pack(len(encoded)) + encoded + _LONG.pack(size))
        left, digest = size, hashlib.sha256()
        while left and (data := file.read(min(PIECE, left))):
            digest.update(data)
            self._out.write(data)
            left -= len(data)
        if left or file.read(1):
            got = "fewer" if left else "more"
            raise StateError(name, f"{size} bytes", got, "nothing may change it; try again")
        self._members.append(Member(name, size, digest.hexdigest()))

    def close(self, about: Mapping[str, Any]) -> Contents:
        """Write the manifest: now the archive is whole."""
        found = Contents(about, tuple(self._members))
        text = json.dumps({"about": about, "members": found.members}).encode()
        digest = hashlib.sha256(text).digest()
        self._out.write(_SHORT.pack(0) + _WORD.pack(len(text)) + text + digest)
        if self._sealer is not None:
            self._sealer.close()
        return found


class Unpacker:
    """Reads an archive once, from its beginning to its end."""

    def __init__(self, file: BinaryIO, name: str, passphrase: bytes | None) -> None:
        """Read the head.

        Args:
            file: Open for reading, at its beginning.
            name: The file's, for errors.
            passphrase: What it was sealed with; whoever has one takes no plain archive.

        Raises:
            StateError: It is no archive, sealed and there is no passphrase, or the other way round.
        """
        self._name = name
        head = file.read(len(MAGIC) + 1)
        if head[:-1] != MAGIC or head[-1:] not in {PLAIN, SEALED}:
            raise StateError(name, "a backup of this version", "another file", _MOVE)
        self._source: Source = file
        if head[-1:] == SEALED:
            if passphrase is None:
                move = "say --passphrase-file or --passphrase"
                raise StateError(name, "its passphrase", "none", move)
            self._source = Unsealer(file, passphrase, head, name)
        elif passphrase is not None:  # anybody can write a plain one, with members of their own
            move = "it is not what was sealed; without a passphrase it is taken as it is"
            raise StateError(name, "a backup that a passphrase seals", "a plain one", move)

    def unpack(
        self, known: Callable[[str], bool], into: Callable[[str, int], Sink | None]
    ) -> Contents:
        """Go through every member, and check each against the manifest.

        Args:
            known: Tells whether a member may have a name.
            into: Returns what takes a member's bytes, given its name and size; None drops them.

        Raises:
            StateError: A byte is not as it was written, or a name is none of those known.
        """
        seen: list[Member] = []
        names: set[str] = set()
        while length := _SHORT.unpack(self._exactly(_SHORT.size, "the next member's name"))[0]:
            if len(seen) == MOST_MEMBERS or length > MOST_NAME:
                raise self._bad("members of a backup", "too many, or one with a longer name")
            raw = self._exactly(length, "a member's name")
            name = raw.decode("ascii", "replace")
            if not known(name) or name in names:
                got = f"{name!r}" + (" twice" if name in names else "")
                raise self._bad("files of a federation, each once", got)
            names.add(name)
            (size,) = _LONG.unpack(self._exactly(_LONG.size, f"the size of {name}"))
            seen.append(self._member(name, size, into(name, size)))
        found = self._manifest()
        self._compare(found.members, seen)
        if self._source.read(1):
            raise self._bad("its end after the manifest", "more")
        return found

    def _member(self, name: str, size: int, out: Sink | None) -> Member:
        left, digest = size, hashlib.sha256()
        while left:
            data = self._exactly(min(PIECE, left), name)
            digest.update(data)
            if out is not None:
                out.write(data)
            left -= len(data)
        return Member(name, size, digest.hexdigest())

    def _manifest(self) -> Contents:
        (length,) = _WORD.unpack(self._exactly(_WORD.size, "the manifest"))
        if length > MOST_MANIFEST:
            raise self._bad(f"a manifest of at most {MOST_MANIFEST} bytes", length)
        text = self._exactly(length, "the manifest")
        if hashlib.sha256(text).digest() != self._exactly(_HASH, "the manifest"):
            raise self._bad("the manifest as it was written", "another")
        try:
            found = read_json(text)
            return Contents(_object(found["about"]), tuple(map(_row, found["members"])))
        except (ValueError, TypeError, KeyError) as error:
            raise self._bad("a manifest", type(error).__name__) from error

    def _compare(self, told: Iterable[Member], seen: list[Member]) -> None:
        """Name the first member that is not what the manifest says."""
        expected = tuple(told)
        for should, member in zip(expected, seen, strict=False):
            if should != member:
                got = "other bytes" if should[:2] == member[:2] else member.name
                raise self._bad(f"{should.name[:64]} as it was written", got)
        if len(expected) != len(seen):
            raise self._bad(f"{len(expected)} members", len(seen))

    def _exactly(self, count: int, what: str) -> bytes:
        data = self._source.read(count)
        if len(data) != count:
            raise self._bad(f"the whole file; {what}", "it ends before")
        return data

    def _bad(self, expected: str, got: object) -> StateError:
        return StateError(self._name, expected, got, _MOVE)


def _object(found: object) -> Mapping[str, Any]:
    if not isinstance(found, dict):
        raise TypeError
    return found


def _row(found: object) -> Member:
    match found:
        case [str(name), int(size), str(digest)] if type(size) is int:
            return Member(name, size, digest)
    raise TypeError
