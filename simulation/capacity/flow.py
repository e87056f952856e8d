"""What to expect of an asynchronous run: times, staleness, and who is used more than others.

Runs are drawn launch by launch (buffers.py), as many as about WORK launches make. A run of more
than that is followed on a scale: fewer at work and in the buffer, both by one factor, and a buffer
of at least `_FULL`, so that the time between versions is the same but for its noise.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from .arrivals import present
from .buffers import follow
from .expected import End, Expected, Hour, Took
from .population import Population
from .sample import Sample
from .weather import HOUR
from ...strategies.staleness import weighting

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from .buffers import Course
    from .job import Job
    from ..fleet.description import Description

    Ids = NDArray[np.int64]
    Reals = NDArray[np.float64]

WORK = 400_000
"""Launches of all runs."""
_RUNS = 200
_LEAST = 2
_FULL = 400
_DEVICES, _SPARE = 4096, 40
"""Devices that are followed, and times as many as are busy; at most `_MOST`."""
_MOST = 1 << 16
_HOURS = 24
_TENTH = 0.1


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Flow:
    """What is expected."""

    expected: Expected
    ages: Reals
    """Share of the updates that are 0, 1, 2 … versions old."""
    factor: float
    """What an update counts, on average."""
    used: Reals
    """Share of the updates by cohort."""
    by_hour: Reals
    """Updates of a buffer by cohort, in each hour of the day that the runs see."""
    fastest: float
    """Share of the updates that the fastest tenth of the devices brings."""
    slowest: float
    """The same of the slowest tenth."""
    never: float
    """Share of the devices of which no run has an update."""

    def described(self, job: Job) -> dict[str, Any]:
        """Return `asynchronous` of a plan's file."""
        below = np.cumsum(self.ages)
        at = {
            f"p{round(100 * share)}": int(np.searchsorted(below, share * (1 - 1e-12)))
            for share in (0.5, 0.9, 0.99)
        }
        return {
            "at_work": job.cohort,
            "buffer": job.buffer,
            "staleness": {
                "rule": job.staleness,
                "mean": float(self.ages @ np.arange(len(self.ages))),
                **at,
                "counts": self.factor,
                "shares": [[age, float(share)] for age, share in enumerate(self.ages) if share],
            },
            "updates": {
                took.cohort: float(share)
                for took, share in zip(self.expected.clients, self.used, strict=True)
            },
            "fastest": self.fastest,
            "slowest": self.slowest,
        }


def flow(
    description: Description,
    job: Job,
    seed: int,
    say: Callable[[float], None] = lambda _: None,
    work: float = WORK,
) -> Flow:
    """Return what to expect of a run.

    Args:
        description: The fleet; its devices are those of the description's seed, or of `seed`.
        job: What is asked of it; `buffer` is above 0.
        seed: Of the devices, where the description has none, and of all that is drawn.
        say: Told which share is done, 0 to 1.
        work: Launches, about.

    Raises:
        SettingsError: The description counts another number of clients.
    """
    draw = np.random.Generator(np.random.Philox(key=np.array([seed, 3], np.uint64)))
    small = _scaled(job, work)
    runs = int(np.clip(work / (small.rounds * small.buffer), _LEAST, _RUNS))
    busy = small.cohort + small.buffer
    most = min(max(_DEVICES, _SPARE * busy), max(_MOST, 2 * busy))
    population = Population.of(description, job, seed, most, draw)
    course = follow(population, small, runs, draw, say)
    return _told(population, job, small, course, draw)


def _scaled(job: Job, work: float) -> Job:
    """Return a run of as many rounds, small enough to be followed."""
    factor = min(_LEAST * job.rounds * job.buffer / work, job.buffer / _FULL)
    if factor <= 1.0:
        return job
    at_work, buffer = (max(1, round(n / factor)) for n in (job.cohort, job.buffer))
    return replace(job, cohort=at_work, invited=at_work, buffer=buffer)


