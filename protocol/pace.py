"""How large the next frame is: what the line carries in about a quarter of a second.

Whatever shares a connection waits behind the frame that is on its way, and so does the answer to a
ping: on a slow line a frame of 1 MiB would make a device look dead, and be sent again whole after
each break. So the first frame is small, and the next one twice or half as large as the one before,
by the time that one took. Not a limit: the receiver takes any size up to `frames.PAYLOAD`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .frames import PAYLOAD

if TYPE_CHECKING:
    from collections.abc import Callable

FIRST = 64 << 10
"""Bytes of payload in the first frame."""
LEAST = 8 << 10
"""Bytes of payload in a frame on the slowest line."""
QUICK, SLOW = 0.125, 0.5
"""Seconds for a frame: below, the next one is larger; above, smaller."""


class Pace:
    """The sizes of one transfer's frames; kept over its breaks."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """Begin small; `clock` gives monotonic seconds."""
        self._clock = clock
        self._size, self._since = FIRST, clock()
        self._begun = False

    def begin(self) -> None:
        """Note that a call begins: the time since the last frame says nothing of the line."""
        self._begun = False

    def __call__(self) -> int:
        """Return the bytes of the next frame, which is asked for when the last one has left."""
        now = self._clock()
        took, self._since = now - self._since, now
        if self._begun and took < QUICK:
            self._size = min(2 * self._size, PAYLOAD)
        elif self._begun and took > SLOW:
            self._size = max(self._size // 2, LEAST)
        self._begun = True
        return self._size
