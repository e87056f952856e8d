"""One round's folder: a manifest and the model's arrays, written durably and read with suspicion.

    000123/manifest.json               [body, SHA-256 of the body], one line, one spelling
    000123/00000-of-00001.safetensors  the model, arrays by name
    000123/state.safetensors           moments of the server step, if it keeps any (moment_file.py)

The body names run, round and model digest, the arrays, the SHA-256 of the safetensors header, and
that of the moments' file; the digest covers the arrays. So no byte of any file can change unseen,
and a folder of another run or round is told from this one's. Files are opened without following
links, must be regular, and have the one length that their manifest gives them: nothing else is
read, and nothing is mapped, so that a failing disk is an error and not a signal.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from . import array_file
from .moment_file import STATE_FILE, check_moments, write_moments
from .plain_files import open_file, read_file, remove, sync, why
from .stepping import StateFile
from ..protocol.digest import model_digest
from ..protocol.errors import PeerError, StateError
from ..protocol.manifest import MAX_JSON, Manifest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from numpy.typing import NDArray

FORMAT = "umbel/round/1"
MODEL_FILE = "00000-of-00001.safetensors"
MANIFEST_FILE = "manifest.json"
MANIFEST_LIMIT = MAX_JSON + (16 << 20)
HEADER_LIMIT = 100_000_000
"""Bytes of a safetensors header; the format's own bound."""
_DIGEST, _LENGTH = 32, 8
_MOVE = "resume from an earlier round or restore a backup"


@dataclass(frozen=True, kw_only=True)
class About:
    """What a round's folder says of its model."""

    run: str
    number: int
    digest: bytes
    """Of the model, 32 bytes: `model_digest(manifest.pack(arrays))`."""
    ledger: tuple[int, str]
    """Number and hash, hex, of the ledger's last row before: a ledger without it lost its end."""
    extra: Mapping[str, Any]
    state: bytes = b""
    """SHA-256 of the moments' file; empty where there is none."""

    @property
    def named(self) -> dict[str, str]:
        """Run, round and digest, as they stand in both files."""
        return {"run": self.run, "round": str(self.number), "digest": self.digest.hex()}


@dataclass(frozen=True, kw_only=True)
class Round(About):
    """What a round's folder holds."""

    manifest: Manifest
    header: str
    """SHA-256, hex, of the model file's header."""
    arrays: dict[str, NDArray[Any]] = field(repr=False)
    """The model, in the order of the manifest; empty where only the manifest was read."""


def write(
    final: Path,
    arrays: Mapping[str, NDArray[Any]],
    manifest: Manifest,
    about: About,
    moments: Mapping[str, memoryview],
    sync_all: Callable[[Iterable[Path]], object],
) -> None:
    """Write a round's folder under a hidden name, and rename it when it is on the disk.

    Args:
        final: The folder; one that is there is replaced.
        arrays: What `manifest` describes.
        manifest: Names, shapes, dtypes.
        about: What both files say of it.
        moments: The server step's state, buffers in the layout of `manifest`; may be none.
        sync_all: Forces files and folders to the disk.

    Raises:
        OSError: It cannot be written; nothing of it is left.
    """
    temporary = final.with_name(f".{final.name}.{os.getpid()}")
    try:
        for stale in (temporary, final):
            remove(stale)
        temporary.mkdir(mode=0o700)
        files = [temporary / MODEL_FILE, temporary / MANIFEST_FILE]
        array_file.write(files[0], arrays, about.named)
        state = {}
        if moments:
            files.append(temporary / STATE_FILE)
            state = {"state": write_moments(files[-1], manifest, moments).hex()}
        body = {
            "format": FORMAT,
            "about": about.named,
            "files": [MODEL_FILE],
            **state,
            "header": hashlib.sha256(_header(files[0])).hexdigest(),
            "manifest": json.loads(manifest.to_json()),
            "ledger": list(about.ledger),
            "extra": dict(about.extra),
        }
        files[1].write_bytes(_sealed(body))
        sync_all((*files, temporary))
        temporary.rename(final)
        sync(final.parent)
    except OSError:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def read(folder: Path, run: str, number: int) -> Round:
    """Return what a round's folder holds, every byte of it hashed, the moments' too.

    Raises:
        StateError: Something is missing, or is not what was written for this run and round.
    """
    found = read_model(folder, run, number)
    if found.state:
        path = folder / STATE_FILE
        try:
            check_moments(StateFile(path, found.state))
        except (OSError, ValueError) as error:
            raise StateError(str(path), "the moments of its round", why(error), _MOVE) from error
    return found


