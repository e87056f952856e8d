"""The tiers that a task may have, and how each is made.

Nothing of torch, and no compiler, is loaded before a tier is made that needs it: a task whose model
is of numpy runs where there is no torch.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from .choosing import Candidate
from .loop import Loop
from ...clients.child import boundary
from ...protocol.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from .work import Tier
    from ...strategies.task import Task

NO_GPU = "not tried, there is no GPU and on CPUs it is rarely faster"


def candidates(task: Task, workers: int) -> Mapping[str, Candidate]:
    """Return the tiers by name.

    Args:
        task: What is trained.
        workers: Threads or processes that train.

    Raises:
        Refused: The task raised while it made its model.
    """
    with boundary():
        model = task.model()
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(model, torch.nn.Module):
        refuse = _refuse(type(model).__name__)
        return {"T2": Candidate(refuse), "T3": Candidate(lambda: Loop(task))}
    gpu = torch.cuda.is_available()
    return {
        "T2": Candidate(lambda: _cohorts(task, workers), "" if gpu else NO_GPU),
        "T3": Candidate(lambda: Loop(task)),
    }


def _refuse(kind: str) -> Callable[[], Tier]:
    """Return the maker of a tier for torch, where the model is of another kind."""

    def make() -> Tier:
        raise SettingsError("task.model()", "an nn.Module", kind)

    return make


def _cohorts(task: Task, workers: int) -> Tier:
    """Return tier T2."""
    from .torch_cohort import Cohorts  # noqa: PLC0415 - loads torch.func

    return Cohorts(task, workers)
