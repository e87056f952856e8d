"""What an opened sum says: the means that are recorded, and the warnings that follow.

Nothing here is about one client: the metrics are sums over the survivors, divided once.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import asdict
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from .ledger import RoundRecord
from ..strategies import counted

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .attempt import Attempt
    from ..protocol.codec import Codec
    from ..protocol.layout import MessageLayout, Sums

VERSION = "version."
"""Before a version of a device: how many of a round's roster are of it."""
VERSIONS, OTHERS = 8, "others"
"""Versions that are told by name, and what the others are called together."""
TEST = "test."
"""Before the name of each mean of the server's own test."""
SATURATION_LIMIT = 0.001
"""Share of clamped values in the sum above which a round warns."""
CAP_FACTOR = 16
"""A weight cap this many times the mean weight wastes the code's resolution."""


class Beside(NamedTuple):
    """What whoever hands an attempt's sum over says beside it; members say nothing."""

    figures: Mapping[str, float] = MappingProxyType({})
    """What stands in the entry beside what the aggregate says."""
    seconds: Mapping[str, float] = MappingProxyType({})
    """How long each part of the round took; empty for the phases of the round table."""
    extra: Mapping[str, Any] = MappingProxyType({})
    """What resume needs beside the model, as JSON can hold it."""
    traffic: tuple[int, int] | None = None
    """Bytes up and down; None for what went through the coordinator."""
    held: tuple[int, ...] = ()
    """Earlier rounds whose models are still trained from."""
    clients: Mapping[str, str] = MappingProxyType({})
    """What the event beside the entry says of single clients (client_times.py)."""
    exact: bool = False
    """Whether the sum has no code whose resolution a setting could waste."""


NOTHING = Beside()


def means(metrics: Mapping[str, float]) -> dict[str, float]:
    """Return `PREFIX.NAME` sums divided by `PREFIX.examples`; `correct` becomes `accuracy`."""
    found: dict[str, float] = {}
    for name, value in metrics.items():
        prefix, _, short = name.partition(".")
        examples = metrics.get(f"{prefix}.examples", 0)
        if short == "examples":
            found[name] = float(value)
        elif examples:
            found[f"{prefix}.{'accuracy' if short == 'correct' else short}"] = value / examples
    return found


def as_json(record: RoundRecord) -> dict[str, Any]:
    """Return a record as JSON can hold it: a metric that is not finite is null."""
    finite = {k: v if math.isfinite(v) else None for k, v in record.metrics.items()}
    return asdict(record) | {"metrics": finite}


def tests_of(records: Sequence[RoundRecord], number: int, model: str) -> dict[str, float]:
    """Return what the server's own test found of a round's model, by name; empty for no test."""
    return {
        name: value
        for record in records
        if (record.round, record.model, record.phase) == (number, model, "train")
        for name, value in record.metrics.items()
        if name.startswith(TEST) and math.isfinite(value)
    }


def score(record: Mapping[str, float]) -> tuple[float, float]:
    """Return by what the best round is found, larger is better.

    The server's own test comes first, by accuracy or else by loss; without one the clients' loss
    while they trained. Rounds that were tested stand above those that were not. What is not finite
    counts for nothing: nothing is larger than NaN, and its round would stay the best one.
    """
    finite = {name: value for name, value in record.items() if math.isfinite(value)}
    if "test.accuracy" in finite:
        return 2.0, finite["test.accuracy"]
    if "test.loss" in finite:
        return 1.0, -finite["test.loss"]
    return 0.0, -finite.get("train.loss", math.inf)


def recorded(sums: Sums, layout: MessageLayout, survivors: int) -> dict[str, float]:
    """Return everything that a round's ledger entry says about its aggregate."""
    values = sum(entry.size for entry in layout.manifest.averaged) if layout.places else 0
    record = means(sums.metrics) | counted.recorded(sums.metrics)
    if values:
        record["weight.mean"] = sums.weight / survivors
        record["saturation"] = sums.saturated / (values * survivors)
    return record


def versions(attempt: Attempt) -> dict[str, float]:
    """Return how many of a roster say that they are of which version; nothing of a single one.

    Devices that say none are counted under `?`; where nobody says one there is nothing to tell.
    Of many versions the most frequent are told, the others together: a word that a device chooses
    is not to grow the record.
    """
    here = attempt.plan.cohort
    found = Counter(here[node].version or "?" for node in attempt.roster if node in here)
    if found.keys() <= {"?"}:
        return {}
    frequent = sorted(found, key=lambda name: (-found[name], name))[:VERSIONS]
    told = {f"{VERSION}{name}": float(found[name]) for name in sorted(frequent)}
    rest = found.total() - sum(told.values())
    return told | ({f"{VERSION}{OTHERS}": rest} if rest else {})


def warnings(record: Mapping[str, float], codec: Codec, *, exact: bool = False) -> list[str]:
    """Return a line for each setting that this round shows to be badly chosen.

    Where the sum is `exact`, a weight cap can only be too low.
    """
    lines = []
    saturation, weight = record.get("saturation", 0.0), record.get("weight.mean", 0.0)
    if weight >= codec.weight_cap > 1:
        lines.append(
            f"every weight is at weight-cap {codec.weight_cap}, so all clients count the same; "
            "raise it if they have more examples"
        )
    if saturation > SATURATION_LIMIT:
        lines.append(
            f"{saturation:.2%} of the values were clamped to ±{codec.value_range}; "
            "raise value-range"
        )
    if weight and not exact and codec.weight_cap > CAP_FACTOR * weight:
        lines.append(
            f"weight-cap {codec.weight_cap} is more than {CAP_FACTOR} times the mean weight "
            f"{weight:.0f}; lower it"
        )
    return lines


def refused(codes: Sequence[str]) -> str:
    """Return why updates were refused, as words behind a cause; empty where none was."""
    said = ", ".join(f"{codes.count(code)} x {code}" for code in sorted(set(codes)))
    return f" (refused: {said})" if said else ""


def entry(
    attempt: Attempt,
    result: str,
    metrics: Mapping[str, float],
    model: bytes,
    traffic: tuple[int, int],
) -> RoundRecord:
    """Return the ledger's entry of an attempt that is over.

    Args:
        attempt: The attempt.
        result: One of ledger.OUTCOMES.
        metrics: Of the aggregate and of the server's own test.
        model: Digest of the model in force after it.
        traffic: Bytes up and down since the last entry.
    """
    terms, beside = attempt.plan.terms, attempt.beside
    seconds = beside.seconds or attempt.clock.seconds
    traffic = beside.traffic or traffic
    mix = versions(attempt) if (result, terms.phase) == ("finished", "train") else {}
    return RoundRecord(
        round=terms.round,
        attempt=terms.attempt,
        phase=terms.phase,
        outcome=result,
        cause=attempt.cause,
        roster=attempt.roster,
        survivors=attempt.survivors,
        model=model.hex(),
        metrics={**metrics, **mix, **beside.figures},
        seconds={name: round(value, 6) for name, value in seconds.items()},
        bytes_up=traffic[0],
        bytes_down=traffic[1],
    )
