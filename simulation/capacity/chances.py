"""How likely a round has too few updates, and how many to ask so that it has enough.

A device that is asked delivers with probability finishes (1 - dropout), given the hour of its site
(losses.py). `finishes` is the share of those asked that neither break off nor go away, times the
share of the rest that is done before the deadline, by cohort: as rounds show that wait for all they
have asked. Devices that may be asked are as many as are online in a middling hour, of those in
which there is a quorum.

Where enough are online at every hour, the odds are exact given these shares; else they are those of
the drawn rounds, which know the hours.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from .expected import End
from .losses import Group, Losses
from .quorum import quorum
from .rosters import Rosters
from .words import share
from ...server.cohort import invitations

if TYPE_CHECKING:
    from .expected import Expected
    from .glance import Glance, Stand
    from .job import Job
    from .quorum import Quorum
    from ..fleet.description import Description

_WORK = 4.0
"""Times as many tries as a glance has."""
_MOST_DROPOUT = 0.99
_SEEN = 1e-3
"""Of a probability: a difference that is worth a word."""
_NEVER = 1e-6
_USUALLY = 0.75
_POINTS = 25


@dataclass(frozen=True, slots=True, kw_only=True)
class Chances:
    """The odds of one round."""

    losses: Losses
    quorum: Quorum
    """Of the updates without which a round has no result."""
    cohort: Quorum
    """Of all that it waits for; with masks, of a whole roster."""
    full: Losses
    """Those who may be asked for that; with masks nobody is lost on the way to a roster."""
    below: float
    """How likely a round has fewer updates than the quorum."""
    miss: float
    """How likely it has no result: so few, or masks that do not come off."""
    independent: float
    """The same of devices that are as sure one by one, but independent of each other."""
    run_lost: float

    @property
    def sure(self) -> bool:
        """Whether rounds reach their quorum as surely as is asked for."""
        return self.below <= 1.0 - self.quorum.certainty

    @property
    def comes(self) -> int:
        """How many updates a round gets as surely as is asked for, if it waits for all."""
        return self._got(self.quorum.certainty)

    @property
    def usual(self) -> int:
        """How many updates most rounds get, if they wait for all."""
        return self._got(_USUALLY)

    def _got(self, certainty: float) -> int:
        above = np.cumsum(self.losses.arrivals(self.quorum.asked).shares[::-1])[::-1]
        return int(np.flatnonzero(above >= certainty - 1e-12)[-1])

    @property
    def line(self) -> str:
        """Say how likely a round is below its quorum, and what independence would claim."""
        said = self.quorum.line
        if max(self.below, self.quorum.independent) < _NEVER:
            said = (
                f"{share(self.below)} of the rounds have fewer than {self.quorum.needed:,} updates"
            )
        elif self.below > self.quorum.miss + _SEEN:
            said += f"; with the hours in which few are online it is {share(1.0 - self.below)}"
        if self.miss > self.below + _SEEN:
            said += f"; {share(self.miss)} of the rounds have no sum whose masks come off"
            if abs(self.miss - self.independent) > _SEEN:
                said += f" (independence would claim {share(self.independent)})"
        return said

    def described(self) -> dict[str, Any]:
        """Return it as a plan's file has it."""
        return {
            "needed": self.quorum.needed,
            "wanted": self.cohort.needed,
            "miss": self.miss,
            "independent": self.independent,
            "run_lost": self.run_lost,
            "invite": self.cohort.invite,
            "invite_independent": self.cohort.invite_independent,
            "certainty": self.quorum.certainty,
            "line": self.line,
            "by_asked": self._by_asked(),
        }

    def _by_asked(self) -> list[list[float]]:
        """Return numbers of asked, with how likely fewer than the wanted updates come of them."""
        losses, wanted = self.full, self.cohort.needed
        most = min(losses.size, 2 * max(self.cohort.invite or 0, self.cohort.asked))
        if most < wanted:
            return []
        apart = losses.apart()
        steps = np.unique(np.linspace(wanted, most, _POINTS).astype(int)).tolist()
        return [[n, losses.miss(n, wanted), apart.miss(n, wanted)] for n in steps]


