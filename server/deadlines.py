"""One deadline a round, from which the server's other times follow.

    deadline = training + trips        trips: sharing, summing (the uploads), voting, unmasking;
                                       with masks off summing alone

| part | seconds |
|---|---|
| summing | a tenth of the deadline |
| each other trip | a twentieth of it |
| a trip that was timed | `FACTOR` times its slowest of `WINDOW` attempts, `LEAST_S` or more, |
| | and no more than the above |
| every trip, where `trip` is set | `trip` |
| training | the rest |

The parts add up to the deadline, so a round that uses each to its end closes at its deadline. A
phase that timed out counts with the time it had, so a part that was too short grows again. Training
is never shortened by what was timed: nothing but the open session tells a slow trainer from a stuck
one. Uploads may go on after their part while one of them keeps pace, until only the later trips'
parts are left of the deadline.

Pure: time is passed in, monotonic seconds.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict, deque
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from .cohort import invitations
from ..protocol.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping
    from datetime import datetime

    from .invitation import Joined
    from .ledger import Event, RoundRecord
    from .settings import RunSettings

TRAINING, UPLOADS = "inviting", "summing"
TRIPS = {"A": ("sharing", UPLOADS, "voting", "unmasking"), "plain": (UPLOADS,)}
"""The phases after the training, by scheme, as protocol/round_table.py calls them."""
LEASE_S = 6 * 3600
"""Life of a ticket, and of a session that begins no further attempt: no round may be longer."""
LEAST_S = 15.0
"""A timed trip gets no less: a broken stream comes back within it."""
FACTOR = 4.0
WINDOW = 10
QUIET_S = 60.0
"""A phase in which nobody answers names whom it waits for after a quarter of its part, and after
this at the latest, unless it is known to take longer: then after half of its part at the latest."""
LEAST_QUIET_S = 5.0
"""... and never sooner than this: a broken stream has come back by then, or is lost by name."""
MOST_LOST = 0.9
"""Whatever was counted, no more than ten times as many are asked as are wanted."""


@dataclass(frozen=True, slots=True)
class Times:
    """The parts of one attempt, in seconds."""

    deadline: float
    """Of the whole attempt."""
    trips: Mapping[str, float]
    """Of each phase after the training."""
    typical: Mapping[str, float]
    """The slowest of each phase so far, where one was timed."""

    def of(self, phase: str) -> float:
        """Return a phase's part; infinity for a phase in which nobody is waited for."""
        if phase == TRAINING:
            return self.deadline - sum(self.trips.values())
        return self.trips.get(phase, math.inf)

    def after(self, phase: str) -> float:
        """Return what the phases after this one need."""
        names = list(self.trips)
        later = names if phase == TRAINING else names[names.index(phase) + 1 :]
        return sum(self.trips[name] for name in later)

    def quiet(self, phase: str) -> float:
        """Return after how long without an answer a phase names whom it waits for."""
        if (part := self.of(phase)) == math.inf:
            return math.inf
        known = min(2 * self.typical.get(phase, 0.0), part / 2)
        return max(min(part / 4, QUIET_S), known, LEAST_QUIET_S)


def times(
    deadline: float,
    trip: float | None,
    scheme: str,
    typical: Mapping[str, float] | None = None,
) -> Times:
    """Return the parts of an attempt.

    Args:
        deadline: Seconds of the whole.
        trip: Seconds of each trip, where the user says so.
        scheme: `A` or `plain`.
        typical: The slowest of each phase so far.

    Raises:
        SettingsError: The trips leave nothing for the training.
    """
    known, names = typical or {}, TRIPS[scheme]
    if trip is not None:
        trips = dict.fromkeys(names, trip)
    else:
        trips = {
            name: _part(deadline / (10 if name == UPLOADS else 20), known.get(name))
            for name in names
        }
    left = deadline - sum(trips.values())
    if not left > 0.0:
        count = len(names)
        expected = (
            f"more than {count} trip{'s' * (count > 1)} of {trip:g} s = {count * (trip or 0):g} s"
        )
        move = f"that leaves {left:g} s for training: raise deadline, or lower trip"
        raise SettingsError("deadline", expected, deadline, move)
    return Times(deadline, trips, known)


def _part(most: float, slowest: float | None) -> float:
    return most if slowest is None else min(most, max(LEAST_S, FACTOR * slowest))


