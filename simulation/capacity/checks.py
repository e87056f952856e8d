"""What makes a plan impossible, or doubtful, one line each: the numbers that contradict each other.

A model that is trained takes at least four times its bytes on a device: what was received, what is
trained, its gradients, and the update; where masks are on, the message beside them. Activations and
data are not known here, so a device with less memory than that cannot do it, and one with more may
not be able to.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from .population import Devices
from .words import seconds, share
from ..fleet.counter import Purpose
from ...host.figures import size
from ...protocol.errors import SettingsError
from ...server.deadlines import LEASE_S

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .expected import Expected
    from .job import Job
    from .memory import ServerMemory
    from ..fleet.description import Description

COPIES = 4
"""Of the model, on a device that trains it."""
_LOOKED_AT = 4096
"""Devices of a cohort."""
_DOMINATES = 0.5
_FEW = 1e-3
_SEEN = 0.01
_DAY = 24


def device_bytes(job: Job) -> int:
    """Return what a device needs at least to train the model."""
    model = job.parameters * job.item_bytes
    return COPIES * model + (job.load.up if job.secure else 0)


def checked(
    description: Description, job: Job, expected: Expected, memory: ServerMemory
) -> Iterator[str]:
    """Yield the lines.

    Args:
        description: The fleet.
        job: What is asked of it.
        expected: What its rounds are like.
        memory: The server's.
    """
    yield from _devices(description, job)
    if not job.buffer:
        yield from _rounds(description, job, expected)
    limit = description.server.memory
    if limit is not None and memory.peak > limit:
        needs = f"the server needs {size(memory.peak)} and has {size(int(limit))}"
        yield f"{needs}: {_fewer(job, memory, limit)}a larger machine would do"
    if expected.run_lost > _SEEN:
        null = "" if math.isfinite(expected.total.at(0.5)) else " (p50 of the run is null)"
        tries = "its one attempt" if job.attempts == 1 else f"all its {job.attempts} attempts"
        yield (
            f"{share(expected.run_lost)} of such runs end without a result: a round fails at "
            f"{tries}{null}"
        )


def _fewer(job: Job, memory: ServerMemory, limit: float) -> str:
    """Return what would do for a server beside more memory, as the beginning of a list.

    Only a rule that keeps the updates of all that are asked needs less for fewer of them.
    """
    if not (kept := memory.terms.get("messages", 0)):
        return ""
    asked = job.invited - math.ceil((memory.peak - limit) * job.invited / kept)
    cohort = job.cohort * asked // job.invited
    fewer = f"cohort={cohort}, " if cohort >= max(job.quorum, 1) else ""
    return f"{fewer}a rule that keeps no updates, or "


def _rounds(description: Description, job: Job, expected: Expected) -> Iterator[str]:
    """Yield the lines about rounds that need many at once."""
    yield from _sites(description, job, expected)
    hours = [hour.hour for hour in expected.by_hour if math.isnan(hour.p50)]
    if hours:
        named = f"hours {', '.join(map(str, hours))}" if len(hours) < _DAY else "day"
        yield f"too few devices are online all through the {named} (times are null)"


def _devices(description: Description, job: Job) -> Iterator[str]:
    """Yield a line for each cohort whose devices have too little memory."""
    needed = device_bytes(job)
    places = np.arange(_LOOKED_AT, dtype=np.uint64)
    for cohort in description.cohorts:
        if cohort.memory is None:
            continue
        has = cohort.memory.draw(description.seed or 0, Purpose.MEMORY, places)
        short = float(np.mean(has < needed))
        if short:
            yield (
                f"cohort {cohort.name}: the model does not fit {share(short)} of its devices; "
                f"training takes {size(needed)} at least ({COPIES} times the model), they have "
                f"{size(int(has.min()))} to {size(int(has.max()))}"
            )


def _sites(description: Description, job: Job, expected: Expected) -> Iterator[str]:
    """Yield a line for each site without which a round cannot be."""
    used: dict[str, float] = {}
    for took in expected.clients:
        used[took.site] = used.get(took.site, 0.0) + took.asked
    asked = sum(used.values())
    for name, site in description.sites.items():
        part = used.get(name, 0.0) / asked if asked else 0.0
        if site.outage > _FEW and part > _DOMINATES and asked * (1 - part) < job.quorum:
            yield (
                f"site {name} has {share(part)} of those that are asked: in the "
                f"{share(site.outage)} of hours in which nothing comes from there, the other "
                f"{asked * (1 - part):.0f} are fewer than the quorum of {job.quorum}"
            )


def refuse_impossible(description: Description, job: Job, expected: Expected, seed: int) -> None:
    """Refuse a deadline before which no quorum can be there.

    Raises:
        SettingsError: It is too early even for the fastest devices of all, each at its usual pace.
    """
    if expected.miss < 1.0:
        return
    fleet = description.fleet(job.clients, seed)
    devices = Devices.of(description, fleet, np.arange(job.clients), job.load)
    usual = np.partition(devices.down + devices.train + devices.up, job.quorum - 1)
    fastest = float(usual[job.quorum - 1])
    if fastest > job.deadline:
        wanted = (
            f"at least {seconds(fastest)}: so long take the {job.quorum} fastest devices of all, "
            "and so many updates are the quorum"
        )
        move = f"train less in a round, or lower the quorum: a deadline has at most {LEASE_S} s"
        if fastest <= LEASE_S:
            move = f"-c deadline={min(LEASE_S, max(1, math.ceil(2 * fastest)))}"
        raise SettingsError("deadline", wanted, job.deadline, move)
