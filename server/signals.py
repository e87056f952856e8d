"""Signals of a run's quality, of each round and of the whole run; docs/signals.md defines each.

Read from the ledger, so a run of devices, a simulated one and one that goes on serve alike, and
nothing is known here that `umbel runs show` does not print. Of one client that is who, when and
with which code (docs/privacy.md, section 3); every other number is a sum over the survivors, or
the server's own test. What a run does not record is left out, never guessed.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from .outcome import TEST, VERSION
from .settings import SIMULATION
from .signal_groups import groups, told
from .skew import Skew, counts, skew
from ..strategies.counted import BIN, CLIP

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from .client_times import Told
    from .ledger import Event, RoundRecord, RunRecord
    from .signal_groups import Group

EVAL = "eval."
"""Before what clients find of a model on their own data."""
AGES = "staleness."
"""Before an age, in models: how many updates were so old."""
GROUPS = {
    **{"late": "late", "lost": "lost", "expelled": "lost", "bad share": "lost"},
    **{"refused": "refused", "declined": "refused"},
}
"""Kinds of events that say what became of a node in a round, and how reports call it."""
REJECTED = ("refused", "declined", "expelled", "bad share")
"""Those in which somebody said no: the device, or the server that took it out by name."""
QUANTILES = (10, 50, 90)
"""Per cent of the rounds in which a signal was at most so large."""


@dataclass(frozen=True, slots=True)
class Signal:
    """What a signal of a round is."""

    unit: str
    """`share`, `s`, `B`, or empty for a plain number."""
    says: str


SIGNALS = {
    "participation": Signal("share", "of those asked whose updates are in the sum"),
    "rejections": Signal("share", "of those who answered who refused, or were refused"),
    "attempts": Signal("", "attempts that the round took"),
    "duration": Signal("s", "from asking the clients to closing the round"),
    "saturation": Signal("share", "of the values in the sum that were clamped"),
    "clipped": Signal("share", "of the updates that their devices' policies shortened"),
    "gap.loss": Signal("", "loss of the server's test minus loss in training"),
    "gap.accuracy": Signal("", "accuracy on the clients' own data minus that of the server's test"),
    "staleness.mean": Signal("", "models made between an update's start and its use, mean"),
    "staleness.p90": Signal("", "... of the oldest tenth, the youngest"),
    "versions": Signal("", "versions of umbel among the round's devices"),
    "bytes.up": Signal("B", "up, in all attempts at the round"),
    "bytes.down": Signal("B", "down, in all attempts at the round"),
}
"""By name, in the order of tables."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """The signals of a training round that finished and was not lost again."""

    number: int
    attempt: int
    asked: int
    """Clients that are known to have been asked."""
    used: int
    values: Mapping[str, float]
    """By names of `SIGNALS`, those that the record has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """Why clients were not used: one kind of event with one code."""

    kind: str
    code: str
    times: int
    clients: int
    first: int
    last: int
    """Rounds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Signals:
    """The signals of one run."""

    run: RunRecord
    rounds: Sequence[Round]
    attempts: Mapping[str, int]
    """Attempts at training rounds by outcome."""
    skew: Skew | None
    """Of the clients' uses; None where no round says who was used."""
    reasons: Sequence[Reason]
    versions: Mapping[str, int]
    """By version of umbel, how many devices the newest round that says it had."""
    histogram: tuple[int, Sequence[int]] | None
    """Round whose model it is, and how many clients have its accuracy in each part of [0, 1], by
    the newest round that counts them; None where none does."""
    groups: Sequence[Group] = ()
    """Sites of a run of devices, cohorts of a simulated one; none where there is but one."""

    def curve(self, name: str) -> list[float | None]:
        """Return a signal in every round; None where it is not recorded."""
        return [found.values.get(name) for found in self.rounds]

    def summary(self) -> dict[str, dict[str, float]]:
        """Return `last` and `p10`, `p50`, `p90` over the rounds of each signal that is recorded."""
        found = {}
        for name in SIGNALS:
            values = [value for value in self.curve(name) if value is not None]
            if values:
                levels = np.percentile(values, QUANTILES)
                quantiles = {f"p{q}": float(v) for q, v in zip(QUANTILES, levels, strict=True)}
                found[name] = {"rounds": len(values), "last": values[-1], **quantiles}
        return found

    @property
    def retried(self) -> float:
        """Share of the attempts at training rounds that did not finish."""
        whole = sum(self.attempts.values())
        return 1 - self.attempts.get("finished", 0) / whole if whole else 0.0