class PhaseClock:
    """When the phase of an attempt ends, and when it is quiet for so long that it says so."""

    def __init__(self, parts: Times, now: float) -> None:
        """Begin with the training."""
        self.seconds: dict[str, float] = {}
        """How long each phase took."""
        self._parts, self._end = parts, now + parts.deadline
        self._phase, self._entered = TRAINING, now
        self._begin(now)

    def _begin(self, now: float) -> None:
        self.named: tuple[str, ...] = ()
        """Whom the phase has been found to wait for."""
        self._until = now + self._parts.of(self._phase)
        self._said, self._waiting, self._heard, self._alive = False, -1, now, -math.inf

    def enter(self, phase: str, now: float) -> None:
        """End a phase and begin the next."""
        spent = now - self._entered
        self.seconds[self._phase] = self.seconds.get(self._phase, 0.0) + spent
        self._phase, self._entered = phase, now
        self._begin(now)

    @property
    def latest(self) -> float:
        """When the uploads end, however well they go."""
        return self._end - self._parts.after(UPLOADS)

    def alive(self, until: float) -> None:
        """Note that an upload keeps pace until then, if the phase is theirs."""
        if self._phase == UPLOADS:
            self._alive = min(until, self.latest)

    def over(self, now: float) -> bool:
        """Whether the phase has had its time."""
        return now >= max(self._until, self._alive)

    @property
    def due(self) -> float:
        """When the clock next matters."""
        end = max(self._until, self._alive)
        return end if self._said else min(end, self._quiet_at)

    @property
    def _quiet_at(self) -> float:
        return max(self._heard + self._parts.quiet(self._phase), self._alive)

    def quiet(self, waiting: Collection[str], now: float) -> tuple[str, ...]:
        """Return whom the phase waits for, once, when nobody has answered for long."""
        if len(waiting) != self._waiting:
            self._waiting, self._heard = len(waiting), now
        if self._said or now < self._quiet_at or self.over(now):
            return ()
        self._said, self.named = True, tuple(sorted(waiting))
        return self.named


class Deadlines:
    """The parts of a run's attempts, from its settings and from what earlier attempts showed."""

    def __init__(
        self,
        settings: RunSettings,
        records: Iterable[RoundRecord] = (),
        events: Iterable[Event] = (),
    ) -> None:
        """Begin with what the ledger of a resumed run says."""
        self._settings = settings
        self._timed: dict[tuple[str, str], deque[float]] = defaultdict(_window)
        self._ready: deque[int] = _window()
        self._missed: deque[int] = _window()
        self._ending, self._silent = set[str](), set[str]()
        missed = Counter((e.round, e.attempt) for e in events if _misses(e.kind, e.code))
        self._open = 0
        for record in records:
            self._open = missed.pop((record.round, record.attempt), 0)
            self.record(record)

    def event(self, kind: str, node: str, code: str) -> None:
        """Take an event of the open attempt."""
        self._open += _misses(kind, code)
        if (kind, code) == ("late", TRAINING):
            self._silent.add(node)

    def heard(self, node: str) -> None:
        """Take a sign of life: any message of a node, or that it joins."""
        self._silent.discard(node)

    def record(self, record: RoundRecord) -> None:
        """Take the record of an attempt that is over."""
        for name, seconds in record.seconds.items():
            self._timed[record.phase, name].append(seconds)
        if record.roster:
            self._ready.append(len(record.roster))
            self._missed.append(self._open)
        self._open = 0

    def times(self, phase: str) -> Times:
        """Return the parts of the next attempt at a phase, `train` or `evaluate`."""
        own = self._settings
        typical = {name: max(s) for (of, name), s in self._timed.items() if of == phase}
        return times(own.deadline, own.trip, own.scheme, typical)

    @property
    def dropout(self) -> float:
        """The share of asked nodes that do not get ready: the user's, else what was counted."""
        if self._settings.dropout or not self._ready:
            return self._settings.dropout
        missed = sum(self._missed)
        return min(missed / (missed + sum(self._ready)), MOST_LOST)

    def asked(self, wanted: int) -> int:
        """Return how many nodes are asked so that `wanted` get ready."""
        return invitations(wanted, self.dropout) if wanted else 0

    def needed(self, wanted: int, asked: Collection[str]) -> int:
        """Return how many of the asked freeze the roster when they are ready.

        Who was late with its training and has not said a word since is asked, and not waited for:
        a trainer that hangs behind an open session costs one round its deadline, and not every one.
        """
        awake = len(asked) - len(self._silent.intersection(asked))
        return min(wanted, len(asked), max(awake, self._settings.params.min_members))

    def ending(
        self, nodes: Mapping[str, Joined], wall: datetime, note: Callable[[str, str, str], None]
    ) -> frozenset[str]:
        """Return the nodes whose certificate ends before a round that begins now may.

        Each would refuse in the middle of it; `note` is told of each once. A certificate that is
        over by this clock says that the clock was set: the gateway ends sessions by the time that
        has passed, so its bearer would not be here.
        """
        ends = {node: joined.member.not_after for node, joined in nodes.items()}
        until = wall + timedelta(seconds=self._settings.deadline)
        found = frozenset(node for node, end in ends.items() if wall <= end < until)
        for node in sorted(found - self._ending):
            note("left out", node, "its certificate ends before the round may")
        self._ending = set(found)
        return found


def _window() -> deque[Any]:
    return deque(maxlen=WINDOW)


def _misses(kind: str, code: str) -> bool:
    """Whether an event says that a node did not get ready; one not needed any more says nothing."""
    return kind == "refused" or (kind in {"late", "lost"} and code == TRAINING)
