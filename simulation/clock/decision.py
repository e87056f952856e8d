"""What a clock decides of a round, and what every clock can do.

A clock says who is asked, who arrives and when, before anybody trains: how long a client takes
follows from its device, not from what it learns. So only clients whose update will be used are
trained. Every clock is a function of its settings, its fleet and a few numbers, `state()`: one that
is restored from them decides the same rest.

    outcome     what became of one client that was asked; each has exactly one
    round       1 and up; the model in force after round r is version r, the first one version 0
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int64]
Number = int | float
State = dict[str, Number | list[int] | list[float]]
"""What a clock is restored from: numbers and lists of numbers, as JSON has them."""

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any


class Outcome(IntEnum):
    """What became of a client that was asked."""

    USED = 0
    """Its update arrived in time and is in the sum."""
    LATE = 1
    """Its update would have arrived, and the round was closed."""
    LOST = 2
    """Its update would have been lost on the way."""
    OFFLINE = 3
    """It went offline before its update could arrive, or was about to."""
    CRASHED = 4
    """It broke off, or was about to."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Decision:
    """One round on the virtual clock. Ids are numbers of clients, in range(clients)."""

    round: int
    opened: float
    """Virtual seconds since the run's beginning at which the round asked its clients; later than
    the close of the round before it where nobody was online."""
    closed: float
    """When it had what it needs, or its deadline passed."""
    invited: Ids = field(repr=False)
    """Who was asked, in the order in which they were chosen. In an asynchronous run whoever was
    asked at some time and came to an end within this round, in the order of these ends."""
    outcomes: NDArray[np.uint8] = field(repr=False)
    """An `Outcome` for each."""
    seconds: NDArray[np.float64] = field(repr=False)
    """For each how long it was at work: until its end, or until the round closed."""
    received: Ids = field(repr=False)
    """For each the bytes of the model that had reached it by then."""
    sent: Ids = field(repr=False)
    """For each the bytes of its update that had left it by then."""
    sending: NDArray[np.float64] | None = field(default=None, repr=False)
    """Synchronous, with a fleet: for each the seconds that its update takes to be sent, which are
    the last of `seconds` where it arrives."""
    void: str | None = None
    """Why the round has no result: too few arrived. Nobody trains, the model stays, and the time
    until `closed` has passed all the same."""
    launches: Ids | None = field(default=None, repr=False)
    """Asynchronous: for each used client the number of its launch, which keys its streams in place
    of the round (`Work.launches`)."""
    models: Ids | None = field(default=None, repr=False)
    """Asynchronous: for each used client the version of the model from which it started, at most
    `round - 1`. None: all start from the model in force."""
    factors: NDArray[np.float64] | None = field(default=None, repr=False)
    """Asynchronous: for each used client what its update counts (`Work.factors`), in (0, 1]."""
    versions: tuple[int, ...] = ()
    """Asynchronous: versions below `round` that clients still at work started from, ascending; no
    other old model will be asked for again."""

    @property
    def used(self) -> Ids:
        """Whose updates the round is made of; who trains."""
        return self.who(Outcome.USED)

    @property
    def late(self) -> Ids:
        """Who was too slow."""
        return self.who(Outcome.LATE)

    @property
    def lost(self) -> Ids:
        """Whose update was lost on the way."""
        return self.who(Outcome.LOST)

    @property
    def offline(self) -> Ids:
        """Who went away."""
        return self.who(Outcome.OFFLINE)

    @property
    def crashed(self) -> Ids:
        """Who broke off."""
        return self.who(Outcome.CRASHED)

    @property
    def durations(self) -> NDArray[np.float64]:
        """Virtual seconds of each used client, in the order of `used`."""
        found: NDArray[np.float64] = self.seconds[self.outcomes == Outcome.USED]
        return found

    @property
    def staleness(self) -> Ids:
        """For each used client how many versions the model moved on while it worked."""
        if self.models is None:
            return np.zeros(len(self.used), np.int64)
        stale: Ids = self.round - 1 - self.models
        return stale

    def who(self, outcome: Outcome) -> Ids:
        """Return the ids with an outcome, in the order of `invited`."""
        found: Ids = self.invited[self.outcomes == outcome]
        return found

    def described(self) -> dict[str, Any]:
        """Return what a ledger and a report keep of it: numbers only, as JSON has them.

        Virtual seconds (`opened`, `closed`, `work`: of all devices together), how many were
        `invited` and became what, `bytes_down`, `bytes_up`, and for an asynchronous round
        `staleness`, one number for each used client.
        """
        counts = np.bincount(self.outcomes, minlength=len(Outcome))
        told: dict[str, Any] = {
            "opened": self.opened,
            "closed": self.closed,
            "invited": len(self.invited),
            **{outcome.name.lower(): int(counts[outcome]) for outcome in Outcome},
            "work": float(self.seconds.sum()),
            "bytes_down": int(self.received.sum()),
            "bytes_up": int(self.sent.sum()),
        }
        if self.models is not None:
            told["staleness"] = self.staleness.tolist()
        return told


class Clock(Protocol):
    """Who is asked, who arrives, and when."""

    @property
    def name(self) -> str:
        """`everybody`, `synchronous` or `buffered`."""

    @property
    def now(self) -> float:
        """Virtual seconds since the run's beginning."""

    def decide(self, round_: int, attempt: int = 0) -> Decision:
        """Return what happens in a round, and go to its end.

        Args:
            round_: 1 and up.
            attempt: 0, and one more for each time that the round is tried again.
        """

    def state(self) -> State:
        """Return what `restore` needs to decide the same rest."""

    def restore(self, state: Mapping[str, object]) -> None:
        """Go to where another clock of the same settings was when it said its state.

        Raises:
            StateError: It is none of this clock's.
        """