def chances(at: Stand, job: Job, expected: Expected, certainty: float) -> Chances:
    """Return the odds of one round.

    Args:
        at: From where to look at the run.
        job: What is asked of the fleet.
        expected: What its rounds are like.
        certainty: Wanted of the number to ask.
    """
    hours = [hour.online for hour in expected.by_hour if hour.online >= job.quorum]
    online = float(np.median(hours)) if hours else 0.0
    sites = at.description.sites
    found = groups(at.description, at.look(job=waits(at.job), work=_WORK), online)
    losses = Losses(found, sites)
    full = Losses([replace(group, dropout=0.0, site="") for group in found], {})
    if not job.secure:
        full = losses
    few, all_ = (
        quorum(of.groups, sites, needed=needed, asked=job.invited, certainty=certainty)
        for of, needed in ((losses, job.quorum), (full, job.cohort))
    )
    exact = missed(losses, job)
    void = max(0.0, exact - few.miss) if job.secure else 0.0
    seen = max(exact, expected.miss) if scarce(job, expected) else exact
    return Chances(
        losses=losses,
        quorum=few,
        cohort=all_,
        full=full,
        below=max(few.miss, seen - void),
        miss=seen,
        independent=missed(_alone(losses), job),
        run_lost=expected.run_lost,
    )


def missed(losses: Losses, job: Job) -> float:
    """Return how likely one try has no result.

    Args:
        losses: Those who may be asked.
        job: What is asked of them.
    """
    if job.secure:
        return Rosters(job).missed(losses)
    return losses.miss(min(job.invited, losses.size), job.quorum)


def _alone(losses: Losses) -> Losses:
    """Return devices that lose as much, but independently of each other."""
    kept = []
    for group in losses.groups:
        site = losses.sites.get(group.site)
        stays = (1.0 - (site.outage if site else 0.0)) * (1.0 - group.dropout)
        kept.append(replace(group, dropout=1.0 - stays, site=""))
    return Losses(kept, {})


def scarce(job: Job, expected: Expected) -> bool:
    """Say whether there are hours in which fewer are online than are asked."""
    return any(hour.online < job.invited or hour.short > 0 for hour in expected.by_hour)


def waits(job: Job) -> Job:
    """Return rounds that wait for all whom they ask, until the deadline."""
    return replace(job, cohort=min(job.invited, job.clients))


def groups(description: Description, patient: Glance, online: float) -> list[Group]:
    """Return what becomes of the updates of those who may be asked.

    Args:
        description: The fleet.
        patient: Rounds that wait for all.
        online: Devices that may be asked at a time.
    """
    outcomes = patient.outcomes
    asked, whole = outcomes.sum(axis=1), float(outcomes.sum())
    together = max(online, whole)
    found = []
    for place, cohort in enumerate(description.cohorts):
        used, late, _, offline, crashed = (float(outcomes[place, end]) for end in End)
        stays = 1.0 - (offline + crashed) / asked[place] if asked[place] else 0.0
        in_time = used / (used + late) if used + late else 1.0  # nobody seen: what losses say
        group = Group(
            size=round(together * float(asked[place]) / whole) if whole else 0,
            finishes=min(1.0, max(0.0, stays * in_time)),
            dropout=cohort.behaviour.dropout,
            site=cohort.site,
        )
        found.append(group)
    return found


def dropout_for(cohort: int, asked: int) -> float:
    """Return the least setting `dropout`, to three digits, with which a run asks so many."""
    low, high = 0, round(_MOST_DROPOUT * 1000)
    while low < high:
        middle = (low + high) // 2
        low, high = (
            (middle + 1, high) if invitations(cohort, middle / 1000) < asked else (low, middle)
        )
    return math.ceil(low) / 1000
