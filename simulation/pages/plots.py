"""Pictures with two axes, as HTML and SVG that keep their letters' size at any width.

A picture is a grid: the y labels, the area, the x labels. Inside the area what scales (paths, bars)
is in a nested SVG of 1000 by 1000 that is stretched, strokes excepted; what does not (text, dots)
stands at a percentage of the width and a height in pixels. So nothing needs a script to fit, and no
element a style of its own, which the page's policy would refuse.

`data-at` says where along x the rows of the picture's table stand; page.js reads it to show a row
under the pointer.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from .markup import Markup, join, short, tag

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from .scale import Scale

HEIGHT = 220
"""Of an area, in pixels."""
BOX = 1000
"""Width and height of the stretched SVG, in its own units."""
_LETTER = 6.6
"""Width of a digit of an axis, in pixels, rounded up."""
_DOTS = 40
"""Points up to which each is marked with a dot."""
_NEAR_END = 0.95
_LONGEST = 18
"""Letters of a row's name; a code from a ledger may be longer."""


@dataclass(frozen=True, kw_only=True)
class Axis:
    """What an axis is called, and its scale."""

    name: str
    scale: Scale

    @property
    def title(self) -> str:
        """The name with its unit."""
        unit = f" ({self.scale.unit})" if self.scale.unit else ""
        return f"{self.name}{unit}{', logarithmic' if self.scale.log else ''}"


@dataclass(frozen=True, kw_only=True)
class Curve:
    """A line: its name, a value for each x (None for none), and the number of its colour."""

    name: str
    values: Sequence[float | None] = field(repr=False)
    colour: int


@dataclass(frozen=True, kw_only=True)
class Band:
    """What lies between two lines."""

    name: str
    low: Sequence[float | None] = field(repr=False)
    high: Sequence[float | None] = field(repr=False)
    colour: int
    strong: bool = False


def area(*, x: Axis, y: Axis, content: Markup, says: str, at: Sequence[float], rows: str) -> Markup:
    """Return a picture.

    Args:
        x: The axis below.
        y: The axis at the left.
        content: What stands in the area, in front of the grid.
        says: The picture in words, for who does not see it.
        at: Where along x the table's rows stand, 0 to 1.
        rows: Id of the table.
    """
    names = [(y.scale.label(t), HEIGHT * (1 - y.scale.at(t))) for t in y.scale.ticks]
    grid = [tag("line", class_="grid", x1="0", x2="100%", y1=up, y2=up) for _, up in names]
    return _assembled(x, y.title, names, join(*grid, content), says, at, rows)


def ranked(
    *,
    x: Axis,
    names: Sequence[str],
    content: Markup,
    says: str,
    at: Sequence[float],
    rows: str,
    longest: int = _LONGEST,
) -> Markup:
    """Return a picture whose y axis has names, the first one on top, each cut to `longest`."""
    height = 26.0 * len(names)
    short_ = [name if len(name) <= longest else f"{name[:longest]}…" for name in names]
    places = [(name, row_height(i)) for i, name in enumerate(short_)]
    grid = [tag("line", class_="grid", x1="0", x2="100%", y1=up, y2=up) for _, up in places]
    return _assembled(x, "", places, join(*grid, content), says, at, rows, height=height)


def row_height(row: int) -> float:
    """Return where a row of `ranked` stands, in pixels from above."""
    return 26.0 * row + 13


