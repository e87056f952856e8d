"""Bars that lie, one row a name, and lines that stand: parts of pictures of a plan."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .markup import Markup, join, tag
from .plots import BOX, stretched

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .plots import Axis

_FULL = 0.7
"""Share of its row that a bar fills."""


def across(
    rows: Sequence[Mapping[str, tuple[float, float]]], colours: Mapping[str, int], x: Axis
) -> Markup:
    """Return bars for a picture of plots.ranked, the first row on top.

    Args:
        rows: Of each row by part from where to where along x.
        colours: Of the parts.
        x: The axis.
    """
    high = BOX / max(1, len(rows))
    shapes = []
    for i, row in enumerate(rows):
        for part, ends in row.items():
            left, right = (BOX * x.scale.at(end) for end in sorted(ends))
            if right > left:
                shapes.append(
                    tag(
                        "rect",
                        class_=f"bar f{colours[part]}",
                        x=left,
                        y=high * (i + (1 - _FULL) / 2),
                        width=right - left,
                        height=high * _FULL,
                    )
                )
    return stretched(*shapes)


def laid(parts: Mapping[str, float]) -> dict[str, tuple[float, float]]:
    """Return where parts begin and end that are laid end to end."""
    found, left = {}, 0.0
    for name, value in parts.items():
        found[name] = (left, left + value)
        left += value
    return found


def upright(values: Mapping[int, float], x: Axis) -> Markup:
    """Return a line from the floor to the top of an area at each value, by number of colour."""
    return join(
        stretched(
            *(
                tag("path", class_=f"line s{colour}", d=f"M{at:.1f} 0L{at:.1f} {BOX}")
                for colour, value in values.items()
                for at in (BOX * x.scale.at(value),)
            )
        )
    )


def zero(x: Axis) -> Markup:
    """Return the line at 0, where the scale goes to both sides of it."""
    at = f"{100 * x.scale.at(0.0):.2f}%"
    return tag("line", class_="axis", x1=at, x2=at, y1="0", y2="100%")
