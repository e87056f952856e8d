"""When a session is to make room for its node's next one, between two rounds.

A device's session is bound to the certificate of its ticket, and to the lease of its invitation.
It ends by itself when either is over; a round that has just begun would have lost it, and with all
devices invited at one time it would have lost all of them. So the server is first:

| a session | is let go before the round |
|---|---|
| whose certificate ends before that round may, where its node has another | that cannot use it |
| that began so long ago that its lease may end in that round | that its end would meet |

A node that is let go is invited anew at once, with the ticket of the certificate that the registry
has now. The round waits for it, `BACK_S` at the most. Time is passed in.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, NamedTuple

from .deadlines import LEASE_S

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from datetime import datetime

    from .invitation import Joined
    from .registry import Node

BACK_S = 30.0
"""How long a round waits for a node that was let go, to be invited anew."""
AHEAD_S = 60.0
"""Seconds that a certificate, or a lease, must have left beyond the deadline of a round."""


class _Gone(NamedTuple):
    session: Joined
    since: float


class Handover:
    """Asked by the coordinator before each round."""

    def __init__(
        self,
        deadline: float,
        *,
        registered: Callable[[], Mapping[str, Node]],
        let_go: Callable[[str], None],
        wall: Callable[[], datetime],
        note: Callable[[str], None],
    ) -> None:
        """Know of no session yet.

        Args:
            deadline: Seconds that a round may take.
            registered: Returns the nodes of the registry as it is now, by id.
            let_go: Says goodbye to a node.
            wall: Civil time.
            note: Takes a line for the log.
        """
        self._deadline = deadline
        self._registered, self._let_go = registered, let_go
        self._wall, self._note = wall, note
        self._began: dict[str, _Gone] = {}
        """Since when each session has been seen."""
        self._gone: dict[str, _Gone] = {}

    def __call__(self, nodes: Mapping[str, Joined], now: float) -> bool:
        """Tell whether a round may start with these sessions."""
        self._began = {
            node: known
            if (known := self._began.get(node)) is not None and known.session is session
            else _Gone(session, now)
            for node, session in nodes.items()
        }
        registered = self._registered()
        for node, why in self._due(nodes, registered, now).items():
            name = registered[node].name if node in registered else node[:8]
            self._note(f"{name}: {why}; it is invited anew before the next round")
            self._gone[node] = _Gone(nodes[node], now)
            self._let_go(node)
        self._gone = {
            node: gone
            for node, gone in self._gone.items()
            if nodes.get(node, gone.session) is gone.session and now - gone.since < BACK_S
        }
        return not self._gone

    def _due(
        self, nodes: Mapping[str, Joined], registered: Mapping[str, Node], now: float
    ) -> dict[str, str]:
        """Return the nodes that are to be let go now, each with the cause."""
        until = self._wall() + timedelta(seconds=self._deadline + AHEAD_S)
        # A session may have begun a round before it was seen here.
        oldest = max(LEASE_S - 2 * self._deadline - AHEAD_S, LEASE_S / 4)
        found = {}
        for node, session in nodes.items():
            if node in self._gone:
                continue
            member, known = session.member, registered.get(node)
            newer = known is not None and known.signing_fingerprint != member.fingerprint.hex()
            if newer and member.not_after < until:
                found[node] = "its certificate ends soon, and it has another one"
            elif now - self._began[node].since > oldest:
                found[node] = "its session is as old as its lease allows"
        return found
