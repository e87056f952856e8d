"""How a run is simulated: the settings that no deployment has, checked once (server/run_config.py).

| key | default | |
|---|---|---|
| tier | auto | who trains: T0 to T3, or the fastest by a trial (engine/choosing.py) |
| workers | 0 | threads or processes that train; 0: one a core, of those a share under torchrun |
| hand-over | auto | what reaches the coordinator: sum or rows (engine/hand_over.py) |
| test-every | 1 | rounds from one test of the server to the next, and the last; 0: none |
| fleet | | a fleet.toml: what devices there are; none: everybody is there at once |
| buffer | 0 | updates that make an asynchronous round; 0: rounds are synchronous |
| staleness | polynomial 0.5 | what an update from an old model counts (strategies/staleness.py) |
| client-test-every | 0 | the same for tests of the received model by the clients of a round |
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .engine.choosing import AUTO, NAMES
from .engine.hand_over import WAYS
from .engine.replicas import world
from .fleet.description import Description
from .fleet.toml import read
from ..protocol.errors import SettingsError
from ..strategies.staleness import weighting

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .fleet.devices import Fleet
    from ..server.run_config import Value
    from ..server.settings import RunSettings

_COUNTS = {"workers": 1024, "buffer": 1 << 30, "test-every": 1 << 30, "client-test-every": 1 << 30}
"""Keys of whole numbers, with the most that they may be."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Simulated:
    """What a simulation has beside the settings of its run."""

    clients: int
    tier: str = AUTO
    workers: int = 1
    hand_over: str = AUTO
    test_every: int = 1
    client_test_every: int = 0
    fleet: Description | Fleet | None = None
    """What devices the clients are; None: everybody is there at once."""
    buffer: int = 0
    staleness: str = "polynomial 0.5"
    started: Mapping[str, Any] = field(default_factory=dict)
    """What the ledger is to say of how the run was started: enough to take it up."""

    @classmethod
    def of(
        cls,
        table: Mapping[str, Value],
        clients: int,
        started: Mapping[str, Any] | None = None,
        fleet: Fleet | None = None,
    ) -> Simulated:
        """Read a run's settings, and the fleet that they name.

        Args:
            table: The settings.
            clients: How many are registered.
            started: What the ledger is to say of how the run was started.
            fleet: One from Python, in place of a file.

        Raises:
            SettingsError: A value is none of those that there are, or the file is no fleet's.
        """
        for key, known in (("tier", (*NAMES, AUTO)), ("hand-over", WAYS)):
            if table[key] not in known:
                raise SettingsError(key, f"one of {', '.join(known)}", table[key])
        weighting(str(table["staleness"]))
        for key, most in _COUNTS.items():
            if not 0 <= int(table[key]) <= most:
                raise SettingsError(key, f"0 to {most}", table[key])
        return cls(
            clients=clients,
            tier=str(table["tier"]),
            workers=int(table["workers"]) or cores(),
            hand_over=str(table["hand-over"]),
            test_every=int(table["test-every"]),
            client_test_every=int(table["client-test-every"]),
            fleet=read(Path(str(table["fleet"]))) if fleet is None and table["fleet"] else fleet,
            buffer=int(table["buffer"]),
            staleness=str(table["staleness"]),
            started=started or {},
        )

    def check(self, run: RunSettings) -> None:
        """Refuse what the run's own settings contradict.

        Raises:
            SettingsError: An asynchronous round has fewer updates than a round needs, or the run's
                plan is about another fleet.
        """
        own = self.digest
        if run.plan is not None and own and run.plan.fleet != own:
            move = "plan the run with the fleet that it has: umbel plan"
            raise SettingsError("plan: fleet", f"that of the run, {own}", run.plan.fleet, move)
        least = max(run.params.min_members, run.params.min_survivors)
        if 0 < self.buffer < least:
            move = "raise buffer, or lower min-members and min-survivors"
            raise SettingsError("buffer", f"at least {least}, the run's floor", self.buffer, move)

    def devices(self, seed: int) -> Fleet | None:
        """Return the fleet's devices, of the run's seed if it has none of its own.

        Raises:
            SettingsError: It counts another number of clients.
        """
        found = self.fleet
        return found.fleet(self.clients, seed) if isinstance(found, Description) else found

    @property
    def digest(self) -> str:
        """SHA-256 of the fleet's files, hex; empty where there are none."""
        return self.fleet.digest if isinstance(self.fleet, Description) else ""


def cores() -> int:
    """Return how many cores this process may use, beside others that torchrun has started."""
    place = world()
    return max(1, len(os.sched_getaffinity(0)) // (1 if place is None else place.beside))