def _assembled(
    x: Axis,
    title: str,
    names: Sequence[tuple[str, float]],
    content: Markup,
    says: str,
    at: Sequence[float],
    rows: str,
    height: float = HEIGHT,
) -> Markup:
    room = 8 if title else 16  # dots of a row without a scale may stand at its very beginning
    wide = math.ceil(max((len(name) for name, _ in names), default=0) * _LETTER) + room + 2
    left = [tag("text", name, x=wide - room, y=up + 4, text_anchor="end") for name, up in names]
    below = [_below(x.scale.at(t), x.scale.label(t)) for t in x.scale.ticks]
    marks = [f"{100 * x.scale.at(t):.2f}%" for t in x.scale.ticks]
    feet = [tag("line", class_="axis", x1=m, x2=m, y1=height, y2=height + 4) for m in marks]
    floor = tag("line", class_="axis", x1="0", x2="100%", y1=height, y2=height)
    where = " ".join(str(short(float(share))) for share in at)
    return tag(
        "div",
        tag("p", title, class_="ytitle") if title else None,
        tag("svg", *left, class_="ys", width=wide, height=short(height)),
        tag(
            "svg",
            content,
            floor,
            *feet,
            class_="area",
            width="100%",
            height=short(height),
            data_at=where,
            data_rows=rows,
        ),
        tag("svg", *below, class_="xs", width="100%", height=20),
        tag("p", x.title, class_="xtitle"),
        class_="plot",
        role="img",
        aria_label=says,
    )


def _below(share: float, label: str) -> Markup:
    anchor = "end" if share > _NEAR_END and len(label) > 1 else "middle"
    return tag("text", label, x=f"{100 * share:.2f}%", y=16, text_anchor=anchor)


def stretched(*content: Markup) -> Markup:
    """Return what fills the area whatever its width: x and y from 0 to `BOX`, y down."""
    return tag(
        "svg",
        *content,
        width="100%",
        height="100%",
        viewbox=f"0 0 {BOX} {BOX}",
        preserveaspectratio="none",
    )


def lines(
    xs: Sequence[float], curves: Iterable[Curve], bands: Iterable[Band], x: Axis, y: Axis
) -> Markup:
    """Return bands, and curves in front of them."""
    at = [x.scale.at(value) for value in xs]
    shapes = [_band(at, band, y.scale) for band in bands]
    dots: list[Markup] = []
    for curve in curves:
        pieces = _pieces(at, curve.values, y.scale)
        drawn = "".join(f"M{'L'.join(f'{px:.1f} {py:.1f}' for px, py in p)}" for p in pieces)
        if drawn:
            shapes.append(tag("path", class_=f"line s{curve.colour}", d=drawn))
        few = sum(map(len, pieces)) <= _DOTS
        alone = [px for piece in pieces if few or len(piece) == 1 for px in piece]
        dots += [_dot(px / BOX, py / BOX * HEIGHT, curve.colour) for px, py in alone]
    return join(stretched(*shapes), *dots)


def _dot(share: float, up: float, colour: int) -> Markup:
    return tag("circle", class_=f"dot f{colour}", cx=f"{100 * share:.2f}%", cy=up, r="2.5")


def _pieces(
    at: Sequence[float], values: Sequence[float | None], scale: Scale
) -> list[list[tuple[float, float]]]:
    """Return a curve's points; what was not measured is passed over, what is not finite a gap."""
    pieces: list[list[tuple[float, float]]] = [[]]
    for share, value in zip(at, values, strict=True):
        if value is None:
            continue
        if math.isfinite(value):
            pieces[-1].append((BOX * share, BOX * (1 - scale.at(value))))
        elif pieces[-1]:
            pieces.append([])
    return [piece for piece in pieces if piece]


def _band(at: Sequence[float], band: Band, scale: Scale) -> Markup:
    both = [
        (share, low, high)
        for share, low, high in zip(at, band.low, band.high, strict=True)
        if low is not None and high is not None and math.isfinite(low) and math.isfinite(high)
    ]
    edge = [(share, high) for share, _, high in both]
    edge += [(share, low) for share, low, _ in reversed(both)]
    points = " ".join(f"{BOX * s:.1f},{BOX * (1 - scale.at(v)):.1f}" for s, v in edge)
    strength = "band strong" if band.strong else "band"
    return tag("polygon", class_=f"{strength} f{band.colour}", points=points)
