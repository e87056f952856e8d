"""When a run's first round begins: everybody is here, the time is over, or nobody is left to come.

    here >= clients                            the round begins
    taken up, after AGAIN_S, those can go on   it begins with those
    after START_S, here >= the fewest needed   it begins with those
    after START_S, here < that                 the run ends, unless others are busy in another run
    here and who may still come < that         the run ends at once

A node that answered `TWICE` without a session, as one whose ClientApp cannot be imported does, is
not counted on any more; it is asked again all the same. The cause comes first: which node, which
code. What its user code raised stays on the device, in its own log.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from .deadlines import LEASE_S
from ..protocol.errors import TooFewMembers

if TYPE_CHECKING:
    from collections.abc import Mapping

START_S = 120.0
"""How long a run waits for its nodes before it starts with those that came."""
AGAIN_S = 15.0
"""How long a run that is taken up waits for all of its nodes, if those that came can go on."""
TWICE = 2


class Coming(Protocol):
    """Who was asked to come (flower_invitations.py)."""

    def busy(self) -> Mapping[str, str]:
        """Return who has a session of another run, with that run."""

    def possible(self) -> int:
        """Return how many registered nodes have a session or may still get one."""

    def why(self) -> str:
        """Return what the others answered last, each by its name."""


class Gathering:
    """The wait before the first round."""

    def __init__(self, clients: int, least: int, began: float) -> None:
        """Wait from `began` on for `clients` nodes; fewer than `least` are no cohort."""
        self._clients, self._least, self._began = clients, least, began
        self._since, self._until = began, began + LEASE_S

    def look(
        self, here: int, coming: Coming, now: float, *, can_go_on: bool = False
    ) -> bool | TooFewMembers:
        """Return whether the round may begin, or why it never will.

        Args:
            here: How many nodes have a session.
            coming: Who was asked.
            now: Monotonic seconds.
            can_go_on: Whether the run is taken up, and those who are here are enough for it.
        """
        if here < self._least and now < self._until and coming.busy():
            self._since = now  # the other run's sessions end, at the latest with their lease
            return False
        late = now - self._since > START_S
        soon = can_go_on and now - self._began > AGAIN_S
        if here >= self._clients or soon or (late and here >= self._least):
            return True
        if late:
            return self._too_few(f"{here} nodes joined in {START_S:.0f} s", coming)
        if (possible := coming.possible()) < self._least:
            return self._too_few(f"{possible} of the nodes could still join", coming)
        return False

    def _too_few(self, what: str, coming: Coming) -> TooFewMembers:
        why = coming.why()
        said = f"{what}, {self._least} are needed"
        return TooFewMembers(f"{why}: {said}" if why else said)
