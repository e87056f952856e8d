"""What is kept of many clients between rounds, in a file and not in memory.

A private file without a name, in the machine's temporary directory: it is gone with this process.
New values are appended; when more than half of the file is old, it is written anew.
"""

from __future__ import annotations

import os
import tempfile
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import IO

SLACK = 1 << 26
"""Bytes of old values that are never worth a copy of the rest."""


class _Place(NamedTuple):
    start: int
    sizes: tuple[int, ...]


class Spill:
    """Lists of bytes by number."""

    def __init__(self) -> None:
        """Make the file."""
        self._file: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - `close` ends it
        self._places: dict[int, _Place] = {}
        self._end = self._live = 0

    def __len__(self) -> int:
        """Return how many numbers have something."""
        return len(self._places)

    def put(self, number: int, blobs: Sequence[bytes | memoryview]) -> None:
        """Keep something under a number, in place of what was there; nothing is forgotten.

        Raises:
            OSError: The disk is full; what was there before is there still.
        """
        place = _Place(self._end, tuple(len(blob) for blob in blobs))
        at = self._end
        for blob in blobs:
            view = memoryview(blob)
            while view:
                written = os.pwrite(self._file.fileno(), view, at)
                at, view = at + written, view[written:]
        old = self._places.get(number)
        self._live += at - self._end - (0 if old is None else sum(old.sizes))
        self._end = at
        self._places[number] = place
        if not blobs:
            del self._places[number]
        if self._end - self._live > max(self._live, SLACK):
            self._rewrite()

    def get(self, number: int) -> list[bytes]:
        """Return what is kept under a number, an empty list for nothing."""
        place = self._places.get(number)
        if place is None:
            return []
        found, at = [], place.start
        for size in place.sizes:
            found.append(os.pread(self._file.fileno(), size, at))
            at += size
        return found

    def close(self) -> None:
        """Forget everything."""
        self._file.close()

    def _rewrite(self) -> None:
        """Copy what is in force into a new file."""
        anew = Spill()
        for number in list(self._places):
            anew.put(number, self.get(number))
        self._file.close()
        self._file, self._places, self._end = anew._file, anew._places, anew._end
