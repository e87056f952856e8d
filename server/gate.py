"""What stands between an attempt that is over and the next one: somebody's decision, or a wait.

    over ──► held ──► no item waits for a decision ──► a new round: ready ──► the next attempt
                  └── an item does: the ledger says `paused`, devices keep their sessions
                  └── one was rejected: the run ends, with the decision as its cause

Asked again and again until something begins; asking costs nothing while nothing is open
(watching.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import reviews
from .watch_terms import Go
from ..protocol.errors import RoundFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from .invitation import Joined
    from .surroundings import Surroundings

HELD_S = 0.1
"""How long who drives a simulated run that waits sleeps before it asks again."""
NEW = "aborted"
"""What was before a round's first attempt, as a cause of its end says it."""


class Gate:
    """One coordinator's."""

    def __init__(self, around: Surroundings, note: Callable[[str, str, str], None]) -> None:
        """Hold nothing; `note` takes the ledger's events: kind, node, code."""
        self._around, self._note = around, note
        self._before, self._new, self._paused = "", False, ""

    @property
    def holds(self) -> bool:
        """Whether an attempt is to begin."""
        return bool(self._before)

    def hold(self, before: str = NEW) -> None:
        """Hold the next attempt; of a new round, or after one that ended as `before` says."""
        self._before, self._new = before, before == NEW

    def opens(self, number: int, nodes: Mapping[str, Joined], now: float) -> str:
        """Return what was before the attempt that may begin now; empty while none may.

        Args:
            number: Of the round.
            nodes: Who is here.
            now: Monotonic seconds.

        Raises:
            RoundFailed: Somebody decided that the run ends.
            StateError: The ledger cannot be read or written.
        """
        go, said = self._around.watch.verdict(now)
        if go is Go.WAIT and said != self._paused:
            self._pause(number, said)
        if go is Go.WAIT or (go is Go.ON and self._new and not self._ready(number, nodes, now)):
            return ""
        if self._paused and go is Go.ON:
            self._note(reviews.WENT_ON, "", self._paused)
        before, self._before, self._paused = self._before, "", ""
        if go is Go.END:
            raise RoundFailed(f"was not begun: {said}")
        return before

    def _pause(self, number: int, said: str) -> None:
        """Let the record say that the run waits, and whoever looks at it from elsewhere see it."""
        self._note(reviews.PAUSED, "", said)
        self._paused = said
        self._around.directory.settle()
        self._around.watch.paused(number)

    def _ready(self, number: int, nodes: Mapping[str, Joined], now: float) -> bool:
        return self._around.ready(number, nodes, now)
