"""The tiers that a task may have, and how each is made.

Nothing of torch, and no compiler, is loaded before a tier is made that needs it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .choosing import Candidate
from .loop import Loop

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ...strategies.task import Task


def candidates(task: Task, workers: int) -> Mapping[str, Candidate]:
    """Return the tiers by name.

    Args:
        task: What is trained.
        workers: Threads or processes that train.
    """
    del workers
    return {"T3": Candidate(lambda: Loop(task))}
