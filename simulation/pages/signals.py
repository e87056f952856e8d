"""The signals of a run: how good each round was beside its model (docs/signals.md)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from .bars import Bar, middles, stacks
from .blocks import about, figure, missing, open_table, section, table
from .learning import axis, chosen
from .markup import Markup, tag
from .plots import Axis, Curve, area, lines
from .scale import SIZES, TIMES, Scale, duration, number, percent, size
from ...server.signals import SIGNALS
from ...server.signals_text import in_words

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from .figures import Figures

    Write = Callable[[float], str]

_WRITE: Mapping[str, Write] = {"share": percent, "s": duration, "B": size, "": number}
_UNITS: Mapping[str, Sequence[tuple[str, float]]] = {
    **{"share": (("%", 0.01),), "s": TIMES, "B": SIZES, "": (("", 1.0),)},
}
_DRAWN = ("attempts", "staleness.mean", "staleness.p90")
"""Signals that other sections of the page draw."""


def signals(figures: Figures) -> Markup:
    """Return the section, of a run with at least one point."""
    found = figures.signals
    summary = found.summary()
    moving = [name for name in summary if len(set(found.curve(name)) - {None}) > 1]
    steady = [
        f"{name} {_WRITE[SIGNALS[name].unit](values['last'])}"
        for name, values in summary.items()
        if name not in moving
    ]
    rows = []
    for name, values in summary.items():
        write = _WRITE[SIGNALS[name].unit]
        shown = (write(values[key]) for key in ("last", "p10", "p50", "p90"))
        rows.append((name, *shown, int(values["rounds"]), SIGNALS[name].says))
    pictures = [_picture(figures, name) for name in moving if name not in _DRAWN]
    heads = ["signal", "last round", "p10", "p50", "p90", "rounds", "what it is"]
    return section(
        "Signals",
        about(_words(figures)),
        about(f"The same in every round: {', '.join(steady)}.") if steady else None,
        open_table(heads, rows, "Signals") if rows else missing("No round records any."),
        tag("div", *pictures, _histogram(figures), class_="pair"),
    )


def _histogram(figures: Figures) -> Markup | None:
    """Return how many clients have which accuracy; None where the run does not count them."""
    told = figures.signals.histogram
    if told is None:
        return None
    number_, counts = told
    width = 100 / len(counts)
    bars = [
        Bar(start=i * width, end=(i + 1) * width, parts={"clients": float(count)})
        for i, count in enumerate(counts)
    ]
    x = Axis(name="accuracy on a client's own data, %", scale=Scale.linear([0.0, 100.0]))
    y = Axis(name="clients", scale=Scale.linear([*map(float, counts)], floor=0.0, whole=True))
    rows = [(f"{b.start:.3g} to {b.end:.3g} %", int(b.total)) for b in bars]
    picture = area(
        x=x,
        y=y,
        content=stacks(bars, {"clients": 0}, x, y),
        says=f"Clients by accuracy of the model of round {number_}: {in_words(counts)}.",
        at=middles(bars, x),
        rows="histogram",
    )
    numbers = table("histogram", ["accuracy", "clients"], rows)
    return figure(f"Clients by accuracy of the model of round {number_}", picture, numbers)


def _words(figures: Figures) -> str:
    found = figures.signals
    tried = sum(found.attempts.values())
    gone = ", ".join(f"{n:,} {name}" for name, n in found.attempts.items() if name != "finished")
    mixed = ", ".join(f"{n:,} of {name}" for name, n in found.versions.items())
    devices = f" Devices of the newest round by version of umbel: {mixed}." if mixed else ""
    said = f" {tried:,} attempts at rounds, {gone}." if gone else " No round was tried twice."
    return (
        "How good each round was, beside its model. Half of the rounds have at most p50, 9 of 10 "
        f"at most p90.{said}{devices} In a secure run every number is a sum over clients."
    )


def _picture(figures: Figures, name: str) -> Markup:
    signal, values = SIGNALS[name], figures.signals.curve(name)
    places = [place for place in chosen([values]) if values[place] is not None]
    numbers = [float(figures.signals.rounds[place].number) for place in places]
    drawn = [value for place in places if (value := values[place]) is not None]
    x = axis("rounds", numbers)
    least = 0.0 if min(drawn) >= 0 and signal.unit != "share" else None
    limits = (0.0, 1.0) if signal.unit == "share" else (-math.inf, math.inf)
    scale = Scale.linear(drawn, units=_UNITS[signal.unit], floor=least, limits=limits)
    y = Axis(name=name, scale=scale)
    write, rows = _WRITE[signal.unit], f"signal-{name.replace('.', '-')}"
    picture = area(
        x=x,
        y=y,
        content=lines(numbers, [Curve(name=name, values=drawn, colour=0)], [], x, y),
        says=f"{name}, {signal.says}: from {write(min(drawn))} to {write(max(drawn))}.",
        at=[x.scale.at(value) for value in numbers],
        rows=rows,
    )
    cells = [(int(n), write(value)) for n, value in zip(numbers, drawn, strict=True)]
    return figure(f"{name}: {signal.says}", picture, table(rows, ["round", name], cells))
