"""When devices are there: by the hour of the day, of runs that ask everybody who is.

    share of an hour      Beta-Binomial: what all hours together show counts as DAY trials
    hours a day           24 times the mean share; above ALWAYS of the day: always
    from                  the day's hours in a row, as many as that, whose shares are largest; a
                          fleet's window begins within 4.8 hours, so half of that earlier

Nothing is said of a day of which fewer than SEEN hours were seen.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ..fleet.profiles import DAY, LATEST, LONGEST

if TYPE_CHECKING:
    from collections.abc import Iterable

_HOURS = 24
SEEN = 20
ALWAYS = 0.97
PRIOR = 4.0
"""Trials that the share of the whole day is worth in each hour."""
MOST = LONGEST * DAY / 3600
"""Hours a day that a fleet.toml can say."""


class Online(NamedTuple):
    """A window of the day."""

    hours: float
    begins: float
    """The earliest hour of the day at which it begins."""


def online(there: Iterable[tuple[float, int, int]]) -> Online | None:
    """Return the window; None for always, or for a day of which too little was seen.

    Args:
        there: When, how many were there, of how many.
    """
    hits, trials = np.zeros(_HOURS), np.zeros(_HOURS)
    for at, came, known in there:
        hour = int(at // 3600) % _HOURS
        hits[hour] += came
        trials[hour] += known
    if np.count_nonzero(trials) < SEEN:
        return None
    whole = float((hits / np.maximum(trials, 1))[trials > 0].mean())
    if whole >= ALWAYS:
        return None
    shares = (hits + PRIOR * whole) / (trials + PRIOR)
    hours = min(max(float(shares.mean()) * _HOURS, 0.01), MOST)
    width = max(1, math.ceil(hours))
    sums = [float(np.take(shares, range(h, h + width), mode="wrap").sum()) for h in range(_HOURS)]
    # The window of a row of `width` hours that begins with the hour h begins around there.
    begins = (int(np.argmax(sums)) - LATEST * _HOURS / 2) % _HOURS
    return Online(hours, begins)
