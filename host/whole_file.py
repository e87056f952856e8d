"""Writing a file whole and for good: whoever reads it finds the old bytes or the new ones.

A temporary file beside it, under its mode from the first byte on, is written, fsynced and put in
its place; then the directory is fsynced, so that a loss of power undoes none of it. Where a loss
of power need not be outlived, both fsyncs can be left out.
"""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def write_whole(
    path: Path, content: bytes | bytearray, mode: int = 0o600, *, lasting: bool = True
) -> None:
    """Write a file.

    Args:
        path: Where; one process at a time writes it.
        content: All of it.
        mode: Of the new file.
        lasting: Whether it must be on the disk when this returns.

    Raises:
        OSError: It could not be written; what was there before is there still.
    """
    if not path.name:  # "." and "/", which no file can have as its name
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    temporary = path.with_name(f".{path.name}.new")
    temporary.unlink(missing_ok=True)
    flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW
    with open(os.open(temporary, flags, mode), "wb") as out:
        out.write(content)
        out.flush()
        if lasting:
            os.fsync(out.fileno())
    temporary.replace(path)
    if lasting:
        sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Return when what was made, renamed or removed in a directory is durable."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
