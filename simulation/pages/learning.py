"""Accuracy and loss against rounds, measured time, virtual time and bytes.

Of a long run the points are chosen, never averaged: of each stretch of rounds the lowest and the
highest of every curve, the first and the last. So a spike is seen, and every number in the table is
one of the ledger.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

from .blocks import figure, legend, missing, panels, section, table, written
from .figures import finite, named
from .markup import Markup, join, tag
from .plots import Axis, Curve, area, lines
from .scale import SIZES, TIMES, Scale, duration, number, size

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
WRITE = {
    "rounds": number,
    "measured time": duration,
    "virtual time": duration,
    "bytes moved": size,
}
"""How a value of each is written."""


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
    "accuracy": Picture(title="Accuracy", kind="share of examples", limits=(0.0, 1.0)),
    "loss": Picture(title="Loss", kind="mean over examples", limits=None),
}
"""By kind of metric."""
_COLOURS = 7


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


@dataclass(frozen=True, kw_only=True)
class Curves:
    """Some metrics of one run, at as many of its points as are drawn."""

    points: Sequence[Point] = field(repr=False)
    by: Mapping[str, list[float]] = field(repr=False)
    """What they can be set against."""
    values: Mapping[str, Values] = field(repr=False)
    """By metric; only metrics that some round has."""
    whole: int
    """How many points the run has."""

    @classmethod
    def of(cls, figures: Figures, names: Sequence[str]) -> Self:
        """Choose the points of a run that has at least one."""
        whole = {name: figures.curve(name) for name in names}
        whole = {name: values for name, values in whole.items() if set(values) != {None}}
        places = chosen(list(whole.values()) or [[None] * len(figures.points)])
        points = [figures.points[place] for place in places]
        curves = {name: [values[place] for place in places] for name, values in whole.items()}
        return cls(points=points, by=measures(points), values=curves, whole=len(figures.points))

    def table(self, name: str, summary: str) -> Markup:
        """Return the numbers under an id."""
        columns: dict[str, Sequence[object]] = {"round": [point.number for point in self.points]}
        for measure, xs in self.by.items():
            if measure != "rounds":
                columns[measure] = written(xs, WRITE[measure])
        for metric, values in self.values.items():
            columns[", ".join(filter(None, named(metric)))] = values
        rows = list(zip(*columns.values(), strict=True))
        return table(name, list(columns), rows, self._note, summary)

    @property
    def _note(self) -> str:
        if len(self.points) == self.whole:
            return ""
        return (
            f"{len(self.points)} of {self.whole:,} rounds: of each stretch of rounds the lowest "
            "and the highest of every curve."
        )


def learning(figures: Figures) -> Markup:
    """Return the section about what was learnt, of a run with at least one point."""
    kinds = {kind: figures.of_kind(kind)[:_COLOURS] for kind in PICTURES}
    found = Curves.of(figures, [name for names in kinds.values() for name in names])
    lacks = [
        missing(f"{PICTURES[kind].title}: no round of this run records one.")
        for kind, names in kinds.items()
        if not names
    ]
    if not found.values:
        return section("Learning", *lacks)
    drawn = [(name, _pictures(name, xs, kinds, found.values)) for name, xs in found.by.items()]
    return section("Learning", *lacks, panels(drawn), found.table("learning", "Numbers"))


def _pictures(
    measure: str,
    xs: Sequence[float],
    kinds: Mapping[str, Sequence[str]],
    curves: Mapping[str, Values],
) -> Markup:
    made = []
    for kind, names in kinds.items():
        there = [name for name in names if name in curves]
        drawn = [
            Line(name=_called(name, kind), xs=xs, values=curves[name], colour=i)
            for i, name in enumerate(there)
        ]
        if drawn:
            made.append(against(PICTURES[kind], measure, drawn, "learning"))
    return tag("div", *made, class_="pair")


def _called(metric: str, kind: str) -> str:
    """Return what a curve is called in the picture of its kind."""
    short, whose = named(metric)
    return whose if short == kind else f"{short}, {whose}"


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
    usual = limits is None or limits[0] <= min(values) <= max(values) <= limits[1]
    kind = f" ({picture.kind})" if usual else ""
    y = Axis(name=f"{picture.title.lower()}{kind}", scale=scale)
    named_ = len(curves) > 1 or curves[0].name
    drawn = [
        lines(line.xs, [Curve(name=line.name, values=line.values, colour=line.colour)], [], x, y)
        for line in curves
    ]
    return figure(
        picture.title,
        legend([(line.name, f"line s{line.colour}") for line in curves]) if named_ else None,
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
