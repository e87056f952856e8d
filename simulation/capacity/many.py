"""Rounds of a fleet with so many devices that each that is asked is one more of a curve's.

The number that arrives of n that are asked is binomial. The time of the k-th of M arrivals is where
the curve has the k-th of M uniform numbers, which is Beta(k, M - k + 1) (David and Nagaraja, Order
Statistics, 2003). So a round is drawn with a few numbers, however many are asked. How many are
online is normal, around the sum of the devices' probabilities.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np

from .arrivals import STEP, Curves
from .course import Tried
from .odds import kth_arrival
from .rosters import Rosters
from .shares import shares
from .weather import Weather

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.random import Generator
    from numpy.typing import NDArray

    from .course import Shares
    from .job import Job
    from .population import Population

    Ids = NDArray[np.int64]
    Reals = NDArray[np.float64]


_COUNTED = 200_000
"""Tries of which it is counted who was used."""


_ALIKE = 0.01
"""Of the variance of a count: where more is settled by the devices, it is not binomial."""


@dataclass(frozen=True, slots=True, eq=False)
class Closed:
    """How some tries ended, each array of shape (tries,)."""

    place: Ids
    """The curve."""
    cell: Ids
    """In which the last of the used arrived; one more than there are where the deadline came."""
    seconds: Reals
    level: Reals
    """Share of all devices that is online and there when the round closes."""
    asked: Ids
    arrived: Ids
    """By the deadline."""
    used: Ids
    through: Reals
    """Of each group the share of updates that got through; shape (tries, groups)."""

    def part(self, rows: NDArray[Any] | slice) -> Closed:
        """Return some of them, copied."""
        return Closed(**{f.name: np.array(getattr(self, f.name)[rows]) for f in fields(self)})

    @classmethod
    def joined(cls, closed: Sequence[Closed]) -> Closed:
        """Return all of some."""
        names = [field.name for field in fields(cls)]
        return cls(**{n: np.concatenate([getattr(one, n) for one in closed]) for n in names})


class Many:
    """The rounds of all devices; see `Model`."""

    def __init__(
        self,
        population: Population,
        job: Job,
        runs: int,
        draw: Generator,
        curves: Curves | None = None,
    ) -> None:
        """Take the fleet, what is asked of it, the number of runs, and curves that are known."""
        self.population, self._job, self._draw = population, job, draw
        self._weather = Weather(population.description, runs, draw)
        dropout = population.kinds.dropout
        groups, base = np.zeros(len(dropout), np.int64), 1 - dropout
        self._rosters = Rosters(job)
        self._apart = job.secure or not self._weather.steady
        """Whether what gets through is a factor of its own: it differs, or is asked by itself."""
        if self._apart:
            pairs = [(c.site, c.behaviour.dropout) for c in population.description.cohorts]
            known = list(dict.fromkeys(pairs))
            groups, base = np.array([known.index(pair) for pair in pairs]), np.ones(len(pairs))
        self._first = np.unique(groups, return_index=True)[1]
        self._curves = curves or Curves(population, job, groups, base, draw)
        self._closed: list[Closed] = []

    def again(self, runs: int) -> Many:
        """Return the same fleet for other runs; see `Model`."""
        return Many(self.population, self._job, runs, self._draw, self._curves)

    def shares(self) -> Shares:
        """Return who was used; see `Model`."""
        return shares(
            self._curves, Closed.joined(self._closed), self._job.load, len(self.population.shares)
        )

    def tries(self, runs: Ids, now: Reals) -> Tried:
        """Return one try in each of some runs; see `Model`."""
        job, curves = self._job, self._curves
        opened, online, there = self._gathered(now)
        place = self._place(opened)
        through = self._through(runs, opened)
        asked = np.minimum(job.invited, there)
        wanted = np.minimum(job.cohort, asked)
        mass = np.einsum("rg,rg->r", through, curves.mass[place, :, -1])
        part = _ratio(mass, curves.online[place])
        arrived, level = self._drawn(place, part, there, asked)
        full = (arrived >= wanted) & (wanted > 0)
        cell, seconds = self._found(place, through, level * mass)
        cell = np.where(full, cell, len(curves.edges))
        seconds = np.where(full, seconds, np.where(wanted > 0, job.deadline, 0.0))
        used = np.minimum(arrived, wanted)
        closed = Closed(place, cell, seconds, level * mass, asked, arrived, used, through)
        counted = max(1, _COUNTED // job.rounds)
        self._closed.append(closed.part(slice(counted)))
        if job.secure:
            whole = curves.mass[place, :, -1].sum(axis=1)
            missed, chance = self._void(asked, arrived, mass, whole, curves.online[place])
            return Tried(opened, seconds, missed, chance, online)
        missed = used < job.quorum
        chance = 1 - kth_arrival(part, asked, job.quorum)
        alike = curves.settled[place, 0] * asked > _ALIKE * there
        return Tried(opened, seconds, missed, np.where(alike, missed, chance), online)

    def _drawn(self, place: Ids, part: Reals, there: Ids, asked: Ids) -> tuple[Ids, Reals]:
        """Draw how many arrive by the deadline, and where the last that is used lies among them.

        Of all devices that are there, `ready` would arrive; of these `arrived` are asked, and the
        wanted-th of them is the rank-th of all. Where a device's answer is settled by what it is,
        `ready` and the times of the ranks vary less than those of independent answers do.

        Args:
            place: The curve.
            part: Share of those asked that arrives.
            there: Devices that are online.
            asked: How many of them are asked.
        """
        draw, settled = self._draw, self._curves.settled[place]
        loose = np.sqrt(1 - settled)
        mean = there * part
        ready = np.rint(mean + loose[:, 0] * (draw.binomial(there, part) - mean)).astype(np.int64)
        ready = np.clip(ready, 0, there)
        arrived = draw.hypergeometric(ready, there - ready, asked)
        wanted = np.maximum(np.minimum(self._job.cohort, arrived), 1)
        share = draw.beta(wanted, np.maximum(arrived - wanted, 0) + 1)
        rank = wanted + draw.binomial(np.maximum(ready - arrived, 0), share)
        last = np.maximum(ready - rank, 0) + 1
        middle = rank / (rank + last)
        level = middle + loose[:, 1] * (draw.beta(rank, last) - middle)
        return arrived, np.clip(level, 0.0, 1.0)

    def _void(
        self, asked: Ids, arrived: Ids, mass: Reals, whole: Reals, online: Reals
    ) -> tuple[NDArray[np.bool_], Reals]:
        """Draw which rosters have no sum, and say how likely that is for one of that size.

        Args:
            asked: Devices.
            arrived: How many of them have, by the deadline.
            mass: Share of all devices that arrives by then.
            whole: Share that is done by then, lost on the way or not.
            online: Share that is there.
        """
        draw = self._draw
        lost = draw.binomial(asked - arrived, _ratio(whole - mass, online - mass))
        n = np.minimum(arrived + lost, self._job.cohort)
        stay = n - draw.hypergeometric(lost, arrived, n)
        chance = self._rosters.chance(n, stay, _ratio(mass, whole))
        return self._rosters.void(n, stay, draw), chance

    def _through(self, runs: Ids, opened: Reals) -> Reals:
        """Return the share of updates that gets through, by group; shape (runs, groups)."""
        if not self._apart:
            return np.ones((len(runs), 1))
        through: Reals = 1 - self._weather.dropout(runs, opened)[:, self._first]
        return through

    def _gathered(self, now: Reals) -> tuple[Reals, Reals, Ids]:
        """Return when enough are online from now on, and how many are, now and then."""
        clients, curves = self._job.clients, self._curves
        before, after, way = curves.places(now)
        mean = clients * (curves.online[before] * (1 - way) + curves.online[after] * way)
        noise = np.sqrt(clients * curves.noise[before])
        drawn = mean + noise * self._draw.standard_normal(len(now))
        online = np.clip(np.rint(drawn), 0, clients)
        short = np.flatnonzero(online < self._job.quorum)
        opened, there = now.copy(), online.astype(np.int64)
        if len(short):
            opened[short] = self._comes(now[short])
            there[short] = np.where(np.isfinite(opened[short]), self._job.quorum, 0)
            opened = np.where(np.isfinite(opened), opened, now)
        return opened, online, there

    def _comes(self, now: Reals) -> Reals:
        """Return when the quorum is there on average, from some moments on; infinity for never."""
        curves, found = self._curves, np.full(len(now), np.inf)
        if curves.always:
            return found
        quorum, begin = float(self._job.quorum) / self._job.clients, np.floor(now / STEP) * STEP
        for _ in range(len(curves.online) + 1):
            before, after, _way = curves.places(begin)
            low, high = curves.online[before], curves.online[after]
            rises = (high > quorum) & ~np.isfinite(found)
            gap = np.where(rises, high - low, 1.0)
            way = np.clip((quorum - low) / np.where(gap > 0, gap, 1.0), 0.0, 1.0)
            found = np.where(rises, np.maximum(begin + way * STEP, now), found)
            if np.isfinite(found).all():
                break
            begin = begin + STEP
        return found

    def _place(self, opened: Reals) -> Ids:
        """Draw one of the two curves between which each moment lies, by who is online then."""
        before, after, way = self._curves.places(opened)
        first = (1 - way) * self._curves.online[before]
        second = way * self._curves.online[after]
        drawn = self._draw.random(len(opened)) * (first + second)
        return np.where(drawn < first, before, np.where(second > 0, after, before))

    def _found(self, place: Ids, through: Reals, mass: Reals) -> tuple[Ids, Reals]:
        """Return the cell and the moment at which so much of the devices has arrived."""
        edges = self._curves.edges
        low, high = np.zeros(len(mass), np.int64), np.full(len(mass), len(edges) - 1)
        while np.any(low < high):
            middle = (low + high) // 2
            enough = self._until(place, through, middle) >= mass
            high = np.where(enough, middle, high)
            low = np.where(enough, low, np.minimum(middle + 1, high))
        before = np.maximum(low - 1, 0)
        start = np.where(low > 0, self._until(place, through, before), 0.0)
        width = self._until(place, through, low) - start
        way = np.divide(mass - start, width, out=np.ones(len(mass)), where=width > 0)
        return low, edges[before] + np.clip(way, 0.0, 1.0) * (edges[low] - edges[before])

    def _until(self, place: Ids, through: Reals, cell: Ids) -> Reals:
        """Return how much has arrived by the end of a cell."""
        mass = self._curves.mass
        found: Reals = np.zeros(len(cell))
        for group in range(mass.shape[1]):
            found += through[:, group] * mass[place, group, cell]
        return found


def _ratio(part: Reals, whole: Reals) -> Reals:
    """Return a share of a whole; of nothing none."""
    found: Reals = np.divide(part, whole, out=np.zeros(len(part)), where=whole > 0)
    return found.clip(0.0, 1.0)
