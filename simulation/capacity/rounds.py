"""How long a round takes and a whole run, how often a quorum is missed, and who is used."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .course import follow, overhead
from .expected import DEADLINE, PARTS, Closer, Expected, Hour, Took
from .few import Few
from .population import Population
from .sample import Sample
from .weather import HOUR

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.random import Generator

    from .job import Job
    from ..fleet.description import Description

_DEVICES = 2000
"""Followed at most: a larger fleet is stood for by so many, drawn."""
_WORK = 20_000_000
"""Devices, tries and runs, multiplied."""
_RUNS = 512
_AN_HOUR = 128
"""Tries in each hour of the day."""
_HOURS = 24


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
    population = Population.of(description, job, seed, max(_DEVICES, 2 * job.invited), draw)
    runs = int(np.clip(_WORK / (len(population.devices) * job.rounds), 4, _RUNS))
    model = Few(population, job, runs, draw)
    course = follow(model, job, description.server, runs, draw, say)
    tries = len(course.seconds)
    return Expected(
        seconds=Sample.of(course.seconds),
        wait=Sample.of(course.wait),
        total=Sample.of(course.total),
        miss=float(course.missed.mean()),
        run_lost=float(np.isinf(course.total).mean()),
        tries=tries / runs,
        clients=_clients(population, model, tries),
        closers=_closers(description, model, tries),
        by_hour=tuple(_hour(hour, population, job, draw) for hour in range(_HOURS)),
    )


def _clients(population: Population, model: Few, tries: int) -> tuple[Took, ...]:
    """Return what each cohort's devices have of a round."""
    means, spent = model.outcomes / tries, model.spent / tries
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


def _closers(description: Description, model: Few, tries: int) -> tuple[Closer, ...]:
    """Return who closes the rounds, the most frequent first."""
    shares = model.closed / tries
    found = [
        Closer(cohort=cohort.name, part=part, share=float(share))
        for cohort, row in zip(description.cohorts, shares, strict=True)
        for part, share in zip(PARTS, row, strict=True)
    ]
    found.append(Closer(cohort="", part=DEADLINE, share=float(1 - shares.sum())))
    return tuple(sorted((c for c in found if c.share > 0), key=lambda c: -c.share))


def _hour(hour: int, population: Population, job: Job, draw: Generator) -> Hour:
    """Return what is expected of a round that is due in one hour of the day."""
    due = (hour + draw.random(_AN_HOUR)) * HOUR
    found = Few(population, job, _AN_HOUR, draw).tries(np.arange(_AN_HOUR), due)
    there = found.online >= job.quorum
    seconds = found.seconds + overhead(population.description.server, _AN_HOUR, draw)
    sample = Sample.of(seconds[there]) if there.any() else None
    return Hour(
        hour=hour,
        p50=np.nan if sample is None else sample.at(0.5),
        p90=np.nan if sample is None else sample.at(0.9),
        miss=np.nan if sample is None else float(found.missed[there].mean()),
        online=float(found.online.mean() * job.clients / len(population.devices)),
        short=float(1 - there.mean()),
    )
