"""The moments of a server step on the disk: `state.safetensors` beside the model of their round.

One array for each averaged array of the model and each moment, named `MOMENT/ARRAY`, in the dtype
of the model's array, in a file as array_file.py writes it. It is read piece by piece too: nothing
of the size of a model is held beside the buffers. A reader opens what `write_moments` wrote, of
the SHA-256 that was noted, for the same model and rule; of any other file nothing is taken.
"""

from __future__ import annotations

import hashlib
import os
from typing import TYPE_CHECKING, BinaryIO

from .array_file import CHUNK, About, header, pieces
from .plain_files import open_file, why
from ..protocol.errors import StateError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from .stepping import StateFile
    from ..protocol.manifest import Entry, Manifest

STATE_FILE = "state.safetensors"
_MOVE = "resume from an earlier round or restore a backup"


def write_moments(path: Path, manifest: Manifest, moments: Mapping[str, memoryview]) -> bytes:
    """Write moments to a new file (0600); return its SHA-256. The caller forces it to the disk.

    Args:
        path: The file.
        manifest: Of the model.
        moments: Each a flat buffer in the layout of `manifest`.

    Raises:
        OSError: It cannot be written.
    """
    digest = hashlib.sha256()
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with os.fdopen(handle, "wb") as file:
        head = _header(manifest, tuple(moments))
        for piece in (memoryview(head), *_pieces(manifest, moments)):
            digest.update(piece)
            file.write(piece)
    return digest.digest()


def read_moments(of: StateFile, manifest: Manifest, moments: Mapping[str, memoryview]) -> None:
    """Fill the buffers with what `write_moments` wrote of them.

    Raises:
        StateError: There is no such file, or it is not what was noted for this model and rule.
    """
    try:
        with open_file(of.path) as file:
            _read(file, of, manifest, moments)
    except (OSError, ValueError) as error:
        raise StateError(str(of.path), "the moments of its round", why(error), _MOVE) from error


def check_moments(of: StateFile) -> None:
    """Hash a file of moments.

    Raises:
        OSError: It cannot be read.
        ValueError: It is another one than was noted.
    """
    with open_file(of.path) as file:
        digest = hashlib.sha256()
        while piece := file.read(CHUNK):
            digest.update(piece)
    if digest.digest() != of.digest:
        raise ValueError(f"SHA-256 {digest.hexdigest()} instead of {of.digest.hex()}")


def _read(
    file: BinaryIO, of: StateFile, manifest: Manifest, moments: Mapping[str, memoryview]
) -> None:
    head, digest = _header(manifest, tuple(moments)), hashlib.sha256()
    size = len(head) + len(moments) * sum(entry.nbytes for entry in manifest.averaged)
    got = os.fstat(file.fileno()).st_size
    if got != size or file.read(len(head)) != head:
        raise ValueError(f"{got} bytes of other arrays; {size} expected")
    digest.update(head)
    for piece in _pieces(manifest, moments):
        data = file.read(len(piece))
        if len(data) != len(piece):
            raise ValueError("fewer bytes than it had")
        piece[:] = data
        digest.update(data)
    if digest.digest() != of.digest:
        raise ValueError(f"SHA-256 {digest.hexdigest()} instead of {of.digest.hex()}")


def _order(manifest: Manifest) -> list[Entry]:
    """Return the averaged arrays widest first: each starts at a multiple of its size."""
    return sorted(manifest.averaged, key=lambda entry: -entry.numpy.itemsize)


def _header(manifest: Manifest, names: tuple[str, ...]) -> bytes:
    return header(
        {
            f"{name}/{entry.name}": About(entry.dtype, entry.shape, entry.nbytes)
            for entry in _order(manifest)
            for name in names
        }
    )


def _pieces(manifest: Manifest, moments: Mapping[str, memoryview]) -> Iterator[memoryview]:
    """Yield the bytes of each array in the order of the header, at most a chunk at a time."""
    for entry in _order(manifest):
        for buffer in moments.values():
            yield from pieces(buffer[entry.offset : entry.offset + entry.nbytes])
