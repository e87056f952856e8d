"""Every other metric of a run, each in a picture: what an app or a strategy counts besides."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

from .blocks import about, missing, section
from .figures import KINDS, READS, finite, named
from .learning import Curves, Line, Picture, against
from .markup import Markup, tag
from .scale import number

if TYPE_CHECKING:
    from .figures import Figures

MOST = 12
"""Pictures at most."""
_ELSEWHERE = (
    READS["what became of clients"],
    READS["staleness"],
    "saturation",
    "version.",
    "histogram.",
    "clipped",
)
_COUNTS = (
    "examples",
    "clock.opened",
    READS["virtual time"],
    READS["work of the devices"],
)


def metrics(figures: Figures) -> Markup | None:
    """Return the section about the metrics that no other section draws; None for none."""
    found = {name: finite(figures.curve(name)) for name in _names(figures)}
    steady = [(name, values[0]) for name, values in found.items() if len(set(values)) == 1]
    moving = [name for name, values in found.items() if len(set(values)) > 1]
    if not steady and not moving:
        return None
    said = [f"{name} {number(value)}" for name, value in steady[:MOST]]
    left = len(moving) + len(steady) - len(moving[:MOST]) - len(said)
    return section(
        "Other metrics",
        about(f"The same in every round: {', '.join(said)}.") if said else None,
        missing(f"{left:,} more are in the record and not here.") if left else None,
        _pictures(figures, moving[:MOST]) if moving else None,
    )


def _names(figures: Figures) -> list[str]:
    """Return the names of what is left: not drawn elsewhere, and no count."""
    elsewhere = {name for kind in KINDS for name in figures.of_kind(kind)}
    return sorted(
        name
        for name in figures.metrics - elsewhere
        if not name.startswith(_ELSEWHERE) and not name.endswith(_COUNTS)
    )


def _pictures(figures: Figures, names: list[str]) -> Markup:
    found = Curves.of(figures, names)
    made = []
    for name in names:
        short, whose = named(name)
        line = Line(name="", xs=found.by["rounds"], values=found.values[name], colour=0)
        picture = Picture(title=short, kind=whose or "of the round", limits=(-inf, inf))
        made.append(against(picture, "rounds", [line], "metrics"))
    return tag("div", tag("div", *made, class_="pair"), found.table("metrics", "Numbers"))
