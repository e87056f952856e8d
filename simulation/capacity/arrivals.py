"""How soon an update of a device that is asked arrives, at some moment of the day.

For many devices this is one curve: of those online at the moment, which share has answered after x
seconds. Each device stands in it with the probability that it is online, with one draw of what a
round has of its own: when its window began, how long it trains this time, whether it breaks off.
Losses on the way are left out: they are the site's and the hour's, and a factor on its devices.

A fleet whose devices keep to windows has one curve for each quarter of an hour, made when it is
asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from .expected import End
from ..fleet.profiles import DAY, LATEST

if TYPE_CHECKING:
    from numpy.random import Generator
    from numpy.typing import NDArray

    from .job import Job
    from .population import Devices, Population

    Ids = NDArray[np.int64]
    Reals = NDArray[np.float64]

STEP = 900.0
"""From one curve to the next: a quarter of an hour."""
_CELLS = 512
"""Of a curve by quantiles, and as many by equal ratios."""
_DAYS = 1 << 10
"""Among which one is drawn for a device that was recorded."""
_SPARSE = 0.01
"""Of all devices: where so few are asked, it does not matter that none is asked twice."""
_SHARP = 1e-9
"""Of a value: where many devices take equally long, their cell is so narrow."""


class Drawn(NamedTuple):
    """Devices as they are at one moment, each array of shape (devices,)."""

    online: Reals
    """How likely each is online."""
    down: Reals
    train: Reals
    up: Reals
    end: Reals
    """Seconds until it comes to an end, if it is not lost."""
    outcome: Ids
    """Which end: `End.USED` where it arrives."""


def drawn(population: Population, time: float, draw: Generator) -> Drawn:
    """Draw what devices do that are asked at one moment."""
    devices, kinds = population.devices, population.kinds
    online, left = present(devices, time, draw)
    train = devices.train * kinds.factors(devices.kind, draw)
    busy = devices.down + train
    end, outcome = busy + devices.up, np.zeros(len(devices), np.int64)
    if kinds.crash.any():
        crashed = draw.random(len(devices)) < kinds.crash[devices.kind]
        end = np.where(crashed, draw.random(len(devices)) * busy, end)
        outcome[crashed] = End.CRASHED
    outcome[end > left] = End.OFFLINE
    return Drawn(online, devices.down, train, devices.up, np.minimum(end, left), outcome)


def present(devices: Devices, time: float, draw: Generator) -> tuple[Reals, Reals]:
    """Return how likely each device is online at a moment, and draw for how long from then on.

    Its window began at any moment alike of those since which it would still be open. Where it was
    recorded, any day may be meant, and any moment that this one is the nearest to.
    """
    length, latest = devices.length, LATEST * DAY
    since = np.mod(time + devices.phase, DAY)
    first, last = np.maximum(since - length, 0.0), np.minimum(since, latest)
    width = np.maximum(last - first, 0.0)
    began = first + width * draw.random(len(devices))
    always = np.isinf(length)
    left = np.where(always, np.inf, began + length - since)
    online = np.where(always, 1.0, width / latest)
    for traced in devices.traced:
        count = len(traced.rows)
        moments: Reals = (
            time + STEP * draw.random(count) + DAY * draw.integers(1, _DAYS, size=count)
        )
        moments -= STEP / 2
        begin, end = traced.at(moments)
        online[traced.where] = begin <= moments
        left[traced.where] = end - moments
    return online, left


class Curves:
    """The curves of the day, by groups of devices whose losses are alike."""

    def __init__(
        self, population: Population, job: Job, groups: Ids, base: Reals, draw: Generator
    ) -> None:
        """Take the fleet.

        Args:
            population: Its devices, or some that stand for all.
            job: What is asked of them.
            groups: Of each cohort its group, numbered from 0.
            base: Of each cohort the share of its updates that gets through, whatever the hour.
            draw: The numbers.
        """
        self._population, self._draw = population, draw
        self.group, self.base = groups[population.devices.kind], base[population.devices.kind]
        self.kind = population.devices.kind
        self.always = population.devices.always
        self.edges = self._cells(job.deadline)
        """Seconds, ascending from 0: cells of a curve are (edges[j - 1], edges[j]]."""
        count = 1 if self.always else round(DAY / STEP)
        self._known = np.zeros(count, bool)
        self.online = np.zeros(count)
        """Share of the devices, on average."""
        self.noise = np.zeros(count)
        """Variance of the number of devices online, over their number."""
        self.mass = np.zeros((count, int(groups.max()) + 1, len(self.edges)))
        """Of all devices the share that is online and has answered by each edge, by group."""
        self._sparse = job.invited <= _SPARSE * job.clients
        self._kept = 1 - population.kinds.dropout[population.devices.kind]
        self.settled = np.zeros((count, 2))
        """How much of the variance of an answer lies between devices that are surely online, and
        not in what a round has of its own: that it comes by the deadline, and how soon."""

    def places(self, time: Reals) -> tuple[Ids, Ids, Reals]:
        """Return for some moments the curves before and after, which are made, and the way between.

        Args:
            time: Virtual seconds.
        """
        count = len(self.online)
        if self.always:
            before, way = np.zeros(len(time), np.int64), np.zeros(len(time))
        else:
            steps = time / STEP
            before = np.floor(steps).astype(np.int64)
            way = steps - before
        after = (before + 1) % count
        before = before % count
        for place in np.unique(np.concatenate([before, after])):
            if not self._known[place]:
                self._make(int(place))
        return before, after, way

    def drawn(self, place: int) -> Drawn:
        """Draw what the devices do that are asked at the moment of a curve."""
        return drawn(self._population, place * STEP, self._draw)

    def weights(self, found: Drawn) -> Reals:
        """Return what each device counts: how likely it is online, over the number of devices."""
        return found.online / len(found.online)

    def _cells(self, deadline: float) -> Reals:
        found = drawn(self._population, 0.0, self._draw)
        ends = (found.down + found.train + found.up).clip(0.0, deadline)
        ends = np.quantile(ends, np.linspace(0.0, 1.0, _CELLS + 1), method="inverted_cdf")
        least = max(float(ends[0]), deadline * 1e-6)
        ratios = np.geomspace(least, deadline, _CELLS + 1)
        return np.unique(np.concatenate([[0.0, deadline], ends, ends * (1 - _SHARP), ratios]))

    def _make(self, place: int) -> None:
        found = self.drawn(place)
        self._known[place] = True
        self.online[place] = found.online.mean()
        self.noise[place] = (found.online * (1 - found.online)).mean()
        cells = len(self.edges)
        arrives = np.flatnonzero(found.outcome == End.USED)
        cell = np.searchsorted(self.edges, found.end[arrives])
        here = arrives[cell < cells]
        where = self.group[here] * cells + cell[cell < cells]
        counts = self.weights(found)[here] * self.base[here]
        shape = self.mass[place].shape
        flat = np.bincount(where, counts, minlength=self.mass[place].size)
        self.mass[place] = flat.reshape(shape).cumsum(axis=1)
        if not self._sparse:
            self.settled[place] = self._between(found, self.drawn(place))

    def _between(self, one: Drawn, other: Drawn) -> tuple[float, float]:
        """Return the part of two variances that the same devices have in common in two rounds.

        With p the chance to be online and q(x) that to have answered by x, F the share of all:
        sum p^2 (q - F)^2 / sum p, of F (1 - F).
        """
        cells, online, kept = len(self.edges), one.online, self._kept
        first, second = (
            np.where(found.outcome == End.USED, np.searchsorted(self.edges, found.end), cells)
            for found in (one, other)
        )

        def until(cell: Ids, weights: Reals) -> Reals:
            return np.bincount(cell, weights, cells + 1).astype(np.float64).cumsum()[:cells]

        share = until(first, online * kept) / online.sum()
        both = until(np.maximum(first, second), (online * kept) ** 2)
        crossed = share * until(first, online**2 * kept)
        between = (both - 2 * crossed + share**2 * (online**2).sum()) / online.sum()
        whole, steps = share * (1 - share), np.diff(share, prepend=0.0)
        parts = ((between[-1], whole[-1]), (between @ steps, whole @ steps))
        found = [min(max(part / all_, 0.0), 1.0) if all_ > 0 else 0.0 for part, all_ in parts]
        return found[0], found[1]
