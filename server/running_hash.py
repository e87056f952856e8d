"""SHA-256 of a vector while it arrives, in one thread beside the event loop.

The hash is as fast as a connection, so that on the loop it would take half of the time in which
frames could be read. Large parts are handed to the thread in their order; the loop waits for it
only where it falls behind by `BEHIND`, or where the digest is asked for: of a vector's last frame,
at most. What was handed over must stay as it is, and where it is, until `wait`.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import cache
from hashlib import sha256
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from concurrent.futures import Future

LARGE = 256 << 10
"""Bytes from which on the thread is worth its call."""
BEHIND = 8 << 20
"""Bytes that may wait in the thread, for each vector."""


@cache
def _thread() -> ThreadPoolExecutor:
    """Return the one thread; it starts with the first large part."""
    return ThreadPoolExecutor(1, "umbel-hash")


class RunningHash:
    """The hash of one vector."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self.length = 0
        """Bytes that were given."""
        self._digest = sha256()
        self._waiting = 0
        self._last: Future[None] | None = None

    def update(self, part: memoryview) -> None:
        """Take the next bytes, which are not written any more."""
        self.length += len(part)
        if self._last is not None and self._last.done():
            self._waiting = 0
        if len(part) < LARGE or self._waiting > BEHIND:
            self.wait()
        if len(part) < LARGE:
            self._digest.update(part)
            return
        self._waiting += len(part)
        self._last = _thread().submit(self._digest.update, part)

    def wait(self) -> None:
        """Return when nothing is read any more: the thread takes its parts in order."""
        if self._last is not None:
            self._last.result()
        self._last, self._waiting = None, 0

    def digest(self) -> bytes:
        """Return SHA-256 of all that was given."""
        self.wait()
        return self._digest.digest()
