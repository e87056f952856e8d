"""Some rounds of a fleet, each at a time of its own: enough to compare one run with another.

The rounds of a whole run follow each other, so that a change of one moves all later ones, and two
runs soon have no draw in common. Here the tries are due at fixed times, evenly over the run, each
with windows and site hours of its own, drawn in one go: what two glances of one seed differ by is
what was changed (common random numbers: Glasserman and Yao 1992).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from .course import overhead
from .expected import End
from .few import Few
from .population import Population
from .sample import Sample
from .weather import HOUR

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .expected import Expected
    from .job import Job
    from ..fleet.description import Description

    Reals = NDArray[np.float64]

_WORK = 1_000_000
"""Devices and tries, multiplied."""
_LEAST, _MOST = 64, 1024
"""Tries."""
_LITTLE = 0.1
"""Of the usual work."""
_HOURS = 24
_DEVICES = 1000
_DRAWN = 20_000
_SPARE = 2
"""Times as many are online as are asked: then who is asked is as if drawn from all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Glance:
    """What was seen."""

    seconds: Sample
    wait: Sample
    miss: float
    """Share of the tries below the quorum."""
    outcomes: Reals
    """How many of each cohort had which `End`, of one try; shape (cohorts, ends)."""
    spent: Reals
    """Seconds at work, bytes received and sent, of one try; shape (3, cohorts)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stand:
    """From where one looks: a part of the fleet that stands for all, and how long the run is."""

    description: Description
    job: Job
    devices: int
    """Of them that are followed."""
    span: float
    """Seconds over which the tries are due."""
    seed: int

    def look(
        self, description: Description | None = None, job: Job | None = None, work: float = 1.0
    ) -> Glance:
        """Return what is seen, of this run or of one that was changed.

        Args:
            description: The fleet.
            job: What is asked of it.
            work: How many times as many tries.
        """
        return self._look(description or self.description, job or self.job, work, (0.0, self.span))

    def hours(self) -> list[Reals]:
        """Return the updates that a round uses, by cohort, in each hour of the day of the run."""
        count = min(_HOURS, max(1, math.ceil(self.span / HOUR)))
        looks = [
            self._look(self.description, self.job, _LITTLE, (hour * HOUR, HOUR))
            for hour in range(count)
        ]
        return [seen.outcomes[:, End.USED] for seen in looks]

    def _look(
        self, fleet: Description, asked: Job, work: float, when: tuple[float, float]
    ) -> Glance:
        """Look at tries that are due from a moment on, within some seconds."""
        draw = np.random.Generator(np.random.Philox(key=np.array([self.seed, 2], np.uint64)))
        devices = min(self.devices, asked.clients)
        population = Population.of(fleet, asked, self.seed, devices, draw)
        tries = int(np.clip(work * _WORK / devices, _LEAST, max(_LEAST, work * _MOST)))
        model = Few(population, asked, tries, draw)
        due = when[0] + when[1] * (np.arange(tries) + 0.5) / tries
        found = model.tries(np.arange(tries), due)
        shares = model.shares()
        return Glance(
            seconds=Sample.of(found.seconds + overhead(fleet.server, tries, draw)),
            wait=Sample.of(found.opened - due),
            miss=float(found.missed.mean()),
            outcomes=shares.outcomes / tries,
            spent=shares.spent / tries,
        )


def stand(description: Description, job: Job, expected: Expected, seed: int) -> Stand:
    """Return from where to look.

    Args:
        description: The fleet.
        job: What is asked of it.
        expected: What its rounds are like.
        seed: Of the devices, and of what is drawn.
    """
    online = max(1.0, min(hour.online for hour in expected.by_hour)) / job.clients
    devices = min(job.clients, max(_DEVICES, round(_SPARE * job.invited / online)))
    drawn = max(_DRAWN, devices)
    usual = expected.seconds.at(0.5) + expected.wait.at(0.5)
    part = _part(description, job, drawn) if job.clients > drawn else (description, job)
    span = job.rounds * usual
    return Stand(description=part[0], job=part[1], devices=devices, span=span, seed=seed)


def _part(description: Description, job: Job, clients: int) -> tuple[Description, Job]:
    """Return a fleet of fewer devices of the same kinds."""
    if description.clients is None:
        return description, replace(job, clients=clients)
    counts = [max(1, round((c.count or 0) * clients / job.clients)) for c in description.cohorts]
    cohorts = tuple(
        replace(cohort, count=count)
        for cohort, count in zip(description.cohorts, counts, strict=True)
    )
    return replace(description, cohorts=cohorts), replace(job, clients=sum(counts))
