"""What a run asks of its fleet: the numbers that a plan is made for."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...protocol.errors import SettingsError

if TYPE_CHECKING:
    from ..fleet.devices import Load


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """One run: of those who are asked the first to answer are used, or all with a buffer."""

    clients: int
    """Registered."""
    cohort: int
    """Updates that a round waits for."""
    invited: int
    """Clients that are asked for them, `cohort` or more."""
    quorum: int
    """Updates without which a round has no result: the larger of the two floors."""
    rounds: int
    deadline: float
    """Seconds from asking to giving up."""
    attempts: int = 1
    """How often one round may be tried before the run ends."""
    load: Load
    """Bytes down and up of one client, and local epochs."""
    parameters: int
    item_bytes: int = 4
    """Bytes of one parameter in memory."""
    secure: bool = False
    """Whether masks are on: a round is void if more are lost than its roster bears."""
    alpha: float = 0.1
    delta: float = 0.1
    """Shares of members that may be corrupt and lost (protocol/graph.py)."""
    a_min: int = 1
    """Corrupt members to bear at least."""
    buffer: int = 0
    """Updates that make a version of an asynchronous run, in which `cohort` are always at work; 0:
    rounds are synchronous."""
    staleness: str = "constant"
    """What an update of an old model counts there (strategies/staleness.py)."""

    def __post_init__(self) -> None:
        """Compare the numbers with each other.

        Raises:
            SettingsError: They do not fit.
        """
        if not 1 <= self.cohort <= self.clients:
            expected = f"1 to {self.clients}, the number of clients"
            raise SettingsError("cohort", expected, self.cohort)
        if self.invited < self.cohort:
            raise SettingsError("invited", f"at least the cohort, {self.cohort}", self.invited)
        if not 1 <= self.quorum <= self.cohort:
            raise SettingsError("quorum", f"1 to {self.cohort}, the cohort", self.quorum)
        if not 0 <= self.buffer <= self.clients:
            expected = f"1 to {self.clients}, the number of clients"
            raise SettingsError("buffer", expected, self.buffer)
        for name in ("rounds", "attempts", "parameters", "item_bytes"):
            if getattr(self, name) < 1:
                raise SettingsError(name, "1 or more", getattr(self, name))
        if not 0.0 < self.deadline < math.inf:
            raise SettingsError("deadline", "finite seconds above 0", self.deadline)
