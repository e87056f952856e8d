"""Whether a run's last training round still waits for the clients that the run has lost.

A round never waits for a dead node, and most runs are long enough for one to come back. A short
run may be over before that: its last training round gives them a bounded time, so that what they
know is in the last model. Time is passed in.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection


class Rejoin:
    """Asked by the coordinator before each round."""

    def __init__(self, rounds: int, seconds: float) -> None:
        """Wait at most `seconds` before training round number `rounds`."""
        self._rounds, self._seconds = rounds, seconds
        self._seen: set[str] = set()
        self._since: float | None = None
        self._over = False

    def __call__(self, number: int, nodes: Collection[str], now: float) -> bool:
        """Tell whether round `number` may start with these nodes."""
        self._seen.update(nodes)
        if self._over or number < self._rounds:
            return True
        self._since = now if self._since is None else self._since
        self._over = self._seen <= set(nodes) or now - self._since >= self._seconds
        return self._over
