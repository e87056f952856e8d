"""Accuracy and loss against rounds, measured time, virtual time and bytes.

Of a long run the points are chosen, never averaged: of each stretch of rounds the lowest and the
highest of every curve, the first and the last. So a spike is seen, and every number in the table is
one of the ledger.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from .blocks import figure, legend, missing, panels, section, table, written
from .figures import READS, finite, named
from .markup import Markup, join, tag
from .plots import Axis, Curve, area, lines
from .scale import SIZES, TIMES, Scale, duration, size

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .figures import Figures, Point

    Values = list[float | None]

MOST = 400
"""Points that a curve is drawn with at most."""
UNITS = {
    "rounds": (("", 1.0),),
    "measured time": TIMES,
    "virtual time": TIMES,
    "bytes moved": SIZES,
}
ACCURACY = (READS["accuracy of the server"], READS["accuracy of the clients"])
LOSS = (READS["loss of the server"], READS["loss of the clients"], READS["loss in training"])


@dataclass(frozen=True, kw_only=True)
class Picture:
    """What is drawn in one pair of axes."""

    title: str
    kind: str
    """What a value is: behind the title, in brackets."""
    limits: tuple[float, float] | None
    """Beyond which no value lies; None for a loss, whose axis may be logarithmic."""


@dataclass(frozen=True, kw_only=True)
class Line:
    """A curve over one measure of its rounds."""

    name: str
    xs: Sequence[float] = field(repr=False)
    values: Sequence[float | None] = field(repr=False)
    colour: int


PICTURES = {
    Picture(title="Accuracy", kind="share of examples", limits=(0.0, 1.0)): ACCURACY,
    Picture(title="Loss", kind="mean over examples", limits=None): LOSS,
}


def measures(points: Sequence[Point]) -> dict[str, list[float]]:
    """Return what rounds can be set against, by name, a number for each of at least one point."""
    virtual = [point.virtual for point in points if point.virtual is not None]
    found = {
        "rounds": [float(point.number) for point in points],
        "virtual time": virtual if len(virtual) == len(points) else [],
        "measured time": [point.seconds for point in points],
        "bytes moved": [float(point.moved) for point in points],
    }
    return {name: xs for name, xs in found.items() if name == "rounds" or max(xs, default=0) > 0}


def chosen(curves: Sequence[Sequence[float | None]], most: int = MOST) -> list[int]:
    """Return the places at which curves of one length are drawn, at most `most`, ascending."""
    count = len(curves[0]) if curves else 0
    if count <= most:
        return list(range(count))
    stretch = math.ceil(count / max(1, (most - 2) // (2 * len(curves))))
    found = {0, count - 1}
    for start in range(0, count, stretch):
        for curve in curves:
            there = [
                (value, place)
                for place in range(start, min(start + stretch, count))
                if (value := curve[place]) is not None and math.isfinite(value)
            ]
            if there:
                found |= {min(there)[1], max(there)[1]}
    return sorted(found)


def learning(figures: Figures) -> Markup:
    """Return the section about what was learnt, of a run with at least one point."""
    whole = {name: figures.curve(name) for name in (*ACCURACY, *LOSS)}
    whole = {name: values for name, values in whole.items() if set(values) != {None}}
    places = chosen(list(whole.values()) or [[None] * len(figures.points)])
    points = [figures.points[place] for place in places]
    curves = {name: [values[place] for place in places] for name, values in whole.items()}
    by = measures(points)
    lacks = [
        missing(f"{picture.title}: no round of this run records one.")
        for picture, names in PICTURES.items()
        if not set(names) & set(curves)
    ]
    if "virtual time" not in by:
        lacks.append(missing("Virtual time: not recorded; only a simulated fleet has one."))
    if not curves:
        return section("Learning", *lacks)
    note = ""
    if len(points) < len(figures.points):
        note = (
            f"{len(points)} of {len(figures.points):,} rounds: of each stretch of rounds the "
            "lowest and the highest of every curve."
        )
    drawn = [(name, _pictures(name, xs, curves)) for name, xs in by.items()]
    return section("Learning", *lacks, panels(drawn), _table(points, by, curves, note))


def _pictures(measure: str, xs: Sequence[float], curves: Mapping[str, Values]) -> Markup:
    made = []
    for picture, names in PICTURES.items():
        there = [name for name in names if name in curves]
        drawn = [
            Line(name=named(name)[1], xs=xs, values=curves[name], colour=i)
            for i, name in enumerate(there)
        ]
        if drawn:
            made.append(against(picture, measure, drawn, "learning"))
    return tag("div", *made, class_="pair")


def against(picture: Picture, measure: str, curves: Sequence[Line], rows: str) -> Markup:
    """Return curves against a measure.

    Args:
        picture: What they are.
        measure: A name of `UNITS`.
        curves: At least one.
        rows: Id of the table whose rows are the first curve's points; empty for none.
    """
    values = [value for line in curves for value in finite(line.values)]
    if not values:
        return figure(picture.title, missing("No finite value was recorded."))
    limits = picture.limits
    scale = Scale.positive(values) if limits is None else Scale.linear(values, limits=limits)
    x = axis(measure, [value for line in curves for value in line.xs])
    y = Axis(name=f"{picture.title.lower()} ({picture.kind})", scale=scale)
    drawn = [
        lines(line.xs, [Curve(name=line.name, values=line.values, colour=line.colour)], [], x, y)
        for line in curves
    ]
    return figure(
        picture.title,
        legend([(line.name, f"line s{line.colour}") for line in curves]),
        area(
            x=x,
            y=y,
            content=join(*drawn),
            says=_says(picture.title, measure, curves),
            at=[x.scale.at(value) for value in curves[0].xs] if rows else [],
            rows=rows,
        ),
    )


def axis(measure: str, xs: Sequence[float]) -> Axis:
    """Return the x axis of a measure, to the last value; from 0, if it is not of rounds."""
    rounds = measure == "rounds"
    scale = Scale.linear(
        xs, units=UNITS[measure], floor=None if rounds else 0.0, whole=rounds, tight=True
    )
    return Axis(name="round" if rounds else measure, scale=scale)


def _says(title: str, measure: str, curves: Sequence[Line]) -> str:
    said = [
        f"{line.name} from {found[0]:.4g} to {found[-1]:.4g}"
        for line in curves
        if (found := finite(line.values))
    ]
    return f"{title} against {measure}: {'; '.join(said)}."


def _table(
    points: Sequence[Point],
    by: Mapping[str, list[float]],
    curves: Mapping[str, Values],
    note: str,
) -> Markup:
    columns: dict[str, Sequence[object]] = {"round": [point.number for point in points]}
    for name, xs in by.items():
        if name != "rounds":
            columns[name] = written(xs, size if UNITS[name] is SIZES else duration)
    for name, values in curves.items():
        columns[", ".join(filter(None, named(name)))] = values
    return table("learning", list(columns), list(zip(*columns.values(), strict=True)), note)
