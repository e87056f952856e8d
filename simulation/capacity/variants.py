"""Each assumption a tenth worse: what a plan is computed for again, to see which one matters.

A quantity of devices is worse by a factor on what is drawn for each; the draws stay the same, so
two plans differ by the assumption alone. What a fleet does not have is no variant: no crash, no
price, no site that is cut off.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from ..fleet.profiles import DAY, LONGEST

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from .job import Job
    from ..fleet.counter import Purpose
    from ..fleet.description import Cohort, Description
    from ..fleet.distributions import Distribution, Numbers, Reals

TENTH = 0.1
MORE, LESS = f"+{TENTH:.0%}", f"-{TENTH:.0%}"
_MOST_HOURS = LONGEST * DAY / 3600.0


class Variant(NamedTuple):
    """A run with one assumption changed."""

    name: str
    change: str
    description: Description
    job: Job


@dataclass(frozen=True, slots=True)
class Scaled:
    """Another distribution times a factor, at most `most`."""

    inner: Distribution
    factor: float
    most: float = float("inf")

    def draw(self, seed: int, purpose: Purpose, numbers: Numbers) -> Reals:
        """Return the quantity for some devices; see `Distribution`."""
        drawn: Reals = (self.inner.draw(seed, purpose, numbers) * self.factor).clip(max=self.most)
        return drawn

    def ends(self) -> tuple[float, ...]:
        """Return the inner ends, scaled."""
        return tuple(min(self.factor * end, self.most) for end in self.inner.ends())


def variants(description: Description, job: Job, *, scarce: bool) -> Iterator[Variant]:
    """Yield what changes the rounds of a run; prices do not.

    Args:
        description: The fleet.
        job: What is asked of it.
        scarce: Whether too few are online at times: else it is the same with fewer clients.
    """
    for name, change, per_cohort, applies in _OF_DEVICES:
        if any(applies(cohort) for cohort in description.cohorts):
            cohorts = tuple(per_cohort(cohort) for cohort in description.cohorts)
            yield Variant(name, change, replace(description, cohorts=cohorts), job)
    for key in ("outage", "correlation"):
        if any(getattr(site, key) for site in description.sites.values()):
            sites = {
                name: replace(site, **{key: min(1.0, getattr(site, key) * (1 + TENTH))})
                for name, site in description.sites.items()
            }
            yield Variant(f"{key} of sites", MORE, replace(description, sites=sites), job)
    if any(site.outage and site.outage_hours > 1 for site in description.sites.values()):
        sites = {
            name: replace(site, outage_hours=max(1.0, site.outage_hours * (1 + TENTH)))
            if site.outage_hours > 1
            else site
            for name, site in description.sites.items()
        }
        yield Variant("length of outages", MORE, replace(description, sites=sites), job)
    if description.server.overhead and not job.buffer:
        server = replace(description.server, overhead=description.server.overhead * (1 + TENTH))
        yield Variant("server's own part", MORE, replace(description, server=server), job)
    yield from _of_job(description, job)
    if scarce and (fewer := _fewer(description, job)) is not None:
        yield fewer


def _of_job(description: Description, job: Job) -> Iterator[Variant]:
    """Yield what is the operator's to choose."""
    load = job.load
    bytes_more = replace(load, down=round(load.down * (1 + TENTH)), up=round(load.up * (1 + TENTH)))
    yield Variant("model bytes", MORE, description, replace(job, load=bytes_more))
    cohort = min(job.invited, job.clients, round(job.cohort * (1 + TENTH)))
    if cohort > job.cohort:
        yield Variant("cohort", MORE, description, replace(job, cohort=cohort))
    invited = max(job.cohort, round(job.invited * (1 - TENTH)))
    if invited < job.invited:
        yield Variant("clients asked", LESS, description, replace(job, invited=invited))
    if job.buffer:
        fewer = max(1, round(job.cohort * (1 - TENTH)))
        if fewer < job.cohort:
            yield Variant(
                "clients at work", LESS, description, replace(job, cohort=fewer, invited=fewer)
            )
    yield Variant("deadline", LESS, description, replace(job, deadline=job.deadline * (1 - TENTH)))


def _fewer(description: Description, job: Job) -> Variant | None:
    """Return the run among a tenth fewer clients, if it can be."""
    cohorts, clients = description.cohorts, round(job.clients * (1 - TENTH))
    if description.clients is not None:
        counts = [max(1, round((c.count or 0) * (1 - TENTH))) for c in cohorts]
        cohorts = tuple(replace(c, count=n) for c, n in zip(cohorts, counts, strict=True))
        clients = sum(counts)
    if not job.cohort <= clients < job.clients:
        return None
    described = replace(description, cohorts=cohorts)
    return Variant("clients", LESS, described, replace(job, clients=clients))


def _scaled(name: str, factor: float, most: float = float("inf")) -> Callable[[Cohort], Cohort]:
    def change(cohort: Cohort) -> Cohort:
        if (inner := getattr(cohort, name)) is None:
            return cohort
        changed: dict[str, Any] = {name: Scaled(inner, factor, most)}
        return replace(cohort, **changed)

    return change


def _likelier(name: str) -> Callable[[Cohort], Cohort]:
    def change(cohort: Cohort) -> Cohort:
        value = min(1.0, getattr(cohort.behaviour, name) * (1 + TENTH))
        return replace(cohort, behaviour=replace(cohort.behaviour, **{name: value}))

    return change


def _bandwidth(cohort: Cohort) -> Cohort:
    return _scaled("uplink", 1 - TENTH)(_scaled("downlink", 1 - TENTH)(cohort))


def _always(_cohort: Cohort) -> bool:
    return True


_OF_DEVICES: tuple[tuple[str, str, Callable[[Cohort], Cohort], Callable[[Cohort], bool]], ...] = (
    ("training time", MORE, _scaled("speed", 1 + TENTH), _always),
    ("bandwidth", LESS, _bandwidth, _always),
    ("dropout", MORE, _likelier("dropout"), lambda cohort: cohort.behaviour.dropout > 0),
    ("crash", MORE, _likelier("crash"), lambda cohort: cohort.behaviour.crash > 0),
    (
        "hours online",
        LESS,
        _scaled("hours", 1 - TENTH, _MOST_HOURS),
        lambda cohort: cohort.hours is not None,
    ),
)
