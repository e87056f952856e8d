"""What user code raised, on this machine's stderr: a trace for each cause, and then a count.

A task that raises for one client in three raises a hundred times in a round of a simulation, and
once a round on a device for as long as the run goes on. The cause is the same where the exception's
type and the lines that it passed are; its words may name the client.
"""

from __future__ import annotations

import sys
import traceback
from collections import Counter

_MOST = 1000
"""Causes that are remembered; beyond, they are told anew."""


class Traces:
    """What one process has told."""

    def __init__(self) -> None:
        """Have told nothing."""
        self._told = Counter[tuple[object, ...]]()

    def tell(self, error: BaseException) -> None:
        """Print a trace where it is new, else a line at its 10th, 100th, ... time."""
        lines = traceback.extract_tb(error.__traceback__)
        cause = (type(error), *((line.filename, line.lineno) for line in lines))
        if len(self._told) >= _MOST:
            self._told.clear()
        self._told[cause] += 1
        count = self._told[cause]
        if count == 1:
            traceback.print_exception(error)
        elif str(count) == "1" + "0" * (len(str(count)) - 1):
            place = f"{lines[-1].filename}:{lines[-1].lineno}" if lines else "nowhere"
            said = f"{type(error).__name__} at {place}: {count} times by now, its trace is above"
            print(said, file=sys.stderr)
