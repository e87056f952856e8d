"""What happens to all devices of a site at once, hour by hour: cut off, or with more losses.

Each run has hours of its own: `cut` with the site's `outage`, for as many as its outages last from
some moment on, and a dropout that is the quantile of
the cohort's Beta distribution at a number that the site's cohorts share (fleet/beta.py). The
quantiles are found once, at the middles of equal parts of [0, 1).
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from ..fleet.beta import quantile

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..fleet.description import Description

    Ids = NDArray[np.int64]
    Reals = NDArray[np.float64]

HOUR = 3600.0
_PARTS = 1024


@lru_cache(maxsize=4)
def _table(means: tuple[float, ...], ties: tuple[float, ...]) -> Reals:
    """Return dropouts in hours from the best to the worst, shape (hours, cohorts)."""
    middles = (np.arange(_PARTS if any(ties) else 1)[:, None] + 0.5) / _PARTS
    return quantile(middles, means, ties)


class Weather:
    """The hours of some runs that go on side by side."""

    def __init__(self, description: Description, runs: int, draw: np.random.Generator) -> None:
        """Begin before the first hour; the numbers come from `draw`."""
        behaviours = [cohort.behaviour for cohort in description.cohorts]
        names = list(dict.fromkeys(behaviour.site for behaviour in behaviours))
        self._site = np.array([names.index(behaviour.site) for behaviour in behaviours])
        told = [description.sites.get(name) for name in names]
        self._outage = np.array([0.0 if site is None else site.outage for site in told])
        self._lasts = np.array([1.0 if site is None else site.outage_hours for site in told])
        ties = np.array([0.0 if site is None else site.correlation for site in told])
        self._means = np.array([behaviour.dropout for behaviour in behaviours])
        self._draw, self._hour = draw, np.full(runs, -1.0)
        self.steady = not (ties.any() or self._outage.any())
        """Whether every hour is as the others."""
        self._quantiles = _table(tuple(self._means.tolist()), tuple(ties[self._site].tolist()))
        self._now = np.tile(self._means, (runs, 1))
        self._long, shape = bool((self._lasts > 1).any()), (runs, len(names))
        self._begun = draw.random(shape) if self._long else np.zeros(shape)
        self._span, self._cut = np.full(shape, -1.0), np.zeros(shape, bool)

    def dropout(self, runs: Ids, time: Reals) -> Reals:
        """Return the probability that an update is lost, where each run asks at a time of its own.

        Args:
            runs: Which.
            time: Of each of them, virtual seconds.

        Returns:
            Shape (runs asked for, cohorts).
        """
        if self.steady:
            return self._now[runs]
        hour = np.floor(time / HOUR)
        moved = hour != self._hour[runs]
        new = runs[moved]
        if len(new):
            shape, cohorts = (len(new), len(self._outage)), np.arange(len(self._means))
            cut = self._draw.random(shape) < self._outage
            if self._long:
                cut = self._lasting(new, hour[moved], cut)
            place = self._draw.integers(len(self._quantiles), size=shape)
            lossy = self._quantiles[place[:, self._site], cohorts]
            self._now[new] = np.where(cut[:, self._site], 1.0, lossy)
            self._hour[new] = hour[moved]
        return self._now[runs]

    def _lasting(self, runs: Ids, hour: Reals, cut: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return which sites are cut off: as before, where what was drawn then lasts.

        Args:
            runs: Which.
            hour: Of each.
            cut: What is drawn where nothing lasts; shape (runs, sites).
        """
        span = np.floor(hour[:, None] / self._lasts + self._begun[runs] * (self._lasts > 1))
        found: NDArray[np.bool_] = np.where(span == self._span[runs], self._cut[runs], cut)
        self._span[runs], self._cut[runs] = span, found
        return found
