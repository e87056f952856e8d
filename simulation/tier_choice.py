"""Which tier trains a run's clients, by what the run is: its task, its first model, its numbers."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from .engine.choosing import choose
from .engine.replicas import spread
from .engine.tiers import candidates
from .engine.work import Work
from ..strategies.trainer import Settings

if TYPE_CHECKING:
    from collections.abc import Callable

    from .engine.choosing import Choice
    from .engine.torch_group import Group
    from .engine.work import Arrays
    from .simulated import Simulated
    from ..server.settings import RunSettings
    from ..strategies.app import AppRef
    from ..strategies.task import Task

SAMPLE = 100
"""Most clients of the trial by which a tier is chosen."""


def tier_for(
    task: Task,
    model: Arrays,
    settings: RunSettings,
    simulated: Simulated,
    *,
    wanted: str,
    app: AppRef | None,
    say: Callable[[str], None],
    ranks: Group | None = None,
) -> Choice:
    """Return who trains, and why; the caller closes it.

    Args:
        task: Of the run.
        model: The first one.
        settings: The run.
        simulated: How it is simulated.
        wanted: Name of a tier, or `auto`.
        app: Where other processes find the task; without it they are forks of this one.
        say: Called with lines about what is tried and chosen.
        ranks: The processes that train with this one, of which this is the first.

    Raises:
        SettingsError: No tier can train the task, or not the wanted one.
        StateError: Another process cannot make the tier, or is gone.
    """
    clients = simulated.clients
    size = settings.cohort or clients
    config = {**settings.config, "server-round": 1}
    sample = Work(
        clients=np.arange(min(size, clients, SAMPLE), dtype=np.int64),
        partitions=clients,
        models=[model],
        settings=Settings.of(config),
        config=config,
        weight_cap=settings.params.weight_cap,
    )
    found = candidates(task, sample, simulated.workers, app)
    chosen = choose(found, sample, wanted, trainings=size * settings.rounds, say=say)
    if ranks is not None:
        reason = f"{chosen.reason}; {ranks}"
        chosen = replace(chosen, tier=spread(ranks, chosen.tier), reason=reason)
    say(chosen.reason)
    return chosen
