"""The rounds of a run beside the plan that it was started with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .calibration import calibration
from .run_plan import RunPlan
from .signals import duration

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from .calibration import Calibration
    from .ledger import RoundRecord, RunRecord

PLAN = "plan"
"""Key of a run's record: what the run keeps of its plan (run_plan.py)."""


def plan_of(run: RunRecord) -> RunPlan | None:
    """Return a run's plan; None for a run without one.

    Raises:
        SettingsError: The record has one that no run keeps.
    """
    kept = run.config.get(PLAN)
    return None if kept is None else RunPlan.of_record(kept, run.run)


def closed(records: Iterable[RoundRecord]) -> list[tuple[int, float]]:
    """Return number and seconds of every attempt at a training round that was closed.

    Those that had too few updates took their time too, and the plan counts them.
    """
    return [
        (record.round, seconds)
        for record in records
        if record.phase == "train" and record.outcome != "lost"
        for seconds in (duration(record),)
        if seconds > 0
    ]


def compared(run: RunRecord, records: Sequence[RoundRecord]) -> Calibration | None:
    """Return how a run's plan did; None without a plan, or without a round.

    Raises:
        SettingsError: As `plan_of`.
    """
    plan = plan_of(run)
    if plan is None:
        return None
    return calibration(plan.quantiles, [seconds for _, seconds in closed(records)])
