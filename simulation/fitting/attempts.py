"""One attempt as a ledger has it: who was asked, when each answered, what became of the others.

    in a session      asked = ready in time + slow (not waited for) + crashed + lost
    crashed           its session ended before it was ready
    lost              it was late, refused, was expelled, or its session ended after that
    simulated         as the clock says; who was offline is neither asked nor lost

A ledger of an earlier release has no such attempts.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING

from ...server.client_times import KIND, Told
from ...server.deadlines import TRAINING
from ...server.signals import REJECTED

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from ...server.ledger import Event, RoundRecord

HOUR = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One attempt at a training round."""

    record: RoundRecord
    told: Told
    at: float
    """Seconds of its clock when it was asked: civil time, or virtual."""
    simulated: bool
    crashed: frozenset[str] = field(default_factory=frozenset)
    lost: frozenset[str] = field(default_factory=frozenset)
    refused: int = 0
    """Updates that somebody said no to."""
    silent: bool = False
    """Whether the server waited for somebody in vain."""

    @property
    def hour(self) -> int:
        """Return the hour of its clock."""
        return int(self.at // HOUR)

    @property
    def seconds(self) -> float:
        """Return how long it took."""
        if self.simulated:
            metrics = self.record.metrics
            return metrics.get("clock.closed", 0.0) - metrics.get("clock.opened", 0.0)
        return sum(self.record.seconds.values())

    def counts(self, home: Mapping[str, str]) -> dict[str, Counter[str]]:
        """Return by name how many were `asked`, `crashed`, `lost`.

        Args:
            home: The name of each node, for those whose fate stands in an event.
        """
        told = self.told
        found = {
            name: Counter(asked=asked) for name, asked in zip(told.names, told.asked, strict=True)
        }
        if told.fates:
            for place, name in enumerate(told.names):
                fates = {fate: counts[place] for fate, counts in told.fates.items()}
                found[name] = Counter(
                    asked=sum(fates.values()) - fates.get("offline", 0),
                    crashed=fates.get("crashed", 0),
                    lost=fates.get("lost", 0),
                )
            return found
        unknown = set(told.slow) - self.lost  # not waited for: nobody knows whether it would come
        for fate, nodes, step in (
            ("crashed", self.crashed, 1), ("lost", self.lost, 1), ("asked", unknown, -1),
        ):  # fmt: skip
            for name in (home.get(node, "") for node in nodes):
                if name in found:
                    found[name][fate] += step
        return found


def attempts(records: Iterable[RoundRecord], events: Iterable[Event]) -> Iterator[Attempt]:
    """Yield the attempts at training rounds that have an event of their clients.

    Raises:
        ValueError, TypeError: An event was not written by a run.
    """
    known = {(r.round, r.attempt): r for r in records if r.phase == "train"}
    before: list[Event] = []
    for event in events:
        if event.node:
            before.append(event)
        elif event.kind == KIND:
            record = known.get((event.round, event.attempt))
            if event.code == "train" and record is not None:
                yield _attempt(record, event, before)
            before = []


def _attempt(record: RoundRecord, event: Event, before: list[Event]) -> Attempt:
    told, simulated = Told.of(event), "clock.closed" in record.metrics
    # The event is written when the attempt is over; it was asked before that.
    at = record.metrics.get("clock.opened", 0.0)
    if not simulated:
        over = datetime.fromisoformat(event.at).timestamp() if event.at else 0.0
        at = max(0.0, over - sum(record.seconds.values()))
    crashed = {e.node for e in before if (e.kind, e.code) == ("lost", TRAINING)}
    lost = {e.node for e in before if e.kind in {"late", "lost", *REJECTED}} - crashed
    return Attempt(
        record=record,
        told=told,
        at=at,
        simulated=simulated,
        crashed=frozenset(crashed),
        lost=frozenset(lost),
        refused=sum(e.kind in REJECTED for e in before),
        silent=bool(crashed or lost),
    )
