"""Pictures of counts and parts: stacked bars, a histogram, shares of a whole, a strip of events."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from .markup import Markup, join, tag
from .plots import BOX, Axis, row_height, stretched

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MOST = 100
"""Bars in one picture at most; of a longer run each bar stands for several rounds."""
_FULL = 0.86
"""Share of its place that a bar fills, where there are few."""
_FEW = 60


@dataclass(frozen=True, kw_only=True)
class Bar:
    """One bar: from where to where along x, and the heights of its parts, from below."""

    start: float
    end: float
    parts: Mapping[str, float] = field(repr=False)

    @property
    def total(self) -> float:
        """Its height."""
        return sum(self.parts.values())


def stacks(bars: Sequence[Bar], colours: Mapping[str, int], x: Axis, y: Axis) -> Markup:
    """Return bars; a part is drawn where `colours` has it."""
    full = _FULL if len(bars) <= _FEW else 1.0
    shapes = []
    for bar in bars:
        left, right = BOX * x.scale.at(bar.start), BOX * x.scale.at(bar.end)
        room = (right - left) * (1 - full) / 2
        floor = 0.0
        for part, colour in colours.items():
            value = bar.parts.get(part, 0.0)
            top = BOX * (1 - y.scale.at(floor + value))
            bottom = BOX * (1 - y.scale.at(floor))
            floor += value
            if value > 0:
                width = right - left - 2 * room
                shapes.append(_rectangle(colour, left + room, top, width, bottom - top))
    return stretched(*shapes)


def _rectangle(colour: int, x: float, y: float, width: float, height: float) -> Markup:
    return tag("rect", class_=f"bar f{colour}", x=x, y=y, width=width, height=height)


def middles(bars: Sequence[Bar], x: Axis) -> list[float]:
    """Return where the bars stand, 0 to 1."""
    return [x.scale.at((bar.start + bar.end) / 2) for bar in bars]


def shares(parts: Mapping[str, float], colours: Mapping[str, int]) -> Markup:
    """Return one bar across, cut into shares of the whole."""
    whole = sum(parts.values()) or 1.0
    shapes, left = [], 0.0
    for part, value in parts.items():
        width = BOX * value / whole
        shapes.append(_rectangle(colours[part], left, 0.0, width, float(BOX)))
        left += width
    return tag("div", stretched(*shapes), class_="shares", aria_hidden="true")


def strip(
    rows: Sequence[str], marks: Mapping[tuple[str, float], int], colours: Mapping[str, int], x: Axis
) -> Markup:
    """Return a mark for each row and x at which something happened; its area grows with how often.

    Args:
        rows: Names of the rows, the first on top.
        marks: How often, by row and x.
        colours: Of the rows.
        x: The axis.
    """
    most = max(marks.values(), default=1)
    dots = []
    for (name, value), count in sorted(marks.items()):
        radius = 3.0 + 6.0 * (count / most) ** 0.5 if most > 1 else 4.0
        dots.append(
            tag(
                "circle",
                class_=f"mark f{colours[name]}",
                r=radius,
                cx=f"{100 * x.scale.at(value):.2f}%",
                cy=row_height(rows.index(name)),
            )
        )
    return join(*dots)
