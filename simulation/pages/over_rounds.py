"""Stacked bars over rounds: of a long run each bar is the mean of several rounds."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .bars import MOST, Bar, middles, stacks
from .blocks import figure, legend, table
from .plots import Axis, area
from .scale import Scale

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from .figures import Point
    from .markup import Markup

    Parts = Callable[[Point], Mapping[str, float]]


@dataclass(frozen=True, kw_only=True)
class Stack:
    """What is stacked."""

    name: str
    """Of the y axis."""
    colours: Mapping[str, int]
    """Of the parts, from below."""
    units: Sequence[tuple[str, float]] = (("", 1.0),)
    rows: str
    """Id of the table."""
    legend: bool = True
    """Whether the picture names its colours itself."""


def grouped(points: Sequence[Point], parts: Parts) -> list[tuple[Point, Point, dict[str, float]]]:
    """Return first and last point of each bar, and the mean of its rounds' parts."""
    width = max(1, math.ceil(len(points) / MOST))
    found = []
    for start in range(0, len(points), width):
        inside = points[start : start + width]
        sums: dict[str, float] = {}
        for point in inside:
            for name, value in parts(point).items():
                sums[name] = sums.get(name, 0.0) + (value if math.isfinite(value) else 0.0)
        means = {name: value / len(inside) for name, value in sums.items()}
        found.append((inside[0], inside[-1], means))
    return found


def stacked(points: Sequence[Point], parts: Parts, stack: Stack) -> Markup:
    """Return bars over the rounds of at least one point, with their legend and table."""
    groups = grouped(points, parts)
    bars = [Bar(start=a.number - 0.5, end=b.number + 0.5, parts=p) for a, b, p in groups]
    ends = Scale.linear([bars[0].start, bars[-1].end], whole=True, tight=True)
    x = Axis(name="round", scale=ends)
    tops = [sum(bar.parts.get(part, 0.0) for part in stack.colours) for bar in bars]
    whole = not stack.units[0][0] and len(groups) == len(points)
    scale = Scale.linear(tops, floor=0.0, units=stack.units, whole=whole)
    y = Axis(name=stack.name, scale=scale)
    rows = [
        (
            f"{a.number}" if a is b else f"{a.number} to {b.number}",
            *(round(means.get(part, 0.0), 6) for part in stack.colours),
        )
        for a, b, means in groups
    ]
    note = "Each row is the mean of its rounds." if len(groups) < len(points) else ""
    picture = area(
        x=x,
        y=y,
        content=stacks(bars, stack.colours, x, y),
        says=f"Stacked bars over {len(points)} rounds: {', '.join(stack.colours)}.",
        at=middles(bars, x),
        rows=stack.rows,
    )
    names = [(part, f"bar f{colour}") for part, colour in stack.colours.items()]
    samples = legend(names) if stack.legend and len(names) > 1 else None
    return figure("", samples, picture, table(stack.rows, ["round", *stack.colours], rows, note))
