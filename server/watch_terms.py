"""The words of watching a run: what is expected of it, what a round was, what left the expected.

Pure data, for the rules (watch.py) and for whoever brings them a run's rounds (watching.py).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .invitation import Joined
    from .ledger import Event, RoundRecord

SIGNALS = (
    *("duration", "participation", "site", "rejections"),
    *("accuracy", "quorum", "retries", "bytes"),
)
WITHOUT_PLAN = ("site", "rejections", "accuracy", "retries")
"""Signals whose rules need no plan."""
DROP = 0.05
"""How far below its best an accuracy may fall where no plan says it."""


class Band(NamedTuple):
    """An interval that a plan gives."""

    low: float
    """p5."""
    high: float
    """p95."""
    low3: float
    """p0.05: beyond it a round is far outside."""
    high3: float
    """p99.95."""


class Group(NamedTuple):
    """A site's or a cohort's part in a round."""

    asked: int
    used: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Expected:
    """What is expected of a run; of what a plan would say, nothing without one."""

    duration: Band | None = None
    """Seconds of a round."""
    hourly: float | None = None
    """Where rounds of one hour have something in common: which part of an hour a round takes."""
    participation: Mapping[str, Band] = field(default_factory=dict)
    """By cohort its share of a round's updates."""
    rejections: Band | None = None
    """Share of the updates that are refused."""
    drop: float = DROP
    miss: float | None = None
    """Probability that a round is below quorum."""
    losses: Mapping[str, float] = field(default_factory=dict)
    """By site the share of those asked whose updates are not used."""
    traffic: float | None = None
    """Mean bytes of a round, both ways."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Seen:
    """What a round was, as far as its server knows: sums, names, codes, bytes and times."""

    record: RoundRecord
    seconds: float | None = None
    """How long it took; None where no time passes."""
    parts: Mapping[str, float] = field(default_factory=dict)
    """Seconds of its parts."""
    sites: Mapping[str, Group] = field(default_factory=dict)
    cohorts: Mapping[str, Group] = field(default_factory=dict)
    refused: Mapping[str, int] = field(default_factory=dict)
    """How many updates were refused, by code."""
    refused_at: Mapping[str, int] = field(default_factory=dict)
    """The same, by site."""


class Finding(NamedTuple):
    """Something that has left what is expected of it."""

    signal: str
    round: int
    value: float
    low: float
    high: float
    cause: str


class Go(StrEnum):
    """Whether the next attempt may begin."""

    ON = "on"
    WAIT = "wait"
    END = "end"


class Verdict(NamedTuple):
    """Whether the next attempt may begin; for which items it waits, or who ended the run."""

    go: Go
    said: str = ""


class Unwatched:
    """The watch of a run that nobody watches; that of another one is in watching.py."""

    def noted(self, kind: str, node: str, code: str) -> None:
        """Take an event of the open attempt: kind, node, code."""

    def closed(
        self, record: RoundRecord, beside: Event | None, here: Mapping[str, Joined]
    ) -> tuple[Event, ...]:
        """Take an attempt that is over, and who is here; return the items that it raises."""
        del record, beside, here
        return ()

    def tested(self, number: int, metrics: Mapping[str, float]) -> tuple[Event, ...]:
        """Take the test of a round's model, after the round; return the items that it raises."""
        del number, metrics
        return ()

    def verdict(self, now: float) -> Verdict:
        """Return whether the next attempt may begin."""
        del now
        return _ON

    def paused(self, number: int) -> None:
        """Say that the run waits before a round."""


_ON = Verdict(Go.ON)
