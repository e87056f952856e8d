"""Files and folders of a run on the disk, opened with suspicion and made to last.

No link is followed and no pipe waited for; what is read is regular and within a limit.
"""

from __future__ import annotations

import os
import shutil
import stat
from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    from pathlib import Path


def open_file(path: Path) -> BinaryIO:
    """Open a regular file for reading: no link is followed, and no pipe is waited for."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise ValueError("no regular file")
    return os.fdopen(descriptor, "rb")


def read_file(path: Path, limit: int) -> bytes:
    """Return a regular file's bytes; no link is followed, no pipe waited for.

    Raises:
        OSError: It cannot be read.
        ValueError: It is no regular file, or has more than `limit` bytes; none of them is read.
    """
    with open_file(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > limit:
            raise ValueError(f"{size} bytes, {limit} at most")
        return file.read(size + 1)  # a buffer of that size is made beforehand


def remove(path: Path) -> None:
    """Remove what has this name, whatever it is; nothing where there is nothing.

    Raises:
        OSError: It cannot be removed.
    """
    try:
        if stat.S_ISDIR(path.lstat().st_mode):
            shutil.rmtree(path)
        else:
            path.unlink()
    except FileNotFoundError:
        return


def sync(path: Path) -> None:
    """Force a file or a directory to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def why(error: Exception) -> str:
    """Return what an error says, without the path that stands before it already."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    if isinstance(error, KeyError):
        return f"no key {error}"
    return str(error)
