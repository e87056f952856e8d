"""Which clock a run has: from its fleet and a few of its settings.

no fleet                  everybody.py: no time passes
a fleet                   synchronous.py; `deadline` and quorum are virtual
a fleet and a `buffer`    buffered.py; the cohort is how many are at work
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from .buffered import Buffered, Flow
from .everybody import Everybody
from .synchronous import Synchronous, Terms
from ..fleet.devices import Load
from ...protocol.errors import SettingsError
from ...server.cohort import invitations
from ...server.deadlines import MOST_LOST

if TYPE_CHECKING:
    from .decision import Clock
    from ..fleet.devices import Fleet


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """What a run's settings say about its rounds."""

    cohort: int | None
    """Updates that a synchronous round waits for, or clients at work in an asynchronous run; None
    is all clients."""
    seed: int
    deadline: float = math.inf
    """Virtual seconds."""
    quorum: int = 1
    """Updates without which a synchronous round has no result."""
    dropout: float = 0.0
    """Share of those asked that is expected not to answer: as many more are asked as in a
    deployment, at most ten times the cohort."""
    buffer: int = 0
    """Updates that make an asynchronous round; 0 is synchronous."""
    staleness: str = "polynomial 0.5"
    """What an old update counts (strategies/staleness.py)."""
    load: Load = field(default_factory=Load)


def clock_for(fleet: Fleet | None, clients: int, pace: Pace) -> Clock:
    """Return the run's clock.

    Raises:
        SettingsError: The fleet has another number of clients, or the settings do not fit it.
    """
    cohort = clients if pace.cohort is None else pace.cohort
    if fleet is None:
        if pace.buffer:
            move = "an asynchronous run needs to know how long its clients take"
            raise SettingsError("buffer", "0 without a fleet", pace.buffer, move)
        load = pace.load
        return Everybody(clients, pace.cohort, seed=pace.seed, down=load.down, up=load.up)
    if fleet.clients != clients:
        raise SettingsError("fleet", f"{clients} clients", fleet.clients)
    if pace.buffer:
        flow = Flow(
            concurrency=cohort,
            buffer=pace.buffer,
            staleness=pace.staleness,
            deadline=pace.deadline,
            load=pace.load,
            seed=pace.seed,
        )
        return Buffered(fleet, flow)
    terms = Terms(
        cohort=cohort,
        invited=min(invitations(cohort, min(pace.dropout, MOST_LOST)), clients),
        deadline=pace.deadline,
        quorum=min(pace.quorum, cohort),
        load=pace.load,
        seed=pace.seed,
    )
    return Synchronous(fleet, terms)
