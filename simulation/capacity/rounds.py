"""How long a round takes and a whole run, how often a quorum is missed, and who is used."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .course import follow, overhead
from .expected import DEADLINE, PARTS, Closer, Expected, Hour, Took
from .few import Few
from .many import Many
from .population import Population
from .sample import Sample
from .weather import HOUR

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.random import Generator

    from .course import Model, Shares
    from .job import Job
    from ..fleet.description import Description

_WORK = 10_000_000
"""Devices, rounds and runs, multiplied: where more runs than a few fit, each device is followed."""
_FEW = 16
_SEEN = 100
"""Runs that show what happens to one in a hundred, as an hour in which a site is cut off; fewer
will do only where a fleet is so small beside what is asked that its devices matter one by one."""
_LARGE = 30
_RUNS = 500
_TRIES = 1_000_000
_DEVICES = 1 << 17
"""That stand for a large fleet."""
_AN_HOUR = 128
"""Tries in each hour of the day."""
_HOURS = 24
_NOTHING = 1e-12
"""Of a share: what is left of sums that cancel."""


def rounds(
    description: Description, job: Job, seed: int, say: Callable[[float], None] = lambda _: None
) -> Expected:
    """Return what to expect of a run.

    Args:
        description: The fleet; its devices are those of the description's seed, or of `seed`.
        job: What is asked of it.
        seed: Of the devices, where the description has none, and of all that is drawn.
        say: Told which share is done, 0 to 1.

    Raises:
        SettingsError: The description counts another number of clients.
    """
    draw = np.random.Generator(np.random.Philox(key=np.array([seed, 1], np.uint64)))
    model, runs = _model(description, job, seed, draw)
    course = follow(model, job, description.server, runs, draw, say)
    shares = model.shares()
    return Expected(
        seconds=Sample.of(course.seconds),
        wait=Sample.of(course.wait),
        total=Sample.of(course.total),
        miss=float(course.chance.mean()),
        run_lost=float(np.isinf(course.total).mean()),
        tries=len(course.seconds) / runs,
        clients=_clients(model.population, shares),
        closers=_closers(description, shares),
        by_hour=tuple(_hour(hour, model, job, draw) for hour in range(_HOURS)),
    )


def _model(description: Description, job: Job, seed: int, draw: Generator) -> tuple[Model, int]:
    """Return the rounds of a fleet, and how many runs are drawn."""
    runs = _WORK // (job.clients * job.rounds)
    if runs >= (_SEEN if job.clients >= _LARGE * job.invited else _FEW):
        population = Population.of(description, job, seed, job.clients, draw)
        runs = min(runs, _RUNS)
        return Few(population, job, runs, draw), runs
    always = all(c.hours is None and c.behaviour.trace is None for c in description.cohorts)
    devices = _DEVICES if always else _DEVICES // 2  # one curve, or one for each time of the day
    population = Population.of(description, job, seed, devices, draw, devices)
    runs = max(_FEW, min(_TRIES // job.rounds, _RUNS))
    return Many(population, job, runs, draw), runs


def _clients(population: Population, shares: Shares) -> tuple[Took, ...]:
    """Return what each cohort's devices have of a round."""
    means, spent = shares.outcomes / shares.tries, shares.spent / shares.tries
    return tuple(
        Took(
            cohort=cohort.name,
            site=cohort.site,
            share=float(population.shares[place]),
            asked=float(means[place].sum()),
            **dict(zip(_OUTCOMES, means[place].tolist(), strict=True)),
            **dict(zip(("work", "received", "sent"), spent[:, place].tolist(), strict=True)),
        )
        for place, cohort in enumerate(population.description.cohorts)
    )


_OUTCOMES = ("used", "late", "lost", "offline", "crashed")


def _closers(description: Description, shares: Shares) -> tuple[Closer, ...]:
    """Return who closes the rounds, the most frequent first."""
    closed = shares.closed / shares.tries
    found = [
        Closer(cohort=cohort.name, part=part, share=float(share))
        for cohort, row in zip(description.cohorts, closed, strict=True)
        for part, share in zip(PARTS, row, strict=True)
    ]
    found.append(Closer(cohort="", part=DEADLINE, share=float(1 - closed.sum())))
    return tuple(sorted((c for c in found if c.share > _NOTHING), key=lambda c: -c.share))


def _hour(hour: int, model: Model, job: Job, draw: Generator) -> Hour:
    """Return what is expected of a round that is due in one hour of the day."""
    due = (hour + draw.random(_AN_HOUR)) * HOUR
    found = model.again(_AN_HOUR).tries(np.arange(_AN_HOUR), due)
    there = found.online >= job.quorum
    seconds = found.seconds + overhead(model.population.description.server, _AN_HOUR, draw)
    sample = Sample.of(seconds[there]) if there.any() else None
    return Hour(
        hour=hour,
        p50=np.nan if sample is None else sample.at(0.5),
        p90=np.nan if sample is None else sample.at(0.9),
        miss=np.nan if sample is None else float(found.chance[there].mean()),
        online=float(found.online.mean()),
        short=float(1 - there.mean()),
    )
