"""How often each client was used, as a histogram: a million of them are a few dozen bars."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .bars import Bar, middles, stacks
from .blocks import about, figure, missing, section, table
from .plots import Axis, area
from .scale import Scale
from ...server.signals_text import words
from ...server.skew import counts, skew

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .figures import Figures
    from .markup import Markup

MOST = 40
"""Bars at most."""


def bins(ascending: NDArray[np.int64]) -> list[tuple[int, int, int]]:
    """Return (from, to, how many clients), both ends counted, at most `MOST`, without gaps."""
    low, high = int(ascending[0]), int(ascending[-1])
    width = -(-(high - low + 1) // MOST)
    edges = np.arange(low, high + width + 1, width)
    found, _ = np.histogram(ascending, edges)
    return [
        (int(edge), int(edge) + width - 1, int(count))
        for edge, count in zip(edges[:-1], found, strict=True)
    ]


def participation(figures: Figures) -> Markup:
    """Return the section about who took part."""
    if not figures.used:
        return section("Participation", missing("No round records who was in it."))
    ascending = counts(figures.used, figures.registered)
    found, columns = skew(ascending), bins(ascending)
    said = words(found)
    if len(columns) == 1:
        return section("Participation", about(said))
    bars = [Bar(start=a - 0.5, end=b + 0.5, parts={"clients": float(n)}) for a, b, n in columns]
    ends = Scale.linear([bars[0].start, bars[-1].end], whole=True, tight=True)
    x = Axis(name="rounds that a client was used in", scale=ends)
    tops = [bar.total for bar in bars]
    y = Axis(name="clients", scale=Scale.linear(tops, floor=0.0, whole=True))
    rows = [
        (str(a) if a == b else f"{a} to {b}", n, _percent(n / found.clients)) for a, b, n in columns
    ]
    unknown = "How many clients the run has, and so how many were never used, is not recorded."
    picture = area(
        x=x,
        y=y,
        content=stacks(bars, {"clients": 0}, x, y),
        says=f"Histogram of uses. {said}",
        at=middles(bars, x),
        rows="uses",
    )
    return section(
        "Participation",
        about(said),
        None if figures.registered else missing(unknown),
        figure("", picture, table("uses", ["rounds", "clients", "share of clients"], rows)),
    )


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"
