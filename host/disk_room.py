"""Whether a disk has room for what programs write beside their work: databases and logs."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from ..protocol.errors import StateError

if TYPE_CHECKING:
    from pathlib import Path

ROOM_BYTES = 1 << 20
"""What must be free for databases and logs."""
LOW_S = 5.0


class Room:
    """Whether a disk has room for databases and logs that others write, looked at again and again.

    A moment without room, as when somebody's scratch file comes and goes, is none.
    """

    def __init__(self, folder: Path) -> None:
        """Look at nothing yet."""
        self._folder = folder
        self._low_since: float | None = None

    def check(self, now: float) -> None:
        """Look, at a time in seconds.

        Raises:
            StateError: Fewer than `ROOM_BYTES` have been free for `LOW_S`.
        """
        free = free_bytes(self._folder)
        if free >= ROOM_BYTES:
            self._low_since = None
            return
        self._low_since = now if self._low_since is None else self._low_since
        if now - self._low_since >= LOW_S:
            raise no_room(self._folder)


def free_bytes(path: Path) -> int:
    """Return the bytes that this user can still write on the disk of `path`."""
    return shutil.disk_usage(path).free


def no_room(folder: Path) -> StateError:
    """Return the error of a disk without room for databases and logs."""
    expected = f"{ROOM_BYTES} bytes free for databases and logs"
    return StateError(
        str(folder), expected, f"{free_bytes(folder)} bytes", "free the disk, then resume"
    )
