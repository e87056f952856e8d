"""What a page reads of a run: its ledger and its directory, and nothing else.

A ledger of any run serves: of `umbel simulate`, `umbel up`, `umbel server up`. All names that a
page looks for stand in `READS`; what a run does not record is None here, and its picture is left
out with a line. `Figures.points` has one point for each training round that finished and was not
lost again; times and bytes add up what every attempt took, those that failed too.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ...server import outcome, reviews
from ...server.planned_rounds import PLAN, plan_of
from ...server.settings import COMPUTED_BY, FLOWER_RUN
from ...server.signals import AGES, EVAL, GROUPS, finished, on_clients, registered, signals

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ...server.ledger import Event, RoundRecord, RunRecord
    from ...server.reviews import Item
    from ...server.run_directory import RunDirectory
    from ...server.run_plan import RunPlan
    from ...server.signals import Signals

READS = {
    "the server's test": outcome.TEST,
    "on the clients' data": EVAL,
    "while training": "train.",
    "virtual time": "clock.closed",
    "work of the devices": "clock.work",
    "what became of clients": "clients.",
    "spread of accuracy": "clients.accuracy.",
    "spread of loss": "clients.loss.",
    "staleness": AGES,
    "tier": "simulation.tier",
    "tier, why": "simulation.reason",
    "hand-over": "simulation.hand-over",
    "versions": COMPUTED_BY,
    "plan": PLAN,
}
"""Every name that a page looks for: metrics of a round's entry, then keys of a run's record, with
dots for tables in tables. What ends in a point begins a family: `clients.accuracy.p10`,
`staleness.3`. Parts of a round's time are shown under the names that they have."""
OUTCOMES = ("used", "refused", "late", "lost", "offline", "crashed")
"""What can become of a client in a round; `clients.late` and its like count them."""
KINDS = {
    "accuracy": re.compile(r"(?:.*[._-])?acc(?:uracy)?"),
    "loss": re.compile(r"(?:.*[._-])?loss"),
}
"""What a metric measures, by the name that an app gave it: `accuracy`, `eval_acc`, `train_loss`."""
_WHOSE = {
    READS["the server's test"]: "server's test",
    READS["on the clients' data"]: "on the clients' data",
    READS["while training"]: "while training",
}
PARTS = {
    **{"inviting": "training and keys of the cohort", "sharing": "shares", "summing": "uploads"},
    **{"voting": "votes", "unmasking": "released shares", "summed": ""},
    **{"decide": "the clock", "train": "the tier", "aggregate": "the server step"},
    **{"evaluate": "the server's test", "idle": "the rest"},
    **{"evaluation": "the clients' test of the model"},
}
"""Parts of a round in their order, and what each waits for or does."""
PASSING = frozenset({"initial", "tested", "memory", "clients", "decision", "went on"})
"""Kinds that are no trouble."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A training round that finished."""

    number: int
    seconds: float
    """Measured until it ended, in all attempts at all rounds."""
    moved: int
    """Bytes up and down until then."""
    virtual: float | None
    """Virtual seconds until then."""
    metrics: Mapping[str, float] = field(repr=False)
    own: Mapping[str, float]
    """Seconds of each part of this round."""
    outcomes: Mapping[str, int]
    """How many clients, by `OUTCOMES`."""
    model: str
    """Digest, hex."""


@dataclass(frozen=True, kw_only=True)
class Figures:
    """One run."""

    run: RunRecord
    points: Sequence[Point]
    records: Sequence[RoundRecord]
    events: Sequence[Event]
    used: Counter[str]
    """By node, how many of the `points` it is in."""
    on_clients: Mapping[int, Mapping[str, float]]
    """By the round whose model it is, what the clients found of it on their own data."""
    head: tuple[int, str] = (0, "")
    """Rows of the ledger, and the hash of the last."""
    kept: Sequence[int] = ()
    """Rounds whose models are on the disk."""
    items: Sequence[Item] = ()
    """What the run asked people to look at, and what was decided."""

    @classmethod
    def of(cls, directory: RunDirectory) -> Figures:
        """Read a run, and check the chain of its ledger.

        Raises:
            StateError: The ledger is damaged.
        """
        ledger = directory.ledger
        ledger.verify()
        made = cls.made(ledger.run(), ledger.rounds(), ledger.events())
        kept = sorted(directory.committed().intersection(directory.kept()))
        return replace(made, head=ledger.head(), kept=kept, items=reviews.items(ledger))

    @classmethod
    def made(
        cls, run: RunRecord, records: Sequence[RoundRecord], events: Sequence[Event]
    ) -> Figures:
        """Return the figures of what a ledger says."""
        return cls(
            run=run,
            points=tuple(_points(records, events)),
            records=records,
            events=events,
            used=_used(records),
            on_clients=on_clients(records),
        )

    @property
    def wanted(self) -> int | None:
        """How many training rounds the run was to have, if it says so."""
        found = self.run.config.get("rounds")
        return found if type(found) is int else None

    @cached_property
    def plan(self) -> RunPlan | None:
        """The plan that the run was started with.

        Raises:
            SettingsError: The record has one that no run keeps.
        """
        return plan_of(self.run)

    @cached_property
    def signals(self) -> Signals:
        """Its signals, of each round and of the whole run."""
        return signals(self.run, self.records, self.events)

    @property
    def simulated(self) -> bool:
        """Whether no device took part."""
        return FLOWER_RUN not in self.run.config

    @property
    def registered(self) -> int | None:
        """How many clients the run has, if it says so."""
        return registered(self.run, len(self.used))

    def recorded(self, path: str) -> Any:
        """Return what the run's record has under a key, tables joined by dots; None for nothing."""
        found: Any = self.run.config
        for key in path.split("."):
            found = found.get(key) if isinstance(found, Mapping) else None
        return found

    def curve(self, name: str) -> list[float | None]:
        """Return a metric at every point, None where a round has none."""
        if name.startswith(READS["on the clients' data"]):
            return [self.on_clients.get(point.number, {}).get(name) for point in self.points]
        return [point.metrics.get(name) for point in self.points]

    @cached_property
    def metrics(self) -> frozenset[str]:
        """The names of all metrics."""
        tables = [point.metrics for point in self.points] + list(self.on_clients.values())
        return frozenset(name for table in tables for name in table)

    def of_kind(self, kind: str) -> list[str]:
        """Return the metrics of a kind of `KINDS`: those of the server's test first."""
        found = [
            (list(_WHOSE).index(beginning), len(name), name)
            for name in self.metrics
            for beginning in _WHOSE
            if name.startswith(beginning) and KINDS[kind].fullmatch(named(name)[0])
        ]
        return [name for *_, name in sorted(found)]

    def family(self, beginning: str) -> list[str]:
        """Return the metrics whose names begin so, sorted as numbers where they are."""
        found = (name for name in self.metrics if name.startswith(beginning))
        return sorted(found, key=lambda name: (len(name), name))

    def said(self, key: str) -> str | None:
        """Return what the run's record says under a key of `READS`, as text."""
        value = self.recorded(READS[key])
        return None if value is None or isinstance(value, Mapping) else str(value)


