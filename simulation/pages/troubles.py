"""What went wrong in a run: a strip of events over the rounds, reasons, attempts that failed."""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING

from .bars import MOST, strip
from .blocks import about, figure, section, table
from .clients import COLOURS
from .figures import PASSING
from .learning import axis
from .plots import ranked
from ...server.signals import GROUPS, reasons

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .figures import Figures
    from .markup import Markup
    from ...server.ledger import Event

_ROWS = 12
"""Kinds in the picture; the table has all."""
_REASONS, _FAILED, _CLIENTS = 60, 100, 10
_OTHER, _FAILURE = 6, 1
"""Numbers of colours."""


def troubles(figures: Figures) -> Markup:
    """Return the section about everything that did not go straight on."""
    title, marks = "Events and failures", _marks(figures)
    if not marks:
        return section(title, about("Nothing went wrong, and nothing had to be tried again."))
    kinds: Counter[str] = Counter()
    for (name, _), count in marks.items():
        kinds[name] += count
    heads = ["what", "times"]
    return section(
        title,
        figure("", _picture(figures, marks, kinds), table("kinds", heads, kinds.most_common())),
        *_reasons(figures.events),
        _failed(figures),
    )


def _marks(figures: Figures) -> Counter[tuple[str, int]]:
    """Return how often what happened in which round."""
    marks: Counter[tuple[str, int]] = Counter()
    for event in figures.events:
        if event.kind not in PASSING:
            marks[event.kind, event.round] += 1
    for record in figures.records:
        if record.outcome != "finished":
            marks[f"attempt {record.outcome}", record.round] += 1
    return marks


def _picture(figures: Figures, marks: Counter[tuple[str, int]], kinds: Counter[str]) -> Markup:
    rows = [name for name, _ in kinds.most_common(_ROWS)]
    numbers = [point.number for point in figures.points] + [number for _, number in marks]
    first, last = min(numbers), max(numbers)
    width = max(1, math.ceil((last - first) / MOST))
    binned: Counter[tuple[str, float]] = Counter()
    for (name, number), count in marks.items():
        if name in rows:
            binned[name, float(number - (number - first) % width)] += count
    x = axis("rounds", [float(first), float(last)])
    colours = {name: _colour(name) for name in rows}
    return ranked(
        x=x,
        names=rows,
        content=strip(rows, binned, colours, x),
        says="Over the rounds: " + "; ".join(f"{name} {kinds[name]} times" for name in rows),
        at=[],
        rows="",
    )


def _colour(name: str) -> int:
    return COLOURS.get(GROUPS.get(name, ""), _FAILURE if name.startswith("attempt ") else _OTHER)


def _reasons(events: Sequence[Event]) -> list[Markup]:
    """Return why clients were not used, by code, and whom it happened to most."""
    found = reasons(events)
    if not found:
        return []
    clients = Counter(
        event.node
        for event in events
        if event.node and (event.kind in GROUPS or event.kind == "left out")
    )
    rows = [(r.kind, r.code, r.times, r.clients, r.first, r.last) for r in found[:_REASONS]]
    heads = ["what", "reason", "times", "clients", "first round", "last round"]
    often = [(f"{node[:16]}", count) for node, count in clients.most_common(_CLIENTS)]
    return [
        table("reasons", heads, rows, "Attempts that failed count too.", "Reasons"),
        table("most", ["client", "events"], often, "", "Whom it happened to most"),
    ]


def _failed(figures: Figures) -> Markup | None:
    failed = [record for record in figures.records if record.outcome != "finished"]
    if not failed:
        return None
    rows = [(r.round, r.attempt, r.phase, r.outcome, r.cause) for r in failed[-_FAILED:]]
    note = f"The last {_FAILED} of {len(failed):,}." if len(failed) > _FAILED else ""
    heads = ["round", "attempt", "phase", "outcome", "cause"]
    return table("failed", heads, rows, note, "Attempts that failed")
