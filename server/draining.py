"""A ServerApp that is told to end lets its round end first; told twice, it ends at once.

SIGTERM and SIGINT are taken for the length of a block. After the first, no round begins any more;
the one that runs has `DRAIN_S` to end. After the second, what was there before does what it did:
under Flower that ends the process.
"""

from __future__ import annotations

import signal
import threading
from typing import TYPE_CHECKING, Self, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

DRAIN_S = 60.0
"""How long the round that runs may take until it ends, once the run is told to end."""
N = TypeVar("N")
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Drain:
    """Whether this process was told to end."""

    def __init__(self) -> None:
        """Nobody has said so."""
        self.asked = ""
        """The signal's name."""
        self._since: float | None = None
        self._before: dict[int, Callable[[int, FrameType | None], object] | int | None] = {}

    def __enter__(self) -> Self:
        """Take the signals, where they come: in the main thread."""
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._told) for number in _SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        """Give them back."""
        self._give_back()

    def gate(self, ready: Callable[[int, N, float], bool]) -> Callable[[int, N, float], bool]:
        """Return `ready`, asked before each round, with a no from now on when told to end."""
        return lambda number, nodes, now: not self.asked and ready(number, nodes, now)

    def over(self, now: float, *, between: bool) -> bool:
        """Tell whether to end now.

        Args:
            now: Monotonic seconds.
            between: Whether no round is running.
        """
        if not self.asked:
            return False
        self._since = now if self._since is None else self._since
        return between or now - self._since > DRAIN_S

    def _told(self, number: int, _frame: FrameType | None) -> None:
        if not self.asked:
            self.asked = signal.Signals(number).name
            return
        self._give_back()
        signal.raise_signal(number)

    def _give_back(self) -> None:
        before, self._before = self._before, {}
        for number, handler in before.items():
            signal.signal(number, handler)