def signals(run: RunRecord, records: Sequence[RoundRecord], events: Sequence[Event]) -> Signals:
    """Return the signals of what a ledger says."""
    tried = [record for record in records if record.phase == "train"]
    kept, own = finished(tried), on_clients(records)
    named, said = _nodes(events), told(events)
    of_round: dict[int, list[RoundRecord]] = defaultdict(list)
    for record in tried:
        of_round[record.round].append(record)
    rounds = [
        _round(
            record,
            of_round[record.round],
            named.get((record.round, record.attempt), {}),
            said.get((record.round, record.attempt)),
            own.get(record.round, {}),
        )
        for record in kept
    ]
    uses: Counter[str] = Counter()
    for record in kept:
        uses.update(record.survivors)
    return Signals(
        run=run,
        rounds=rounds,
        attempts=dict(sorted(Counter(record.outcome for record in tried).items())),
        skew=skew(counts(uses, registered(run, len(uses)))) if uses else None,
        reasons=reasons(events),
        versions=next((found for r in reversed(kept) if (found := mix(r.metrics))), {}),
        histogram=_histogram(records),
        groups=groups(run, kept, said),
    )


def finished(records: Iterable[RoundRecord]) -> list[RoundRecord]:
    """Return the training rounds that finished and were not lost again, by number."""
    found: dict[int, RoundRecord] = {}
    for record in records:
        if record.phase == "train" and record.outcome == "finished":
            found[record.round] = record
        elif record.phase == "train" and record.outcome == "lost":
            found.pop(record.round, None)
    return [found[number] for number in sorted(found)]


def registered(run: RunRecord, least: int = 0) -> int | None:
    """Return how many clients a run has, if it says so, and says no fewer than were seen."""
    config: Any = run.config
    for keys in (("clients",), ("started", "settings", "clients")):
        found = config
        for key in keys:
            found = found.get(key) if hasattr(found, "get") else None
        if type(found) is int and found >= max(least, 1):
            return found
    return None


def duration(record: RoundRecord) -> float:
    """Return how long an attempt took: by the virtual clock where there is one, else measured.

    Both begin when the clients are asked, and end when the round is closed. Seconds that are no
    duration count for nothing.
    """
    begin, end = (record.metrics.get(f"clock.{name}") for name in ("opened", "closed"))
    if begin is not None and end is not None and math.isfinite(end - begin):
        return end - begin
    return sum(spent for spent in record.seconds.values() if 0 <= spent < math.inf)


def simulated(run: RunRecord) -> bool:
    """Whether the clients of a run were numbers."""
    return SIMULATION in run.config


def on_clients(records: Iterable[RoundRecord]) -> dict[int, dict[str, float]]:
    """Return by round what clients found of its model; see `of_models`."""
    return of_models(records, EVAL)


def of_models(records: Iterable[RoundRecord], beginning: str) -> dict[int, dict[str, float]]:
    """Return by the round whose model it is what clients found of it, under names that begin so.

    In a training round they test the model that the round begins with: that of the round before
    it which was not lost, or the initial one, 0.
    """
    found: dict[int, dict[str, float]] = {}
    standing = [0]
    for record in records:
        if (record.phase, record.outcome) == ("train", "lost"):
            standing = [0, *(number for number in standing if number not in {0, record.round})]
        if record.outcome != "finished":
            continue
        means = {
            name: value for name, value in record.metrics.items() if name.startswith(beginning)
        }
        if means:
            found[standing[-1]] = means
        if record.phase == "train":
            standing.append(record.round)
    return found


def ages(metrics: Mapping[str, float]) -> dict[int, int]:
    """Return how many updates of a round were so many versions old, by age, ascending."""
    found = {
        int(name.removeprefix(AGES)): int(count)
        for name, count in metrics.items()
        if name.startswith(AGES)
        and name.removeprefix(AGES).isdecimal()
        and math.isfinite(count)
        and count > 0
    }
    return dict(sorted(found.items()))


def bins(metrics: Mapping[str, float]) -> list[int]:
    """Return how many clients are in each bin of a round's histogram; nothing without one."""
    found = list[int]()
    while math.isfinite(value := metrics.get(f"{BIN}{len(found)}", math.nan)):
        found.append(int(value))
    return found


