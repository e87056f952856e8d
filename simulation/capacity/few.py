"""Rounds of a fleet that is small enough to follow each of its devices: drawn, one after another.

Some runs go on side by side, each with windows, losses and draws of its own. Who is asked is drawn
without replacement from those that are online.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from .course import Shares, Tried
from .expected import PARTS, End
from .rosters import Rosters
from .weather import Weather
from .windows import Windows

if TYPE_CHECKING:
    from numpy.random import Generator
    from numpy.typing import NDArray

    from .job import Job
    from .population import Population

    Ids = NDArray[np.int64]
    Reals = NDArray[np.float64]

_LOOKS = 200
"""Times at which a run looks for a quorum, before it is none."""


class _Asked(NamedTuple):
    """Devices that are asked in some runs, each array of shape (runs, most that are asked)."""

    there: NDArray[np.bool_]
    """Whether it is one: fewer are asked where fewer are online."""
    kind: Ids
    down: Reals
    train: Reals
    up: Reals
    seconds: Reals
    """Until it comes to an end."""
    outcome: Ids
    """What becomes of it; `End.USED` where it arrives."""


class Few:
    """The rounds of all devices; see `Model`."""

    def __init__(self, population: Population, job: Job, runs: int, draw: Generator) -> None:
        """Take the fleet, what is asked of it, and how many runs there are."""
        self.population = population
        self._devices, self._kinds = population.devices, population.kinds
        self._job, self._draw = job, draw
        self._windows = Windows(self._devices, runs, draw)
        self._weather = Weather(population.description, runs, draw)
        self._rosters = Rosters(job)
        cohorts = len(population.description.cohorts)
        self._outcomes, self._spent = np.zeros((cohorts, len(End))), np.zeros((3, cohorts))
        self._closed, self._tries = np.zeros((cohorts, len(PARTS))), 0

    def again(self, runs: int) -> Few:
        """Return the same fleet for other runs; see `Model`."""
        return Few(self.population, self._job, runs, self._draw)

    def shares(self) -> Shares:
        """Return who was used; see `Model`."""
        return Shares(self._outcomes, self._spent, self._closed, self._tries)

    def tries(self, runs: Ids, now: Reals) -> Tried:
        """Return one try in each of some runs; see `Model`."""
        job = self._job
        opened, begin, end, online = self._gathered(runs, now)
        asked = self._asked(runs, opened, begin <= opened[:, None], end)
        arrives = np.where(asked.there & (asked.outcome == End.USED), asked.seconds, np.inf)
        order = np.argsort(arrives, axis=1, kind="stable")
        wanted = np.minimum(job.cohort, np.count_nonzero(asked.there, axis=1))
        rows = np.arange(len(runs))
        last = order[rows, np.maximum(wanted - 1, 0)]
        full = (arrives[rows, last] <= job.deadline) & (wanted > 0)
        seconds = np.where(full, arrives[rows, last], job.deadline)
        seconds[wanted == 0] = 0.0
        used = np.empty(arrives.shape, bool)
        np.put_along_axis(used, order, np.arange(order.shape[1]) < wanted[:, None], axis=1)
        used &= arrives <= job.deadline
        self._count(asked, used, seconds)
        here = rows[full]
        parts = np.stack([part[here, last[here]] for part in (asked.down, asked.train, asked.up)])
        places = asked.kind[here, last[here]] * len(PARTS) + np.argmax(parts, axis=0)
        self._closed += np.bincount(places, minlength=self._closed.size).reshape(self._closed.shape)
        missed = np.count_nonzero(used, axis=1) < job.quorum
        if job.secure:
            missed = self._void(asked)
        self._tries += len(runs)
        return Tried(opened, seconds, missed, missed.astype(float), online.astype(float))

    def _void(self, asked: _Asked) -> NDArray[np.bool_]:
        """Return which rosters have no sum: see rosters.py."""
        finishes = asked.there & ((asked.outcome == End.USED) | (asked.outcome == End.LOST))
        done = np.where(finishes & (asked.seconds <= self._job.deadline), asked.seconds, np.inf)
        first = np.argsort(done, axis=1, kind="stable")[:, : self._job.cohort]
        member = np.isfinite(np.take_along_axis(done, first, axis=1))
        lost = member & (np.take_along_axis(asked.outcome, first, axis=1) == End.LOST)
        n = np.count_nonzero(member, axis=1)
        return self._rosters.void(n, n - np.count_nonzero(lost, axis=1), self._draw)

    def _gathered(self, runs: Ids, now: Reals) -> tuple[Reals, Reals, Reals, Ids]:
        """Return when enough are online from now on, the windows then, and how many are online.

        The quorum-th of all beginnings is not after the first moment at which that many are online
        together.
        """
        opened, quorum = now.copy(), self._job.quorum
        begin, end = self._windows.at(runs, opened)
        online = np.count_nonzero(begin <= opened[:, None], axis=1)
        first = online.copy()
        for _ in range(_LOOKS):
            few = np.flatnonzero(online < quorum)
            if not len(few):
                break
            comes = np.partition(np.maximum(begin[few], opened[few, None]), quorum - 1, axis=1)
            opened[few] = comes[:, quorum - 1]
            begin[few], end[few] = self._windows.at(runs[few], opened[few])
            online[few] = np.count_nonzero(begin[few] <= opened[few, None], axis=1)
        never = online < quorum
        opened[never], begin[never] = now[never], np.inf
        return opened, begin, end, first

    def _asked(self, runs: Ids, opened: Reals, online: NDArray[np.bool_], end: Reals) -> _Asked:
        """Draw who is asked, and what becomes of them."""
        devices, draw = self._devices, self._draw
        width = min(self._job.invited, len(devices))
        keys = np.where(online, draw.random(online.shape), 2.0)
        place = np.argpartition(keys, width - 1, axis=1)[:, :width]
        kind, rows = devices.kind[place], np.arange(len(runs))[:, None]
        down, up = devices.down[place], devices.up[place]
        train = devices.train[place] * self._kinds.factors(kind, draw)
        seconds = down + train + up
        outcome = np.zeros(place.shape, np.int64)
        dropout = self._weather.dropout(runs, opened)[rows, kind]
        if dropout.any():
            outcome[draw.random(place.shape) < dropout] = End.LOST
        if self._kinds.crash.any():
            crashed = draw.random(place.shape) < self._kinds.crash[kind]
            outcome[crashed] = End.CRASHED
            seconds = np.where(crashed, draw.random(place.shape) * (down + train), seconds)
        left = end[rows, place] - opened[:, None]
        outcome[seconds > left] = End.OFFLINE
        there = keys[rows, place] < 1.0
        return _Asked(there, kind, down, train, up, np.minimum(seconds, left), outcome)

    def _count(self, asked: _Asked, used: NDArray[np.bool_], length: Reals) -> None:
        """Count what became of whom, and what it took."""
        load, there = self._job.load, asked.there
        late = (asked.outcome == End.USED) & ~used
        outcome = np.where(late, End.LATE, asked.outcome)
        places = (asked.kind * len(End) + outcome)[there]
        self._outcomes += np.bincount(places, minlength=self._outcomes.size).reshape(-1, len(End))
        spent = np.minimum(asked.seconds, length[:, None])
        received = load.down * _share(spent, asked.down)
        sent = load.up * _share(spent - asked.down - asked.train, asked.up)
        sent[used] = load.up  # a difference could lose the last byte
        for place, values in enumerate((spent, received, sent)):
            counts = np.bincount(asked.kind[there], values[there], minlength=len(self._outcomes))
            self._spent[place] += counts


def _share(seconds: Reals, whole: Reals) -> Reals:
    """Return which share of a transfer is done; one that takes no time is done once begun."""
    done: Reals = (seconds >= 0).astype(float)
    np.divide(seconds, whole, out=done, where=whole > 0)
    np.clip(done, 0.0, 1.0, out=done)
    return done
