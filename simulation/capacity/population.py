"""The devices that a plan is made for: those that the fleet's description and its seed say."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, NamedTuple, Self

import numpy as np

from ..fleet.profiles import DAY, LONGEST

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.random import Generator
    from numpy.typing import NDArray

    from .job import Job
    from ..fleet.description import Description
    from ..fleet.devices import Load
    from ..fleet.profiles import ArrayFleet
    from ..fleet.traces import Availability

    Ids = NDArray[np.int64]
    Reals = NDArray[np.float64]


_TOGETHER = 1 << 16
"""Devices that are counted at once."""


class Traced(NamedTuple):
    """Devices of a cohort whose windows were recorded."""

    where: Ids
    """Their places among all devices."""
    trace: Availability
    rows: Ids
    """Of the trace, each one's."""

    def at(self, time: Reals) -> tuple[Reals, Reals]:
        """Return begin and end of the window that is open or comes next.

        Args:
            time: Of each of them, shape (..., devices of the cohort).
        """
        rows = np.broadcast_to(self.rows, time.shape).reshape(-1)
        begin, end = self.trace.windows(rows, time.reshape(-1))
        return begin.reshape(time.shape), end.reshape(time.shape)


@dataclass(frozen=True, slots=True, eq=False)
class Devices:
    """What some devices are, each array of shape (devices,)."""

    kind: Ids
    """Which of the description's cohorts."""
    down: Reals
    """Seconds to get the model."""
    train: Reals
    """Seconds to train, as usual: without what each round has of its own."""
    up: Reals
    """Seconds to send the update."""
    phase: Reals
    """Seconds that its day is ahead of the run's."""
    length: Reals
    """Seconds of its window a day; infinity: always online, or as its trace says."""
    traced: tuple[Traced, ...]

    def __len__(self) -> int:
        """Count them."""
        return len(self.kind)

    @property
    def always(self) -> bool:
        """Whether all of them are always online."""
        return not self.traced and bool(np.isinf(self.length).all())

    @classmethod
    def of(cls, description: Description, fleet: ArrayFleet, ids: Ids, load: Load) -> Self:
        """Return some devices of a fleet, and how long a round's load takes them."""
        has, kind = fleet.profiles, fleet.cohort_of(ids)
        speed = has.speed[ids].astype(float)
        return cls(
            kind=kind,
            down=load.down / has.downlink[ids].astype(float),
            train=load.epochs * has.samples[ids] * speed,
            up=load.up / has.uplink[ids].astype(float),
            phase=has.phase[ids].astype(float),
            length=LONGEST * DAY * has.duty[ids].astype(float),
            traced=tuple(_traced(description, kind, ids)),
        )


def _traced(description: Description, kind: Ids, ids: Ids) -> Iterator[Traced]:
    """Find the devices of cohorts that have a trace; rows are counted as the fleet counts them."""
    first = 0
    for number, cohort in enumerate(description.cohorts):
        if cohort.behaviour.trace is not None:
            where = np.flatnonzero(kind == number)
            yield Traced(where, cohort.behaviour.trace, ids[where] - first)
        first += cohort.count or 0


@dataclass(frozen=True, slots=True, eq=False)
class Kinds:
    """How the devices of each cohort behave, each array of shape (cohorts,)."""

    jitter: Reals
    spread: Reals
    dropout: Reals
    crash: Reals

    @classmethod
    def of(cls, description: Description) -> Self:
        """Return what the description says."""
        behaviours = [cohort.behaviour for cohort in description.cohorts]
        names = [field.name for field in fields(cls)]
        return cls(*(np.array([getattr(b, n) for b in behaviours], np.float64) for n in names))

    def factors(self, kind: Ids, draw: Generator) -> Reals:
        """Draw how many times as long as usual devices of some cohorts train in a round."""
        found = np.ones(kind.shape)
        if self.jitter.any():
            width = self.jitter[kind]
            found += width * (2 * draw.random(kind.shape) - 1)
        if self.spread.any():
            found *= np.exp(self.spread[kind] * draw.standard_normal(kind.shape))
        return found


@dataclass(frozen=True, slots=True, eq=False)
class Population:
    """The fleet of a plan."""

    description: Description
    devices: Devices
    kinds: Kinds
    shares: Reals
    """Of all clients, by cohort; shape (cohorts,)."""

    @classmethod
    def of(
        cls,
        description: Description,
        job: Job,
        seed: int,
        most: int,
        draw: Generator,
        least: int = 1,
    ) -> Self:
        """Return the devices of a description.

        Args:
            description: What it says.
            job: What is asked of them.
            seed: Of the devices, where the description has none.
            most: Devices that are wanted: of more, so many are drawn.
            draw: The numbers.
            least: Devices that are wanted, too: each of fewer stands there several times.

        Raises:
            SettingsError: The description counts another number of clients.
        """
        fleet = description.fleet(job.clients, seed)
        ids, cohorts = np.arange(job.clients), len(description.cohorts)
        counts = np.zeros(cohorts)
        for part in np.array_split(ids, 1 + job.clients // _TOGETHER):
            counts += np.bincount(fleet.cohort_of(part), minlength=cohorts)
        if job.clients > most:
            ids = np.sort(draw.choice(job.clients, most, replace=False))
        ids = np.tile(ids, max(1, least // len(ids)))
        devices = Devices.of(description, fleet, ids, job.load)
        return cls(description, devices, Kinds.of(description), counts / job.clients)
