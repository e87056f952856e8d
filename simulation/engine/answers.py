"""When the clients of a simulated round answered: the event beside its entry in the ledger.

The form is a deployment's (server/client_times.py); names are the cohorts of the fleet, and times
are the virtual clock's. A round in which no time passes has none.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, NamedTuple, Self

import numpy as np

from ..clock.decision import Outcome
from ..fleet.profiles import ArrayFleet
from ...server.client_times import FATES, MOST, numbers
from ...server.signal_groups import COHORTS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..clock.decision import Decision, Ids
    from ..fleet.devices import Fleet


class Groups(NamedTuple):
    """Which clients are counted together."""

    names: tuple[str, ...] = ("",)
    of: Callable[[Ids], Ids] = np.zeros_like
    """Returns for each client the place of its name."""

    @classmethod
    def in_(cls, fleet: Fleet | None) -> Self:
        """Return a fleet's cohorts; all clients together where it has none."""
        return cls(fleet.cohorts, fleet.cohort_of) if isinstance(fleet, ArrayFleet) else cls()

    def sizes(self, clients: int) -> dict[str, dict[str, int]]:
        """Return what a run's record says of them: how many clients each has; one alone nothing."""
        if len(self.names) < 2:  # noqa: PLR2004 - one is no group
            return {}
        counts = np.bincount(self.of(np.arange(clients)), minlength=len(self.names))
        return {COHORTS: dict(zip(self.names, counts.tolist(), strict=True))}


def answers(
    decision: Decision, groups: Groups, nodes: Callable[[Sequence[int]], tuple[str, ...]]
) -> dict[str, str]:
    """Return the detail of the event; empty where no time passes.

    Args:
        decision: The round.
        groups: Its clients', by name.
        nodes: Returns the node ids, hex, of some clients.
    """
    if not decision.opened and not decision.closed:
        return {}
    of, width = groups.of(decision.invited), len(groups.names)
    counts = np.bincount(of * len(Outcome) + decision.outcomes, minlength=width * len(Outcome))
    table = counts.reshape(width, len(Outcome))
    found = {"names": json.dumps(groups.names), "asked": numbers(table.sum(axis=1).tolist())}
    found |= {name: numbers(table[:, place].tolist()) for place, name in enumerate(FATES)}
    used = decision.outcomes == Outcome.USED
    if decision.sending is None or decision.void or not 0 < np.count_nonzero(used) <= MOST:
        return found
    sending = decision.sending[used]
    found["sites"] = numbers(of[used].tolist())
    found["ready"] = _milliseconds(decision.seconds[used] - sending)
    found["sent"] = _milliseconds(sending)
    slow = decision.late
    if 0 < len(slow) <= MOST:
        found["slow"] = " ".join(nodes(slow.tolist()))
    return found


def _milliseconds(seconds: np.typing.NDArray[np.float64]) -> str:
    return numbers(np.rint(1000 * seconds).astype(np.int64).tolist())
