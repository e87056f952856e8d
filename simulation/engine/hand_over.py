"""What a run's tier hands to the coordinator, and why: the sum of a cohort, or a row a client.

    rows over sessions       masks, a device's own clip, losses at a message boundary, or the
                             device's policy: what only a device's session does
    rows to the coordinator  a robust rule: it compares single updates
    sum                      whatever needs no single update

A sum is the fastest and takes memory for one model; nothing of the run's result depends on rows
but the rounding: over sessions an update goes through the run's codec, in a sum through fixed
point with more bits (work.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ...protocol.errors import SettingsError

if TYPE_CHECKING:
    from ...server.settings import RunSettings

AUTO, SUM, ROWS = "auto", "sum", "rows"
WAYS = (AUTO, SUM, ROWS)


class HandOver(NamedTuple):
    """How updates reach the coordinator."""

    kind: str
    """`SUM` or `ROWS`."""
    sessions: bool
    """Whether each client has a session of the real protocol."""
    why: str
    """For the log."""

    def __str__(self) -> str:
        """Return the words of the log line."""
        over = " over sessions" if self.sessions else ""
        return f"hand-over {self.kind}{over}: {self.why}"


def hand_over(
    run: RunSettings, wanted: str = AUTO, *, drops: bool = False, policy: bool = False
) -> HandOver:
    """Return how a run's updates are handed over.

    Args:
        run: The run.
        wanted: One of `WAYS`.
        drops: Whether clients are to be lost at message boundaries.
        policy: Whether every client has a policy that the caller gave.

    Raises:
        SettingsError: No such way, or a sum where the run needs rows; the reason is named.
    """
    if wanted not in WAYS:
        raise SettingsError("hand-over", f"one of {', '.join(WAYS)}", wanted)
    needs = _needs(run, drops=drops, policy=policy)
    if needs is not None and wanted == SUM:
        raise SettingsError("hand-over", f"rows, because {needs.why}", SUM, "leave it out")
    if needs is not None:
        return needs
    if wanted == ROWS:
        return HandOver(ROWS, sessions=True, why="asked for")
    return HandOver(SUM, sessions=False, why=f"{run.rule.name} needs no single update")


def _needs(run: RunSettings, *, drops: bool, policy: bool) -> HandOver | None:
    """Return the hand-over that the run needs, if a sum will not do."""
    if run.scheme == "A":
        return HandOver(ROWS, sessions=True, why="secure aggregation masks each update")
    if policy:
        return HandOver(ROWS, sessions=True, why="a device's policy checks and clips its own")
    if drops:
        return HandOver(ROWS, sessions=True, why="clients are lost between messages")
    if run.rule.robust is not None:
        return HandOver(ROWS, sessions=False, why=f"{run.rule.robust.rule} compares single updates")
    return None
