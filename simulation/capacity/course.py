"""The chain of a run's rounds: each begins where the one before it was closed.

A round that has fewer updates than the quorum is tried again, as often as the job says; where all
its tries fail, a run would end. Here it goes on with the next round, so that what a round takes is
known all the same, and its length counts as infinite.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from .job import Job
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
    """Whether fewer arrived than the quorum."""
    online: Reals
    """Devices, when the try was due."""


class Model(Protocol):
    """What a fleet makes of a round."""

    def tries(self, runs: Ids, now: Reals) -> Tried:
        """Draw one try in each of some runs, which are at times of their own.

        Args:
            runs: Which, numbered from 0.
            now: Virtual seconds of each, not before the last ones.
        """


class Course(NamedTuple):
    """What has been drawn: of all tries in all runs, shape (tries,), and of the runs."""

    seconds: Reals
    wait: Reals
    missed: NDArray[np.bool_]
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
    kept: list[tuple[Reals, Reals, NDArray[np.bool_]]] = []
    at_work = np.arange(runs)
    while len(at_work):
        found = model.tries(at_work, now[at_work])
        seconds = found.seconds + overhead(server, len(at_work), draw)
        kept.append((seconds, found.opened - now[at_work], found.missed))
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
    seconds, wait, missed = (np.concatenate(arrays) for arrays in zip(*kept, strict=True))
    return Course(seconds, wait, missed, total)


def overhead(server: Server, runs: int, draw: np.random.Generator) -> Reals:
    """Draw the server's own part of a round in each of some runs, seconds."""
    if not server.spread:
        return np.full(runs, server.overhead)
    spread: Reals = server.overhead * np.exp(server.spread * draw.standard_normal(runs))
    return spread
