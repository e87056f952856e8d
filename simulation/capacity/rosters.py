"""The rosters of a secure run: how many of each must stay, and how likely a round has no sum.

    roster    the first `cohort` of those asked that finish in time, lost on the way or not; fewer,
              where fewer finish. Who breaks off or goes away is in none
    lost      on the way, with dropout and outages: behind the roster, and nobody takes its place
    result    if as many of n stay as the floors ask for, and no more than D(n) are lost
              (protocol/graph.py), and each neighbourhood can open its secrets (graph_odds.py)

So asking more fills a roster, and gives back none of those that it loses.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from .graph_odds import thin
from .losses import Losses
from .odds import kth_arrival
from ...protocol.errors import SettingsError
from ...protocol.graph import MIN_MEMBERS, parameters

if TYPE_CHECKING:
    from numpy.random import Generator
    from numpy.typing import NDArray

    from .job import Job
    from ...protocol.graph import Parameters

    Ids = NDArray[np.int64]
    Reals = NDArray[np.float64]
    Flags = NDArray[np.bool_]

_SELDOM = 1e-12
"""Of a roster's size: how likely one is that is passed over."""
_ROUNDING = 1e-9
_STEP = 1.02


@lru_cache(4096)
def _of(n: int, alpha: float, delta: float, a_min: int) -> Parameters | None:
    """Return the parameters of a roster; None where it can have none."""
    if n < MIN_MEMBERS:
        return None
    try:
        return parameters(n, alpha=alpha, delta=delta, a_min=a_min)
    except SettingsError:
        return None


class Rosters:
    """Those of one run."""

    def __init__(self, job: Job) -> None:
        """Take what is asked of its rounds."""
        self._job = job

    def need(self, n: int) -> int:
        """Return how many of n must stay; more than there are where none would do."""
        found = self._parameters(n)
        return n + 1 if found is None else max(self._job.quorum, n - found.d)

    def needs(self, n: Ids) -> Ids:
        """Return how many must stay of rosters of some sizes."""
        sizes, places = np.unique(n, return_inverse=True)
        found: Ids = np.array([self.need(int(size)) for size in sizes], np.int64)[places]
        return found

    def void(self, n: Ids, stay: Ids, draw: Generator) -> Flags:
        """Draw which rounds have no result.

        Args:
            n: Members of each roster.
            stay: How many of them stay.
            draw: The numbers: taken only where a neighbourhood can be too thin.
        """
        apart = self._apart(n, stay)
        below: Flags = stay < self.needs(n)
        return below | (draw.random(len(n)) < apart) if apart.any() else below

    def chance(self, n: Ids, stay: Ids, stays: Reals) -> Reals:
        """Return how likely rounds have no result whose members are lost one by one.

        Args:
            n: Members of each roster.
            stay: How many of them stay: of the rare thin neighbourhood only.
            stays: How likely one of them stays.
        """
        found: Reals = 1 - kth_arrival(stays, n, self.needs(n)) + self._apart(n, stay)
        return np.minimum(found, 1.0)

    def missed(self, losses: Losses) -> float:
        """Return how likely a round has no result, but for neighbourhoods that are too thin.

        Args:
            losses: Those who may be asked.
        """
        job = self._job
        sure = [replace(group, dropout=0.0, site="") for group in losses.groups]
        ready = Losses(sure, {}).arrivals(min(job.invited, losses.size)).shares
        sizes = ready[: job.cohort + 1].copy()
        sizes[-1] += ready[job.cohort + 1 :].sum()
        needs = {n: self.need(n) for n in np.flatnonzero(sizes > _SELDOM).tolist()}
        able = {n: needed for n, needed in needs.items() if needed <= n}
        found = members(losses, max(able, default=0)).misses(able) if able else {}
        return min(1.0, sum(float(sizes[n]) * found.get(n, 1.0) for n in needs))

    def _parameters(self, n: int) -> Parameters | None:
        job = self._job
        return _of(n, job.alpha, job.delta, job.a_min)

    def _apart(self, n: Ids, stay: Ids) -> Reals:
        """Return how likely a neighbourhood is too thin, where no more are lost than may be."""
        found, lost = np.zeros(len(n)), n - stay
        for size in np.unique(n).tolist():
            numbers = self._parameters(size)
            if numbers is None or numbers.d <= numbers.k - numbers.t:
                continue
            here = (n == size) & (lost <= numbers.d)
            found[here] = thin(numbers)[lost[here]]
        return found


def members(losses: Losses, n: int) -> Losses:
    """Return those of whom a roster of n is: they are ready, and may be lost.

    Of each group as many as usual, and as many more of all alike as a larger roster takes; of none
    more than there are, but where a roster is larger than all that are ever ready.
    """
    groups = [group for group in losses.groups if group.finishes > 0.0]
    ready = sum(group.size * group.finishes for group in groups)
    bounded = sum(group.size for group in groups) >= n
    more = max(1.0, n / ready) if groups else 1.0
    while True:
        usual = [math.ceil(group.size * group.finishes * more - _ROUNDING) for group in groups]
        sizes = [
            min(size, g.size) if bounded else size for size, g in zip(usual, groups, strict=True)
        ]
        if sum(sizes) >= n or not groups:
            break
        more *= _STEP
    roster = [replace(g, size=size, finishes=1.0) for size, g in zip(sizes, groups, strict=True)]
    return Losses(roster, losses.sites)
