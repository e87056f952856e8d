"""Synchronous rounds: some are asked, the first to answer are used, a deadline ends the wait.

    asked      `invited` clients that are online, drawn (picking.py). Where fewer than the quorum
               are online, time goes on to the first moment at which enough of them are together
    closed     when `cohort` updates have arrived, or all that were asked for; else at the deadline,
               because a server cannot know that the missing will not come
    used       the first `cohort` to arrive; at the same moment the lower number first
    late       who would have arrived, and the round was closed
    void       fewer than `quorum` arrived: no result, and the time has passed

Over-invitation with a deadline is what Bonawitz et al. describe (MLSys 2019).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from .decision import Decision, Outcome
from .ends import ends, traffic
from .kept import numbers_of, real
from .picking import CHUNK, draw_of, picked
from ..fleet.devices import Load
from ...protocol.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from .decision import Ids, State
    from .ends import Ends
    from ..fleet.devices import Fleet

_LOOKS = 10_000_000
"""Clients looked at before a round is void because too few are ever online together: time goes on
16 to 1,000 times."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """How a round goes."""

    cohort: int
    """Updates that it waits for."""
    invited: int
    """Clients that it asks, at least `cohort`: more where some will be late or lost."""
    deadline: float
    """Virtual seconds that it waits."""
    quorum: int = 1
    """Updates without which it has no result, at most `cohort`."""
    load: Load = field(default_factory=Load)
    seed: int = 0
    """Of the run: who is asked."""

    def check(self, clients: int) -> None:
        """Compare them with each other and with the fleet.

        Raises:
            SettingsError: They do not fit.
        """
        if not 1 <= self.cohort <= clients:
            raise SettingsError("cohort", f"1 to {clients}, the number of clients", self.cohort)
        if self.invited < self.cohort:
            raise SettingsError("invited", f"at least the cohort, {self.cohort}", self.invited)
        if not 1 <= self.quorum <= self.cohort:
            raise SettingsError("quorum", f"1 to {self.cohort}, the cohort", self.quorum)
        if not 0 < self.deadline < math.inf:
            raise SettingsError("deadline", "finite seconds above 0", self.deadline)


class Synchronous:
    """One round after another; see `Clock`."""

    name = "synchronous"

    def __init__(self, fleet: Fleet, terms: Terms) -> None:
        """Take the devices and how a round goes.

        Raises:
            SettingsError: The two do not fit.
        """
        terms.check(fleet.clients)
        self.now = 0.0
        self._fleet, self._terms = fleet, terms

    def __str__(self) -> str:
        """Say how rounds go, for the log."""
        asked = f"{self._terms.invited:,} asked for {self._terms.cohort:,}"
        wait = f"{self._terms.deadline:g} virtual seconds"
        return f"synchronous, {asked}, {wait} at most, quorum {self._terms.quorum:,}"

    def decide(self, round_: int, attempt: int = 0) -> Decision:
        """Return who is asked, used, late and lost; see `Clock`."""
        terms, word = self._terms, draw_of(round_, attempt)
        opened, invited = self._gather(word)
        found, times = ends(self._fleet, invited, word, opened, terms.load)
        length, outcomes = self._closed(invited, found)
        seconds = np.minimum(found.seconds, length)
        received, sent = traffic(terms.load, times, seconds)
        arrived = int(np.count_nonzero(outcomes == Outcome.USED))
        void = None if arrived >= terms.quorum else self._too_few(len(invited), arrived)
        self.now = opened + length
        return Decision(
            round=round_,
            opened=opened,
            closed=self.now,
            invited=invited,
            outcomes=outcomes,
            seconds=seconds,
            received=received,
            sent=sent,
            sending=times.up,
            void=void,
        )

    def state(self) -> State:
        """Return the time; see `Clock`."""
        return {"now": self.now}

    def restore(self, state: Mapping[str, object]) -> None:
        """Go to that time; see `Clock`."""
        kept = numbers_of(state, {"now"})
        self.now = real("now", kept["now"])

    def _gather(self, word: int) -> tuple[float, Ids]:
        """Return when enough are online, from now on, and who is asked then."""
        terms, fleet, at = self._terms, self._fleet, self.now
        for _ in range(min(1000, max(16, _LOOKS // fleet.clients))):
            time = at

            def online(ids: Ids, time: float = time) -> NDArray[np.bool_]:
                there: NDArray[np.bool_] = fleet.windows(ids, time, word)[0] <= time
                return there

            found = picked(terms.invited, fleet.clients, terms.seed, word, online)
            if len(found) >= terms.quorum:
                return at, found
            at = self._enough(word, at)
            if at == math.inf:
                break
        return self.now, np.empty(0, np.int64)

    def _enough(self, word: int, at: float) -> float:
        """Return a time before which fewer than the quorum are online together.

        At the first moment at which that many are, each of them has come; so it is not before the
        quorum-th of all beginnings, and it is later than now, at which fewer are there.
        """
        clients, quorum = self._fleet.clients, self._terms.quorum
        first = np.empty(0)
        for start in range(0, clients, CHUNK):
            ids = np.arange(start, min(start + CHUNK, clients))
            begin = np.maximum(self._fleet.windows(ids, at, word)[0], at)
            first = np.sort(np.concatenate([first, begin]))[:quorum]
        return float(first[-1])

    def _closed(self, invited: Ids, found: Ends) -> tuple[float, NDArray[np.uint8]]:
        """Return after how long the round is closed, and what became of each client."""
        terms, outcomes = self._terms, found.outcomes.copy()
        arrives = np.flatnonzero(outcomes == Outcome.USED)
        order = arrives[np.lexsort((invited[arrives], found.seconds[arrives]))]
        in_time = order[found.seconds[order] <= terms.deadline]
        wanted = min(terms.cohort, len(invited))
        used = in_time[:wanted]
        outcomes[arrives] = Outcome.LATE
        outcomes[used] = Outcome.USED
        if not len(invited):
            return 0.0, outcomes
        full = len(used) == wanted
        return float(found.seconds[used[-1]]) if full else terms.deadline, outcomes

    def _too_few(self, invited: int, arrived: int) -> str:
        quorum = self._terms.quorum
        if not invited:
            return f"fewer than {quorum} clients are ever online together"
        wait = f"{self._terms.deadline:g} virtual seconds"
        return f"{arrived} of {invited} updates arrived within {wait}; the quorum is {quorum}"
