"""The tiers that a task may have, and how each is made.

Nothing of torch, and no compiler, is loaded before a tier is made that needs it: a task whose model
is of numpy runs where there is no torch.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from .choosing import Candidate
from .isolation import DATA, isolated, seed
from .loop import Loop
from .task_tier import TaskTier
from ...clients.child import boundary
from ...protocol.errors import Refused, SettingsError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from .work import Tier, Work
    from ..native.testing import Tester
    from ...strategies.app import AppRef
    from ...strategies.task import Task

NO_GPU = "not tried, there is no GPU and on CPUs it is rarely faster"


def candidates(
    task: Task, sample: Work, workers: int, app: AppRef | None = None
) -> Mapping[str, Candidate]:
    """Return the tiers by name.

    Args:
        task: What is trained, as it is in this process.
        sample: Clients of the run, its first model and its numbers.
        workers: Threads or processes that train.
        app: Where fresh processes find the task; without it they are forks of this one.

    Raises:
        Refused: The task raised while it made its model.
    """
    with boundary():
        model = task.model()
    found = {
        "T0": Candidate(lambda: _native(task, sample, workers)),
        "T3": _pooled("T3", task, workers, app),
    }
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(model, torch.nn.Module):
        refuse = _refuse(type(model).__name__)
        return {**found, "T1": Candidate(refuse), "T2": Candidate(refuse)}
    gpu = torch.cuda.is_available()
    return {
        **found,
        "T1": _pooled("T1", task, workers, app),
        "T2": Candidate(lambda: _cohorts(task, workers), "" if gpu else NO_GPU),
    }


def _pooled(name: str, task: Task, workers: int, app: AppRef | None) -> Candidate:
    """Return a tier of worker processes; one of them is timed here, in this process."""
    return Candidate(
        lambda: TaskTier(app or task, workers, name),
        slow=name == "T1",
        probe=lambda: Loop(task, name),
        workers=workers,
    )


def _native(task: Task, sample: Work, workers: int) -> Tier:
    """Return tier T0 for the shapes of the first client's examples."""
    from ..native.tier import tier  # noqa: PLC0415 - it imports this folder's work.py

    site = sample.site(0)
    with isolated(), boundary():
        seed(site, DATA)
        data = task.train_data(site)
    return tier(task, data, workers, evaluate=sample.evaluate)


def tester(tier: Tier, data: Any) -> Tester | None:
    """Return what measures models over the server's examples in the task's place, if it can."""
    from ..native.tier import NativeTier  # noqa: PLC0415 - as above

    if not isinstance(tier, NativeTier):
        return None
    try:
        return tier.tester(data)
    except (SettingsError, Refused):
        return None


def _refuse(kind: str) -> Callable[[], Tier]:
    """Return the maker of a tier for torch, where the model is of another kind."""

    def make() -> Tier:
        raise SettingsError("task.model()", "an nn.Module", kind)

    return make


def _cohorts(task: Task, workers: int) -> Tier:
    """Return tier T2."""
    from .torch_cohort import Cohorts  # noqa: PLC0415 - loads torch

    return Cohorts(task, workers)
