"""Launches of an asynchronous run, looked at some dozens ahead.

Which clients a launch would ask, and how long each would take, follows from its number alone; only
whether one is free and online depends on the time. So the numbers are drawn for a block of launches
at once, and a launch itself is a look at a list. A launch of a later hour than its block's looks
anew at what becomes of its client, as that may be another. The client of a launch is that of
`drawn(1, clients, seed, 10^6 + launch, free and online)`: the block is only faster. Where more
than half of all clients are busy, it is drawn in the same way from a list of the others; where the
draw finds nobody, scarce.py takes over until enough are at work.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .decision import Outcome
from .ends import alone
from .picking import CHUNK, candidates, drawn
from .scarce import Scarce
from ..fleet.sites import HOUR

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .decision import Ids
    from ..fleet.devices import Fleet, Load

DRAWS = 10**6
"""Added to a launch's number for its draw, which no round's is."""
_BLOCK = 64
"""Launches."""
_AHEAD = 16
"""Candidates of each: one in 200 launches needs more where 28 % are online."""


class Launched(NamedTuple):
    """A client that has been asked, and how that ends."""

    client: int
    outcome: Outcome
    ends: float
    """Virtual seconds since the run's beginning."""


class Busy:
    """Who may not be asked: at work, or in the open buffer."""

    def __init__(self, clients: int) -> None:
        """Begin with nobody."""
        self.count, self._flags = 0, bytearray(clients)
        self._view = np.frombuffer(self._flags, np.uint8)

    def __contains__(self, client: int) -> bool:
        """Tell whether a client is busy."""
        return bool(self._flags[client])

    def add(self, client: int) -> None:
        """Count a client in that was free."""
        self._flags[client] = 1
        self.count += 1

    def discard(self, client: int) -> None:
        """Count a client out that was busy."""
        self._flags[client] = 0
        self.count -= 1

    @property
    def full(self) -> bool:
        """Whether nobody is free."""
        return self.count == len(self._flags)

    @property
    def crowded(self) -> bool:
        """Whether more are busy than free."""
        return 2 * self.count > len(self._flags)

    def free(self, start: int, end: int) -> Ids:
        """Return who of some clients is free, ascending."""
        return np.flatnonzero(self._view[start:end] == 0) + start

    def are_free(self, ids: Ids) -> NDArray[np.bool_]:
        """Tell of each client whether it is free."""
        found: NDArray[np.bool_] = self._view[ids] == 0
        return found


