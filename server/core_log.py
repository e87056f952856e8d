"""One clear line for each thing that happens at the gateway, and never a flood of them.

Whoever can reach the port can make the gateway refuse something; so each kind of line has its
own allowance, and what is held back is counted and said with the next line of its kind. A line that
the log's disk does not take is lost, and the service goes on.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import TYPE_CHECKING

from ..protocol.errors import one_line

if TYPE_CHECKING:
    from collections.abc import Callable

BURST = 10
"""Lines of one kind that may come at once."""
PER_SECOND = 1.0
"""And how fast the allowance comes back."""


def console(line: str) -> None:
    """Write a whole line to this process's own log, or lose it where the disk is full."""
    with suppress(OSError):
        print(line, file=sys.stderr, flush=True)


class Lines:
    """A log with an allowance for each kind of line."""

    def __init__(self, write: Callable[[str], None], clock: Callable[[], float]) -> None:
        """Write whole lines, without their end, with `write`."""
        self._write, self._clock = write, clock
        self._kinds: dict[str, tuple[float, float, int]] = {}

    def say(self, kind: str, line: str) -> None:
        """Write the line, or count it when too many of its kind came before it."""
        now = self._clock()
        left, at, held = self._kinds.get(kind, (float(BURST), now, 0))
        left = min(float(BURST), left + (now - at) * PER_SECOND)
        if left < 1.0:
            self._kinds[kind] = left, now, held + 1
            return
        more = f" (and {held} more of this kind)" if held else ""
        self._kinds[kind] = left - 1.0, now, 0
        self._write(one_line(" ".join(line.split())) + more)