def read_model(folder: Path, run: str, number: int) -> Round:
    """Return a round's model and its manifest, every byte hashed: one copy of it in memory.

    Raises:
        StateError: Something is missing, or is not what was written for this run and round.
    """
    found = read_manifest(folder, run, number)
    path = folder / MODEL_FILE
    try:
        packed = _packed(path, found)
    except _UNREADABLE as error:
        raise StateError(str(path), "the arrays of the manifest", why(error), _MOVE) from error
    got = model_digest(packed)
    if got != found.digest:
        expected = f"the model with digest {found.digest.hex()}"
        raise StateError(str(path), expected, f"digest {got.hex()}", _MOVE)
    found.arrays.update(found.manifest.views(packed))
    return found


_UNREADABLE = (
    OSError, ValueError, TypeError, KeyError, ArithmeticError, RecursionError, PeerError,
)  # fmt: skip
"""What reading a text that is no manifest or header may raise; 1e999 is a number to JSON."""


def read_manifest(folder: Path, run: str, number: int) -> Round:
    """Return what a round's manifest says, without its arrays.

    Raises:
        StateError: It is missing, or is not what was written for this run and round.
    """
    path = folder / MANIFEST_FILE
    try:
        _check_folder(folder)
        return _parse(read_file(path, MANIFEST_LIMIT), path, run, number)
    except _UNREADABLE as error:
        expected = f"the manifest of round {number} of {run}"
        raise StateError(str(path), expected, why(error), _MOVE) from error


def _check_folder(path: Path) -> None:
    """Refuse a link or a file in a folder's place."""
    if not stat.S_ISDIR(path.lstat().st_mode):
        raise ValueError("no folder in its place")


def _parse(data: bytes, path: Path, run: str, number: int) -> Round:
    """Read a manifest; raises one of several errors."""
    body, _ = json.loads(data)
    if data != _sealed(body):
        raise ValueError("a text whose own hash does not match")
    about = body["about"]
    said, expected = (about["run"], about["round"]), (run, str(number))
    if body["format"] != FORMAT or said != expected:
        raise ValueError(f"{body['format']} of round {about['round']} of {about['run']}")
    seq, head = body["ledger"]
    if len(bytes.fromhex(about["digest"])) != _DIGEST:
        raise ValueError("a digest of another length")
    return Round(
        run=run,
        number=number,
        ledger=(int(seq), str(head)),
        manifest=Manifest.from_json(json.dumps(body["manifest"]), str(path)),
        digest=bytes.fromhex(about["digest"]),
        extra=body["extra"],
        header=body["header"],
        state=bytes.fromhex(body.get("state", "")),
        arrays={},
    )


def _packed(path: Path, found: Round) -> bytearray:
    """Return the model in its manifest's layout, read array by array."""
    header, entries = _header(path), found.manifest.entries
    if hashlib.sha256(header).hexdigest() != found.header:
        raise ValueError("another header")
    table = json.loads(header[_LENGTH:])
    table.pop("__metadata__", None)
    length = len(header) + sum(entry.nbytes for entry in entries)
    with open_file(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size != length or len(table) != len(entries):
            raise ValueError(f"{size} bytes in {len(table)} arrays, not {length} in {len(entries)}")
        packed = bytearray(found.manifest.total_bytes)
        for entry in entries:
            start, stop = table[entry.name]["data_offsets"]
            file.seek(len(header) + start)
            place = memoryview(packed)[entry.offset : entry.offset + entry.nbytes]
            if stop - start != entry.nbytes or file.readinto(place) != entry.nbytes:  # type: ignore[attr-defined]
                raise ValueError(f"{stop - start} bytes of {entry.name}, not {entry.nbytes}")
    return packed


def _header(path: Path) -> bytes:
    """Return the first bytes of a safetensors file: a length, and so many bytes of JSON."""
    with open_file(path) as file:
        start = file.read(_LENGTH)
        length, size = int.from_bytes(start, "little"), os.fstat(file.fileno()).st_size
        if length > min(HEADER_LIMIT, size - len(start)):
            raise ValueError(f"a header of {length} bytes in a file of {size}")
        return start + file.read(length)


def _sealed(body: Mapping[str, Any]) -> bytes:
    """Return `[body, SHA-256 of the body's JSON]`."""
    text = json.dumps(body, sort_keys=True, separators=(",", ":")).encode()
    return b"[" + text + b',"' + hashlib.sha256(text).hexdigest().encode() + b'"]\n'