def _histogram(records: Iterable[RoundRecord]) -> tuple[int, Sequence[int]] | None:
    for number, metrics in reversed(of_models(records, BIN).items()):
        return number, bins(metrics)
    return None


def mix(metrics: Mapping[str, float]) -> dict[str, int]:
    """Return how many of a round's devices say that they are of which version; `?` says none."""
    return {
        name.removeprefix(VERSION): int(count)
        for name, count in sorted(metrics.items())
        if name.startswith(VERSION) and 0 <= count < math.inf
    }


def reasons(events: Iterable[Event]) -> list[Reason]:
    """Return why clients were not used, in any attempt; what happened most often first."""
    found: dict[tuple[str, str], list[Event]] = defaultdict(list)
    for event in events:
        if event.node and (event.kind in GROUPS or event.kind == "left out"):
            found[event.kind, event.code].append(event)
    return [
        Reason(
            kind=kind,
            code=code,
            times=len(those),
            clients=len({event.node for event in those}),
            first=min(event.round for event in those),
            last=max(event.round for event in those),
        )
        for (kind, code), those in sorted(found.items(), key=lambda item: (-len(item[1]), item[0]))
    ]


def _nodes(events: Iterable[Event]) -> dict[tuple[int, int], dict[str, set[str]]]:
    """Return by round and attempt the nodes that events say something of, by kind."""
    found: dict[tuple[int, int], dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for event in events:
        if event.node and event.kind in GROUPS:
            found[event.round, event.attempt][event.kind].add(event.node)
    return found


def _round(
    record: RoundRecord,
    attempts: Sequence[RoundRecord],
    named: Mapping[str, set[str]],
    said: Told | None,
    own: Mapping[str, float],
) -> Round:
    """Return one round.

    Args:
        record: Of the attempt that finished.
        attempts: Of all attempts at the round.
        named: Nodes that events name, by kind.
        said: What is known of all clients of the attempt that finished.
        own: What clients found of the round's model.
    """
    metrics, used = record.metrics, len(record.survivors)
    gone = set[str]().union(*named.values())
    said_no = set[str]().union(*(nodes for kind, nodes in named.items() if kind in REJECTED))
    asked = _whole(metrics.get("clients.invited")) or (sum(said.asked) if said is not None else 0)
    asked = asked or len(record.roster) + len(gone.difference(record.roster))
    refused = _whole(metrics.get("clients.refused")) or len(said_no)
    values = {
        "participation": used / asked if asked else None,
        "rejections": refused / (refused + used) if refused + used else None,
        "attempts": float(len(attempts)),
        "duration": duration(record),
        "saturation": metrics.get("saturation"),
        "clipped": metrics[CLIP] / used if CLIP in metrics and used else None,
        "gap.loss": _minus(metrics.get(f"{TEST}loss"), metrics.get("train.loss")),
        "gap.accuracy": _minus(own.get(f"{EVAL}accuracy"), metrics.get(f"{TEST}accuracy")),
        **_staleness(ages(metrics)),
        "versions": float(len(mix(metrics))) or None,
        "bytes.up": float(sum(each.bytes_up for each in attempts)),
        "bytes.down": float(sum(each.bytes_down for each in attempts)),
    }
    return Round(
        number=record.round,
        attempt=record.attempt,
        asked=asked,
        used=used,
        values={k: v for k, v in values.items() if v is not None and math.isfinite(v)},
    )


def _whole(value: float | None) -> int:
    return int(value) if value is not None and 0 <= value < math.inf else 0


def _minus(value: float | None, other: float | None) -> float | None:
    return None if value is None or other is None else value - other


def staleness(counted: Mapping[int, int]) -> tuple[float, int, int] | None:
    """Return mean, 90th percentile (the smallest age that covers it) and most of ages' counts."""
    whole = sum(counted.values())
    if not whole:
        return None
    seen = 0
    for age in sorted(counted):
        seen += counted[age]
        if 10 * seen >= 9 * whole:
            mean = sum(each * count for each, count in counted.items()) / whole
            return mean, age, max(counted)
    return None


def _staleness(counted: Mapping[int, int]) -> dict[str, float]:
    found = staleness(counted)
    return {} if found is None else {"staleness.mean": found[0], "staleness.p90": float(found[1])}