def _told(
    population: Population, job: Job, small: Job, course: Course, draw: np.random.Generator
) -> Flow:
    ended, cohorts = course.ended, len(population.shares)
    tries, scale = len(course.gaps), job.buffer / small.buffer
    kind, used = population.devices.kind[ended.device], ended.outcome == End.USED
    outcomes = np.zeros((cohorts, len(End)))
    np.add.at(outcomes, (kind, ended.outcome), scale / tries)
    spent = _spent(population, job, course) * (scale / tries)
    hours = np.zeros((_HOURS, cohorts))
    np.add.at(hours, (ended.hour[used], kind[used]), 1.0)
    there = hours.sum(axis=1) > 0
    ages = np.bincount(ended.age[used], minlength=1).astype(np.float64)
    whole = max(float(ages.sum()), 1.0)
    by_cohort = outcomes[:, End.USED]
    fastest, slowest, never = _ends(population, ended.device[used])
    expected = Expected(
        seconds=Sample.of(course.gaps),
        wait=Sample.of(np.zeros(1)),
        total=Sample.of(course.total),
        miss=float(course.void.mean()),
        run_lost=float(np.isinf(course.total).mean()),
        tries=tries / len(course.total),
        clients=_clients(population, outcomes, spent),
        closers=(),
        by_hour=tuple(_hour(hour, population, job, course, draw) for hour in range(_HOURS)),
    )
    counts = weighting(job.staleness)(np.arange(len(ages)))
    return Flow(
        expected=expected,
        ages=ages / whole,
        factor=float(ages @ counts) / whole,
        used=by_cohort / max(float(by_cohort.sum()), 1e-300),
        by_hour=job.buffer * hours[there] / hours[there].sum(axis=1, keepdims=True),
        fastest=fastest,
        slowest=slowest,
        never=never,
    )


def _spent(population: Population, job: Job, course: Course) -> Reals:
    """Return seconds at work, bytes received and sent, of all launches; shape (3, cohorts)."""
    ended, devices, load = course.ended, population.devices, job.load
    kind, cohorts = devices.kind[ended.device], len(population.shares)
    down, up = devices.down[ended.device], devices.up[ended.device]
    whole = (ended.outcome == End.USED) | (ended.outcome == End.LOST)
    received = load.down * np.where(whole, 1.0, _part(ended.seconds, down))
    sent = load.up * np.where(whole, 1.0, _part(ended.seconds - down - ended.train, up))
    values = ended.seconds, received, sent
    return np.stack([np.bincount(kind, value, cohorts) for value in values])


def _part(seconds: Reals, whole: Reals) -> Reals:
    """Return which share of a transfer is done; one that takes no time is done once begun."""
    done: Reals = (seconds >= 0).astype(np.float64)
    np.divide(seconds, whole, out=done, where=whole > 0)
    return done.clip(0.0, 1.0)


def _clients(population: Population, outcomes: Reals, spent: Reals) -> tuple[Took, ...]:
    return tuple(
        Took(
            cohort=cohort.name,
            site=cohort.site,
            share=float(population.shares[place]),
            asked=float(outcomes[place].sum()),
            used=float(outcomes[place, End.USED]),
            late=float(outcomes[place, End.LATE]),
            lost=float(outcomes[place, End.LOST]),
            offline=float(outcomes[place, End.OFFLINE]),
            crashed=float(outcomes[place, End.CRASHED]),
            work=float(spent[0, place]),
            received=float(spent[1, place]),
            sent=float(spent[2, place]),
        )
        for place, cohort in enumerate(population.description.cohorts)
    )


def _ends(population: Population, used: Ids) -> tuple[float, float, float]:
    """Return the shares of the fastest and the slowest tenth, and how many are never used."""
    devices = population.devices
    counts = np.bincount(used, minlength=len(devices)).astype(np.float64)
    order = np.argsort(devices.down + devices.train + devices.up, kind="stable")
    sums = np.concatenate([[0.0], counts[order].cumsum()])
    whole, places = max(sums[-1], 1.0), np.arange(len(sums))
    tenth = _TENTH * len(devices)
    low, high = (float(np.interp(at, places, sums)) for at in (tenth, len(devices) - tenth))
    return low / whole, 1 - high / whole, float((counts == 0).mean())


def _hour(
    hour: int, population: Population, job: Job, course: Course, draw: np.random.Generator
) -> Hour:
    """Return what was seen of rounds that began in one hour of the day; NaN: none did."""
    here = np.floor(course.opened / HOUR).astype(np.int64) % _HOURS == hour
    sample = Sample.of(course.gaps[here]) if here.any() else None
    online, _ = present(population.devices, (hour + 0.5) * HOUR, draw)
    return Hour(
        hour=hour,
        p50=math.nan if sample is None else sample.at(0.5),
        p90=math.nan if sample is None else sample.at(0.9),
        miss=math.nan if sample is None else float(course.void[here].mean()),
        online=float(online.mean()) * job.clients,
        short=0.0,
    )
