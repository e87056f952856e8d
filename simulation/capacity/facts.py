"""What a run takes beside time: of its devices, its server, and money."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Self

import numpy as np

from .costs import GB, HOUR, Costs, Used, costs
from .expected import End
from .ranks import Arithmetic, Ranks, masks_bytes, ranks

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from .expected import Expected
    from .glance import Glance
    from .job import Job
    from ..fleet.description import Description
    from ...protocol.graph import Parameters
    from ...strategies.robust_rules import Robust

    Reals = NDArray[np.float64]

_LOST = [End.LOST, End.OFFLINE, End.CRASHED]


class Effort(NamedTuple):
    """What the tries of a run take; of one try, on average, by cohort."""

    used: Reals
    lost: Reals
    work: Reals
    """Seconds."""
    received: Reals
    sent: Reals
    usual: float
    """Seconds of a round, p50."""
    tries: float
    """Of a whole run."""
    run: float
    """Seconds of it, on average."""

    @classmethod
    def expected(cls, found: Expected) -> Self:
        """Return that of a plan."""
        took = found.clients
        return cls(
            used=np.array([each.used for each in took]),
            lost=np.array([each.lost + each.offline + each.crashed for each in took]),
            work=np.array([each.work for each in took]),
            received=np.array([each.received for each in took]),
            sent=np.array([each.sent for each in took]),
            usual=found.seconds.at(0.5),
            tries=found.tries,
            run=found.tries * (found.seconds.mean + found.wait.mean),
        )

    @classmethod
    def seen(cls, found: Glance, job: Job) -> Self:
        """Return that of some tries: a round that fails is tried again."""
        tries = job.rounds * tried(found.miss, job.attempts)
        each, (work, received, sent) = found.outcomes, found.spent
        return cls(
            used=each[:, End.USED],
            lost=each[:, _LOST].sum(axis=1),
            work=work,
            received=received,
            sent=sent,
            usual=found.seconds.at(0.5),
            tries=tries,
            run=tries * (found.seconds.mean + found.wait.mean),
        )


def tried(miss: float, attempts: int) -> float:
    """Return how many tries a round takes on average: 1 + miss + ... + miss^(attempts - 1)."""
    return float(attempts) if miss >= 1.0 else (1.0 - miss**attempts) / (1.0 - miss)


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Of one run."""

    costs: Costs
    ranks: Ranks
    work: float
    """Seconds of the server's arithmetic in a round, by one process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What the server does with updates."""

    graph: Parameters | None
    """Of the masks; None in a plain run."""
    robust: Robust | None
    """The rule that makes the mean, where it is not a plain one."""


def facts(description: Description, job: Job, effort: Effort, rules: Rules) -> Facts:
    """Return what a run of these tries takes."""
    lost = 0.0 if rules.graph is None else min(float(effort.lost.sum()), rules.graph.d)
    masks = masks_bytes(job.parameters, rules.graph, lost)
    work = Arithmetic(float(effort.used.sum()) * job.load.up, masks, rules.robust, job.cohort)
    needed = ranks(work, effort.usual, description.pools)
    pool = None if needed.pool is None else description.pools[needed.pool]
    used, prices = _used(description, effort), description.prices
    return Facts(
        costs=costs(used, prices, total=effort.run, hourly=needed.hourly),
        ranks=needed,
        work=work.seconds(pool),
    )


def _used(description: Description, effort: Effort) -> Mapping[str, Used]:
    """Return what each cohort does in a whole run."""
    found = {}
    for place, cohort in enumerate(description.cohorts):
        seconds, down, up = (
            effort.tries * float(values[place])
            for values in (effort.work, effort.received, effort.sent)
        )
        found[cohort.name] = Used(
            seconds=seconds,
            joules=seconds * cohort.power,
            priced=seconds / HOUR * cohort.price,
            down=down,
            up=up,
            line=(down + up) / GB * cohort.line_price,
        )
    return found