def _points(records: Iterable[RoundRecord], events: Iterable[Event]) -> Iterable[Point]:
    troubles: dict[tuple[int, int], dict[str, set[str]]] = {}
    for event in events:
        group = GROUPS.get(event.kind)
        if group and event.node:
            found = troubles.setdefault((event.round, event.attempt), {})
            found.setdefault(group, set()).add(event.node)
    points: dict[int, Point] = {}
    seconds, moved = 0.0, 0
    for record in records:
        seconds += sum(_lasted(record).values())
        moved += record.bytes_up + record.bytes_down
        if record.phase != "train":
            tested = points.get(record.round)
            if tested is not None and record.outcome == "finished":
                own = {**tested.own, "evaluation": sum(_lasted(record).values())}
                points[record.round] = replace(tested, own=own)
            continue
        if record.outcome == "lost":
            points.pop(record.round, None)
        if record.outcome == "finished":
            trouble = troubles.get((record.round, record.attempt), {})
            points[record.round] = _point(record, trouble, seconds, moved)
    return [points[number] for number in sorted(points)]


def _point(
    record: RoundRecord, trouble: Mapping[str, set[str]], seconds: float, moved: int
) -> Point:
    counted = {"used": len(record.survivors), **{k: len(v) for k, v in trouble.items()}}
    for group in OUTCOMES[bool(record.survivors) :]:
        value = record.metrics.get(f"{READS['what became of clients']}{group}")
        if value is not None and math.isfinite(value):
            counted[group] = int(value)
    virtual = record.metrics.get(READS["virtual time"])
    return Point(
        number=record.round,
        seconds=seconds,
        moved=moved,
        virtual=virtual if virtual is not None and math.isfinite(virtual) else None,
        metrics=record.metrics,
        own=_lasted(record),
        outcomes=counted,
        model=record.model,
    )


def _lasted(record: RoundRecord) -> dict[str, float]:
    """Return the seconds of a round's parts, those that are a duration."""
    return {part: spent for part, spent in record.seconds.items() if 0 <= spent < math.inf}


def _used(records: Iterable[RoundRecord]) -> Counter[str]:
    found: Counter[str] = Counter()
    for record in finished(records):
        found.update(record.survivors)
    return found


def finite(values: Iterable[float | None]) -> list[float]:
    """Return the values that are there and finite."""
    return [value for value in values if value is not None and math.isfinite(value)]


def best(figures: Figures, name: str, *, larger: bool = True) -> tuple[int, float]:
    """Return round and value of the best of a metric, which has one; the first of equals."""
    sign = 1 if larger else -1
    found = [
        (sign * value, -point.number)
        for point, value in zip(figures.points, figures.curve(name), strict=True)
        if value is not None and math.isfinite(value)
    ]
    value, number = max(found)
    return -number, sign * value


def settings(record: RunRecord) -> dict[str, str]:
    """Return a run's settings flat, `params.alpha` and its like, sorted by name."""
    flat: dict[str, str] = {}

    def put(name: str, value: Any) -> None:
        if isinstance(value, Mapping):
            for key, inner in value.items():
                put(f"{name}.{key}" if name else str(key), inner)
        elif (
            isinstance(value, list)
            and value
            and not any(isinstance(v, list | Mapping) for v in value)
        ):
            flat[name] = ", ".join(map(str, value))
        else:
            flat[name] = "none" if value is None else str(value)

    put("", record.config)
    return dict(sorted(flat.items()))


def named(metric: str) -> tuple[str, str]:
    """Return how a page calls a metric, and whose it is: `test.loss` is loss, the server's test."""
    for beginning, whose in _WHOSE.items():
        if metric.startswith(beginning):
            return metric.removeprefix(beginning), whose
    return metric, ""