class Launches:
    """Finds the client of each launch."""

    def __init__(self, fleet: Fleet, load: Load, seed: int) -> None:
        """Take the devices, what is asked of them, and the seed of the draws."""
        self._fleet, self._load, self._seed = fleet, load, seed
        self._ahead = _AHEAD if fleet.clients >= _BLOCK else 0
        self._scarce: Scarce | None = None
        self._first = -1
        """The block's first launch."""
        self._hour = -1.0
        """In which it was looked at: what becomes of a client depends on that."""
        self._clients: list[list[int]] = []
        self._outcomes: list[list[int]] = []
        self._seconds: list[list[float]] = []
        self._since: list[list[float]] = []
        self._until: list[list[float]] = []

    def launch(self, number: int, time: float, busy: Busy) -> Launched | None:
        """Ask a client that is online and not busy; None where there is none."""
        if self._scarce is None:
            found = self._ahead_of(number, time, busy) or self._drawn(number, time, busy)
            if found is not None:
                return found
            self._scarce = self._all(number, time, busy)
        return self._of_few(self._scarce, number, time)

    @property
    def wake(self) -> float:
        """Where a launch found nobody: when the first free client comes; infinity for never."""
        return math.inf if self._scarce is None else self._scarce.wake

    def freed(self, client: int, number: int, time: float) -> None:
        """Take note that a client is not busy any more, which launches may be waiting for."""
        if self._scarce is not None:
            begin = self._fleet.windows(np.array([client]), time, number)[0]
            self._scarce.free(client, float(begin[0]))

    def settle(self) -> None:
        """Look anew the next time: enough are at work, or others are free."""
        self._scarce = None

    def _ahead_of(self, number: int, time: float, busy: Busy) -> Launched | None:
        """Ask one of the block's candidates."""
        if not self._ahead or busy.crowded:
            return None
        if number - number % _BLOCK != self._first:
            self._look_ahead(number - number % _BLOCK, time)
        row = number % _BLOCK
        for place, client in enumerate(self._clients[row]):
            if client not in busy and self._online(row, place, number, time):
                if time // HOUR != self._hour:
                    until = self._until[row][place]
                    return self._asked(np.array([client]), number, time, until)
                outcome, seconds = self._outcomes[row][place], self._seconds[row][place]
                return _ended(client, outcome, seconds, time, self._until[row][place])
        return None

    def _online(self, row: int, place: int, number: int, time: float) -> bool:
        """Tell whether a candidate is online; what is known of it may be of a day that is over."""
        if self._until[row][place] <= time:
            ids = np.array([self._clients[row][place]])
            begin, end = self._fleet.windows(ids, time, number)
            self._since[row][place], self._until[row][place] = float(begin[0]), float(end[0])
        return self._since[row][place] <= time

    def _look_ahead(self, first: int, time: float) -> None:
        """Draw the candidates of a block of launches, and how long each of them would take."""
        numbers = np.arange(first, first + _BLOCK)
        draws = (numbers + DRAWS).astype(np.uint64)[:, None]
        ids = candidates(self._fleet.clients, self._seed, draws, np.arange(self._ahead))
        flat, words = ids.reshape(-1), np.repeat(numbers, self._ahead)
        times = self._fleet.times(flat, words, self._load)
        ended = alone(times, self._fleet.fates(flat, words, time))
        since, until = self._fleet.windows(flat, time, words)
        self._first, self._hour = first, time // HOUR
        self._clients, self._outcomes = _table(ids, ids), _table(ended.outcomes, ids)
        self._seconds, self._since, self._until = (
            _table(array, ids) for array in (ended.seconds, since, until)
        )

    def _drawn(self, number: int, time: float, busy: Busy) -> Launched | None:
        """Ask one of more candidates than the block has."""

        def online(ids: Ids) -> NDArray[np.bool_]:
            there: NDArray[np.bool_] = self._fleet.windows(ids, time, number)[0] <= time
            return there

        def free_and_online(ids: Ids) -> NDArray[np.bool_]:
            return busy.are_free(ids) & online(ids)

        draw = DRAWS + number
        if busy.crowded:
            free = busy.free(0, self._fleet.clients)
            ids = free[drawn(1, len(free), self._seed, draw, lambda places: online(free[places]))]
        else:
            ids = drawn(1, self._fleet.clients, self._seed, draw, free_and_online)
        if not len(ids):
            return None
        return self._asked(ids, number, time, float(self._fleet.windows(ids, time, number)[1][0]))

    def _all(self, number: int, time: float, busy: Busy) -> Scarce:
        """Look at all free clients."""
        parts = [np.empty(0, np.int64)]
        begins = [np.empty(0)]
        for start in range(0, self._fleet.clients, CHUNK):
            parts.append(busy.free(start, min(start + CHUNK, self._fleet.clients)))
            begins.append(self._fleet.windows(parts[-1], time, number)[0])
        return Scarce(np.concatenate(parts), np.concatenate(begins))

    def _of_few(self, scarce: Scarce, number: int, time: float) -> Launched | None:
        """Ask one of the few; who is not there in this launch after all waits again."""
        while (client := scarce.take(time, self._seed, DRAWS + number)) is not None:
            ids = np.array([client])
            begin, end = (float(a[0]) for a in self._fleet.windows(ids, time, number))
            if begin <= time:
                return self._asked(ids, number, time, end)
            scarce.free(client, begin)
        return None

    def _asked(self, ids: Ids, number: int, time: float, until: float) -> Launched:
        """Return how the launch of one client ends that is online until some time."""
        times = self._fleet.times(ids, number, self._load)
        outcomes, seconds = alone(times, self._fleet.fates(ids, number, time))
        return _ended(int(ids[0]), int(outcomes[0]), float(seconds[0]), time, until)


def _table(values: NDArray[Any], like: Ids) -> list[list[Any]]:
    return values.reshape(like.shape).tolist()  # type: ignore[no-any-return]


def _ended(client: int, outcome: int, seconds: float, time: float, until: float) -> Launched:
    if seconds > until - time:
        return Launched(client, Outcome.OFFLINE, until)
    return Launched(client, Outcome(outcome), time + seconds)
