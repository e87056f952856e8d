"""The chain of a run's rounds: each begins where the one before it was closed.

A round that has fewer updates than the quorum is tried again, as often as the job says; where all
its tries fail, a run would end. Here it goes on with the next round, so that what a round takes is
known all the same, and its length counts as infinite.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol, Self

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from .job import Job
    from .population import Population
    from ..fleet.declared import Server

    Ids = NDArray[np.int64]
    Reals = NDArray[np.float64]


class Tried(NamedTuple):
    """One try of a round in each of some runs, arrays of shape (runs,)."""

    opened: Reals
    """Virtual seconds at which the devices are asked."""
    seconds: Reals
    """From then to the close."""
    missed: NDArray[np.bool_]
    """Whether fewer arrived than the quorum; with masks, whether there is no sum."""
    chance: Reals
    """How likely that was; where it is not known, whether it happened."""
    online: Reals
    """Devices, when the try was due."""


class Shares(NamedTuple):
    """What the devices of each cohort had of all tries."""

    outcomes: Reals
    """How many had which outcome; shape (cohorts, ends)."""
    spent: Reals
    """Seconds at work, bytes received and sent; shape (3, cohorts)."""
    closed: Reals
    """Rounds that the last update of a cohort closed, by the part that took it longest; shape
    (cohorts, parts)."""
    tries: int
    """Of how many it was."""


class Model(Protocol):
    """What a fleet makes of a round."""

    @property
    def population(self) -> Population:
        """The fleet."""

    def tries(self, runs: Ids, now: Reals) -> Tried:
        """Draw one try in each of some runs, which are at times of their own.

        Args:
            runs: Which, numbered from 0.
            now: Virtual seconds of each, not before the last ones.
        """

    def again(self, runs: int) -> Self:
        """Return the same fleet for other runs, which begin anew."""

    def shares(self) -> Shares:
        """Return who was used in the tries so far, and what it took."""


class Course(NamedTuple):
    """What has been drawn: of all tries in all runs, shape (tries,), and of the runs."""

    seconds: Reals
    wait: Reals
    chance: Reals
    """How likely each had fewer than the quorum."""
    total: Reals
    """Shape (runs,): seconds of the whole run; infinity where a round failed for good."""


def follow(
    model: Model,
    job: Job,
    server: Server,
    runs: int,
    draw: np.random.Generator,
    say: Callable[[float], None],
) -> Course:
    """Draw whole runs.

    Args:
        model: What the fleet makes of a round.
        job: How many rounds, and how often one is tried.
        server: What it takes beside the devices.
        runs: How many.
        draw: The numbers.
        say: Told which share is done.
    """
    now, done, tried = np.zeros(runs), np.zeros(runs, np.int64), np.zeros(runs, np.int64)
    lost, total = np.zeros(runs, bool), np.zeros(runs)
    kept: list[tuple[Reals, Reals, Reals]] = []
    at_work = np.arange(runs)
    while len(at_work):
        found = model.tries(at_work, now[at_work])
        seconds = found.seconds + overhead(server, len(at_work), draw)
        kept.append((seconds, found.opened - now[at_work], found.chance))
        now[at_work] = found.opened + seconds
        tried[at_work] += 1
        failed = found.missed & (tried[at_work] >= job.attempts)
        lost[at_work[failed]] = True
        over = at_work[failed | ~found.missed]
        done[over] += 1
        tried[over] = 0
        ended = over[done[over] >= job.rounds]
        total[ended] = np.where(lost[ended], np.inf, now[ended])
        at_work = np.flatnonzero(done < job.rounds)
        say(float(done.min()) / job.rounds)
    seconds, wait, chance = (np.concatenate(arrays) for arrays in zip(*kept, strict=True))
    return Course(seconds, wait, chance, total)


def overhead(server: Server, runs: int, draw: np.random.Generator) -> Reals:
    """Draw the server's own part of a round in each of some runs, seconds."""
    if not server.spread:
        return np.full(runs, server.overhead)
    spread: Reals = server.overhead * np.exp(server.spread * draw.standard_normal(runs))
    return spread
