"""What the owner says while a session goes on, heard beside it.

The session's own thread computes for minutes: another one looks at the owner's files, so that
`umbel client pause --now` ends a training in its middle.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from .pause import halted

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from .pause import Halt

LOOK_S = 0.5


class Owner:
    """Looks until it is closed; `halt` is what was seen last."""

    def __init__(self, directory: Path, broken_off: Callable[[str], None]) -> None:
        """Begin with `open`.

        Args:
            directory: The device's.
            broken_off: Called once, in another thread, when what is open is to be broken off.
        """
        self._directory, self._broken_off = directory, broken_off
        self.halt: Halt | None = None
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._look, name="umbel-owner", daemon=True)

    def open(self) -> None:
        """Begin to look."""
        self._thread.start()

    def close(self) -> None:
        """Look no more."""
        self._closed.set()

    def _look(self) -> None:
        while not self._closed.is_set():
            self.halt = halted(self._directory)
            if self.halt is not None and self.halt.now:
                self._broken_off(self.halt.why)
                return
            self._closed.wait(LOOK_S)
