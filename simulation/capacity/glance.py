"""Some rounds of a fleet, each at a time of its own: enough to compare one run with another.

The rounds of a whole run follow each other, so that a change of one moves all later ones, and two
runs soon have no draw in common. Here the tries are due at fixed times, evenly over the run, each
with windows and site hours of its own, drawn in one go: what two glances of one seed differ by is
what was changed (common random numbers: Glasserman and Yao 1992). Of a large fleet a part is
followed of which in every hour twice as many are online as are asked; where that would be too
large a part, it is the curves of many.py that are compared, whose draws are fewer and not in step.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from .course import overhead
from .expected import End
from .few import Few
from .many import Many
from .population import Population
from .sample import Sample
from .weather import HOUR
from ..fleet.profiles import DAY

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .course import Model
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
_CURVES = 8192
"""Devices that stand for all where nobody is followed by itself."""
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
    hours: tuple[int, ...]
    """Of the day, in which rounds are: enough are online."""
    span: float
    """Seconds within these hours over which the tries are due, one day after another."""
    seed: int
    ever: bool = True
    """Whether there is such an hour."""
    many: float = 1.0
    """Times as many clients as the part has: above 1 none of them is followed by itself."""

    def look(
        self, description: Description | None = None, job: Job | None = None, work: float = 1.0
    ) -> Glance:
        """Return what is seen, of this run or of one that was changed.

        Args:
            description: The fleet.
            job: What is asked of it.
            work: How many times as many tries.
        """
        return self._look(description or self.description, job or self.job, work, self)

    def by_hour(self) -> list[Reals]:
        """Return the updates that a round uses, by cohort, in each hour of the day of the run."""
        count = min(len(self.hours), math.ceil(self.span / HOUR))
        looks = [
            self._look(self.description, self.job, _LITTLE, replace(self, hours=(hour,), span=HOUR))
            for hour in self.hours[:count]
        ]
        return [seen.outcomes[:, End.USED] for seen in looks]

    def due(self, tries: int) -> Reals:
        """Return when so many tries are due, virtual seconds."""
        after = self.span * (np.arange(tries) + 0.5) / tries
        days, rest = np.divmod(after, len(self.hours) * HOUR)
        place, within = np.divmod(rest, HOUR)
        found: Reals = days * DAY + np.array(self.hours)[place.astype(int)] * HOUR + within
        return found

    def _look(self, fleet: Description, asked: Job, work: float, when: Stand) -> Glance:
        """Look at tries that are due as of another place."""
        draw = np.random.Generator(np.random.Philox(key=np.array([self.seed, 2], np.uint64)))
        devices = min(self.devices, asked.clients)
        population = Population.of(fleet, asked, self.seed, devices, draw)
        tries = int(np.clip(work * _WORK / devices, _LEAST, max(_LEAST, work * _MOST)))
        model: Model
        if self.many > 1.0:
            whole = replace(asked, clients=round(self.many * asked.clients))
            model = Many(population, whole, tries, draw)
        else:
            model = Few(population, asked, tries, draw)
        due = when.due(tries)
        found = model.tries(np.arange(tries), due)
        shares = model.shares()
        return Glance(
            seconds=Sample.of(found.seconds + overhead(fleet.server, tries, draw)),
            wait=Sample.of(found.opened - due),
            miss=float(found.chance.mean()),
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
    there = {hour.hour: hour.online for hour in expected.by_hour if hour.online >= job.quorum}
    span = max(1.0, job.rounds * expected.seconds.at(0.5))
    at = Stand(
        description=description,
        job=job,
        devices=job.clients,
        hours=tuple(there) or tuple(range(_HOURS)),
        span=span,
        seed=seed,
        ever=bool(there),
    )
    seen = list(there.values())[: math.ceil(span / HOUR)]
    online = min(seen, default=float(job.clients)) / job.clients
    devices = max(_DEVICES, round(_SPARE * job.invited / online))
    if job.clients <= min(devices, _DRAWN):
        return at
    part, small = _part(description, job, min(job.clients, _DRAWN))
    at = replace(at, description=part, job=small, devices=devices)
    if devices <= _DRAWN:
        return at
    return replace(at, devices=_CURVES, many=job.clients / small.clients)


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
