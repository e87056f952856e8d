"""Asynchronous rounds of a fleet: drawn launch by launch, in some runs.

    at work    so many clients at any time; for each that comes to an end another one is asked, of
               all that are online and neither at work nor in the open buffer, all alike
    round      the buffer is full: a new model, from which the next ones start (FedBuff, Nguyen et
               al., AISTATS 2022)
    in vain    after IN_VAIN ends for each client at work and each update of the buffer the round
               has no result, and is tried again

A launch takes what it takes in a synchronous round; who takes longer than the deadline is given up
then. Nobody waits for the server, whose own part goes on beside.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from .expected import End
from .weather import HOUR, Weather
from .windows import Windows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.random import Generator
    from numpy.typing import NDArray

    from .job import Job
    from .population import Population

    Ids = NDArray[np.int64]
    Reals = NDArray[np.float64]

IN_VAIN = 200
_LOOKS = 32
"""Devices that are drawn before those that would do are listed."""
_AHEAD, _RECORDED_AHEAD = 2400.0, 60.0
"""Virtual time for which windows are looked up together: no day's begins so soon after the last
one's end, and recorded ones may."""
_AT_ONCE = 4096


class Ended(NamedTuple):
    """Launches that came to an end, each array of shape (launches,)."""

    device: Ids
    """Of the population."""
    outcome: Ids
    """An `End`."""
    seconds: Reals
    train: Reals
    """Seconds that training takes this time."""
    age: Ids
    """Versions that the model moved on between its start and its use."""
    hour: Ids
    """Of the day, in which it came to its end."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Course:
    """What has been drawn."""

    gaps: Reals
    """Seconds from one version to the next, of all tries in all runs."""
    opened: Reals
    """When each began."""
    void: NDArray[np.bool_]
    """Whether each had no result."""
    total: Reals
    """Seconds of each run; infinity where a round failed at all its attempts."""
    ended: Ended


def follow(
    population: Population, job: Job, runs: int, draw: Generator, say: Callable[[float], None]
) -> Course:
    """Draw whole runs.

    Args:
        population: The fleet, or devices that stand for it.
        job: What is asked of it; `cohort` is how many are at work.
        runs: How many.
        draw: The numbers.
        say: Told which share is done.
    """
    tries: list[tuple[float, float, bool]] = []
    ended: list[tuple[int, int, float, float, int, int]] = []
    total = np.empty(runs)
    for run in range(runs):
        total[run] = _Run(population, job, draw).go(tries, ended)
        say((run + 1) / runs)
    opened, closed, void = (np.array(column) for column in zip(*tries, strict=True))
    columns = list(zip(*ended, strict=True)) if ended else [()] * len(Ended._fields)
    device, outcome, age, hour = (np.array(columns[i], np.int64) for i in (0, 1, 4, 5))
    seconds, train = (np.array(columns[i], np.float64) for i in (2, 3))
    return Course(
        gaps=closed - opened,
        opened=opened,
        void=void,
        total=total,
        ended=Ended(device, outcome, seconds, train, age, hour),
    )


class _Run:
    """One run."""

    def __init__(self, population: Population, job: Job, draw: Generator) -> None:
        devices, kinds = population.devices, population.kinds
        self._job = job
        self._uniform = _numbers(draw.random)
        self._normal = _numbers(draw.standard_normal)
        self._weather = Weather(population.description, 1, draw)
        self._hour, self._dropout = -1.0, list[float]()
        self._there = _There(population, draw, self._uniform)
        self._kind = devices.kind.tolist()
        self._down, self._train, self._up = (
            part.tolist() for part in (devices.down, devices.train, devices.up)
        )
        self._jitter, self._spread, self._crash = (
            part.tolist() for part in (kinds.jitter, kinds.spread, kinds.crash)
        )
        self._heap: list[tuple[float, int, int, int, int, float, float]] = []
        self._launched = self._version = 0

    def go(
        self,
        tries: list[tuple[float, float, bool]],
        ended: list[tuple[int, int, float, float, int, int]],
    ) -> float:
        """Follow it to its end; return its length.

        Args:
            tries: Takes when each began and closed, and whether it had no result.
            ended: Takes the fields of `Ended` of each launch.
        """
        now, tried, lost = 0.0, 0, False
        while self._version < self._job.rounds:
            opened = now
            now, void = self._buffer(now, ended)
            tries.append((opened, now, void))
            tried += 1
            if void and tried < self._job.attempts:
                continue
            lost |= void
            self._version, tried = self._version + 1, 0
        return math.inf if lost else now

    def _buffer(
        self, now: float, ended: list[tuple[int, int, float, float, int, int]]
    ) -> tuple[float, bool]:
        """Fill one buffer; return when it is full or given up, and whether it was that."""
        job, heap, busy = self._job, self._heap, self._there.busy
        held, left = list[int](), IN_VAIN * (job.buffer + job.cohort)
        wake = self._fill(now)
        while len(held) < job.buffer and left:
            if not heap and wake == math.inf:
                break
            if not heap or wake < heap[0][0]:
                now = wake
                wake = self._fill(now)
                continue
            now, _, device, outcome, version, seconds, train = heapq.heappop(heap)
            age, hour = self._version - version, int(now // HOUR) % 24
            ended.append((device, outcome, seconds, train, age, hour))
            left -= 1
            if outcome != End.USED:
                busy[device] = False
            else:
                held.append(device)
                if len(held) == job.buffer:
                    break  # the next launch is from the next model
            wake = self._fill(now)
        for device in held:
            busy[device] = False
        return now, len(held) < job.buffer

    def _fill(self, now: float) -> float:
        """Ask until enough are at work; return when to try again, infinity for no need."""
        heap, there = self._heap, self._there
        while len(heap) < self._job.cohort:
            device = there.pick(now)
            if device is None:
                return there.wake(now)
            there.busy[device] = True
            heapq.heappush(heap, self._launch(device, now))
            self._launched += 1
        return math.inf

    def _launch(self, device: int, now: float) -> tuple[float, int, int, int, int, float, float]:
        """Draw how the work of a device ends."""
        if now // HOUR != self._hour:
            self._hour = now // HOUR
            self._dropout = self._weather.dropout(np.zeros(1, np.int64), np.array([now]))[
                0
            ].tolist()
        kind, uniform, outcome = self._kind[device], self._uniform, int(End.USED)
        train = self._train[device]
        if width := self._jitter[kind]:
            train *= 1 + width * (2 * next(uniform) - 1)
        if spread := self._spread[kind]:
            train *= math.exp(spread * next(self._normal))
        seconds = self._down[device] + train + self._up[device]
        if (lost := self._dropout[kind]) and next(uniform) < lost:
            outcome = int(End.LOST)
        if (crash := self._crash[kind]) and next(uniform) < crash:
            outcome = int(End.CRASHED)
            seconds = next(uniform) * (self._down[device] + train)
        if (left := self._there.end[device] - now) < seconds:
            outcome, seconds = int(End.OFFLINE), left
        if seconds > self._job.deadline:
            outcome, seconds = int(End.LATE), self._job.deadline
        return now + seconds, self._launched, device, outcome, self._version, seconds, train


class _There:
    """Who is online in one run, and not busy."""

    def __init__(self, population: Population, draw: Generator, uniform: Iterator[float]) -> None:
        devices = population.devices
        self.busy = [False] * len(devices)
        """At work, or in the open buffer."""
        self.end = [math.inf] * len(devices)
        """Of the window that is open, or comes next."""
        self._uniform = uniform
        self._windows = Windows(devices, 1, draw)
        self._ahead = _RECORDED_AHEAD if devices.traced else _AHEAD
        self._begin, self._listed = [-math.inf] * len(devices), list(range(len(devices)))
        self._coming: list[tuple[float, int]] = []
        """Who is not online yet, in the order in which they come."""
        self._until = math.inf if devices.always else -math.inf

    def pick(self, now: float) -> int | None:
        """Draw one that is online and not busy, all alike; None where there is none."""
        if now >= self._until:
            self._look(now)
        busy, begin, end, listed = self.busy, self._begin, self.end, self._listed
        for _ in range(_LOOKS if listed else 0):
            device = listed[int(next(self._uniform) * len(listed))]
            if not busy[device] and begin[device] <= now < end[device]:
                return device
        free = [d for d in listed if not busy[d] and begin[d] <= now < end[d]]
        return free[int(next(self._uniform) * len(free))] if free else None

    def wake(self, now: float) -> float:
        """Return when to try again: somebody comes online, or may have; infinity for never."""
        if not self._listed and not self._coming:
            return math.inf
        for begin, device in self._coming:
            if begin > now and not self.busy[device]:
                return min(begin, self._until)
        return self._until

    def _look(self, now: float) -> None:
        """Look up the windows of the time that comes next."""
        self._until = now + self._ahead
        begin, end = self._windows.at(np.zeros(1, np.int64), np.array([now]))
        self._listed = np.flatnonzero(begin[0] <= self._until).tolist()
        self._begin, self.end = begin[0].tolist(), end[0].tolist()
        later = np.flatnonzero((begin[0] > now) & np.isfinite(begin[0]))
        later = later[np.argsort(begin[0, later], kind="stable")]
        self._coming = list(zip(begin[0, later].tolist(), later.tolist(), strict=True))


def _numbers(draw: Callable[[int], Reals]) -> Iterator[float]:
    """Yield numbers one by one that are drawn many at once."""
    while True:
        yield from draw(_AT_ONCE).tolist()
