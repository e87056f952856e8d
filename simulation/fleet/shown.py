"""What devices a description yields, cohort by cohort: quantiles, time of a round, hours online."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypedDict

import numpy as np

from .counter import Purpose
from .declared import Site
from .sites import HOUR

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .description import Cohort, Description
    from .devices import Ids, Load
    from .profiles import ArrayFleet

SHARES = (0.1, 0.5, 0.9)
_LOOKED_AT = 5000
"""Devices of a cohort that are looked at hour by hour."""
_WEEK = 7 * 24
_BARS = " ▁▂▃▄▅▆▇█"


class Shown(TypedDict):
    """One cohort. What differs between devices is its quantiles 0.1, 0.5 and 0.9."""

    name: str
    site: str
    clients: int
    samples: list[float]
    speed: list[float]
    """Seconds to train a sample once."""
    downlink: list[float]
    """Bytes/s."""
    uplink: list[float]
    memory: list[float] | None
    """Bytes; None: the file does not say."""
    seconds: list[float]
    """Of one round for one device, in the first round."""
    lost: float
    """Share of finished updates that do not arrive, over all hours."""
    crashed: float
    online: list[float]
    """Share of devices in the middle of each hour of the day, over a week."""


def shown(described: Description, fleet: ArrayFleet, load: Load) -> list[Shown]:
    """Return what each cohort's devices are.

    Args:
        described: Whose cohorts they are.
        fleet: Its devices.
        load: What a round asks of each.
    """
    cohorts = fleet.cohort_of(np.arange(fleet.clients))
    return [
        _cohort(described, fleet, load, cohort, np.flatnonzero(cohorts == place))
        for place, cohort in enumerate(described.cohorts)
    ]


def bar(shares: list[float]) -> str:
    """Return a character for each share of 0 to 1, a blank for 0 alone."""
    most = len(_BARS) - 1
    return "".join(_BARS[min(most, int(np.ceil(share * most)))] for share in shares)


def _cohort(
    described: Description, fleet: ArrayFleet, load: Load, cohort: Cohort, ids: Ids
) -> Shown:
    profiles, behaviour = fleet.profiles, cohort.behaviour
    site = described.sites.get(cohort.site, Site())
    memory = None
    if cohort.memory is not None:
        memory = _quantiles(cohort.memory.draw(fleet.seed, Purpose.MEMORY, fleet.numbers_of(ids)))
    return Shown(
        name=cohort.name,
        site=cohort.site,
        clients=len(ids),
        samples=_quantiles(profiles.samples[ids]),
        speed=_quantiles(profiles.speed[ids]),
        downlink=_quantiles(profiles.downlink[ids]),
        uplink=_quantiles(profiles.uplink[ids]),
        memory=memory,
        seconds=_quantiles(sum(fleet.times(ids, 1, load), np.zeros(len(ids)))),
        lost=1 - (1 - behaviour.dropout) * (1 - site.outage),
        crashed=behaviour.crash,
        online=_online(fleet, ids),
    )


def _quantiles(values: NDArray[Any]) -> list[float]:
    if not len(values):
        return []
    found: list[float] = np.quantile(values.astype(np.float64), SHARES).tolist()
    return found


def _online(fleet: ArrayFleet, ids: Ids) -> list[float]:
    """Return the share that is online in each hour: of some devices, evenly taken."""
    if not len(ids):
        return [0.0] * 24
    some = ids[:: -(-len(ids) // _LOOKED_AT)]
    found = np.zeros(24)
    for hour in range(_WEEK):
        at = (hour + 0.5) * HOUR
        found[hour % 24] += np.mean(fleet.windows(some, at, 1)[0] <= at)
    return [float(share) for share in found * 24 / _WEEK]
