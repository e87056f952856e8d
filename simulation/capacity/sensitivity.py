"""Which assumption matters: what a run comes to where each is a tenth worse, the largest first.

Every variant is looked at with the same draws (glance.py), so that a small effect is seen. The miss
is exact given the shares that deliver (chances.py).

    effect = max(|run p50|, |round p90|, |money|) as shares, and the miss in absolute terms
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from .chances import groups, missed, waits
from .facts import Effort, facts
from .losses import Losses
from .variants import MORE, TENTH, Variant, variants

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from .costs import Costs
    from .facts import Rules
    from .glance import Stand
    from .job import Job
    from ..fleet.description import Description


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """What a tenth more, or less, of one thing changes; shares of what was."""

    name: str
    change: str
    round_p90: float
    total_p50: float
    miss: float
    """In absolute terms."""
    money: float

    @property
    def size(self) -> float:
        """What it is ranked by."""
        found = (abs(v) for v in (self.round_p90, self.total_p50, self.miss, self.money))
        return max((v for v in found if not math.isnan(v)), default=0.0)

    def described(self) -> dict[str, Any]:
        """Return it as a plan's file has it."""
        keys = ("name", "change", "round_p90", "total_p50", "miss", "money")
        return {key: getattr(self, key) for key in keys}


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """What all variants have in common."""

    at: Stand
    rules: Rules
    online: float
    """Devices that may be asked at a time."""
    scarce: bool
    """Whether there are hours in which fewer are online than are asked."""

    def effects(self, costs: Costs, say: Callable[[float], None]) -> list[Effect]:
        """Return the effect of each assumption, the largest first.

        Args:
            costs: The plan's own.
            say: Told which share is done.
        """
        found = [*of_prices(costs)]
        if not self.at.ever:
            return found
        before = self._look(self.at.description, self.at.job)
        listed = list(variants(self.at.description, self.at.job, scarce=self.scarce))
        for place, variant in enumerate(listed):
            after = self._look(variant.description, variant.job)
            found.append(effect(variant, before, after))
            say((place + 1) / len(listed))
        return sorted(found, key=lambda one: (-one.size, one.name))

    def _look(self, description: Description, job: Job) -> Looked:
        seen = self.at.look(description, job)
        patient = seen if job.cohort >= job.invited else self.at.look(description, waits(job))
        losses = Losses(groups(description, patient, self.online), description.sites)
        miss = missed(losses, job)
        effort = Effort.seen(seen, job)
        return Looked(
            seconds=seen.seconds.at(0.9),
            run=effort.run,
            miss=max(miss, seen.miss) if self.scarce else miss,
            money=facts(description, job, effort, self.rules).costs.money,
        )


class Looked(NamedTuple):
    """What is compared."""

    seconds: float
    """p90 of a round."""
    run: float
    """Seconds of a whole run on average, failed rounds among them."""
    miss: float
    money: float


def effect(variant: Variant, before: Looked, after: Looked) -> Effect:
    """Return what a variant changes."""
    return Effect(
        name=variant.name,
        change=variant.change,
        round_p90=_grown(before.seconds, after.seconds),
        total_p50=_grown(before.run, after.run),
        miss=after.miss - before.miss,
        money=_grown(before.money, after.money),
    )


def of_prices(costs: Costs) -> Iterator[Effect]:
    """Yield what a tenth more of each price costs: its own part."""
    whole = costs.money
    for name, part in costs.parts.items():
        if part:
            yield Effect(
                name=f"price of {name}",
                change=MORE,
                round_p90=0.0,
                total_p50=0.0,
                miss=0.0,
                money=TENTH * part / whole,
            )


def _grown(before: float, after: float) -> float:
    """Return by which share a value has grown."""
    if not math.isfinite(before) or not math.isfinite(after):
        return math.nan
    return (after - before) / before if before else 0.0
