"""How often each client was used, as a histogram: a million of them are a few dozen bars."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from .bars import Bar, middles, stacks
from .blocks import about, figure, missing, section, table
from .plots import Axis, area
from .scale import Scale, number

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .figures import Figures
    from .markup import Markup

MOST = 40
"""Bars at most."""


@dataclass(frozen=True, kw_only=True)
class Skew:
    """How unevenly the work was spread."""

    clients: int
    never: int
    least: int
    median: float
    mean: float
    most: int
    busiest: float
    """Share of all uses that the busiest tenth of the clients had."""
    gini: float
    """0: all as often; near 1: one client did everything."""


def counts(figures: Figures) -> NDArray[np.int64]:
    """Return how often each client was used, ascending; those never used too, if known."""
    used = np.sort(np.fromiter(figures.used.values(), np.int64, len(figures.used)))
    never = max(0, (figures.registered or 0) - used.size)
    return np.concatenate([np.zeros(never, np.int64), used])


def skew(ascending: NDArray[np.int64]) -> Skew:
    """Return how uneven counts are, at least one of which is above 0.

    Gini's coefficient of n ascending counts c_1..c_n with sum S:
    sum_i (2 i - n - 1) c_i / (n S), 0 for equal counts and (n - 1) / n where one has all.
    """
    n, total = ascending.size, int(ascending.sum())
    places = 2 * np.arange(1, n + 1, dtype=np.float64) - n - 1
    tenth = max(1, n // 10)
    return Skew(
        clients=n,
        never=int(np.count_nonzero(ascending == 0)),
        least=int(ascending[0]),
        median=float(np.median(ascending)),
        mean=total / n,
        most=int(ascending[-1]),
        busiest=float(ascending[-tenth:].sum() / total),
        gini=float(places @ ascending / (n * total)),
    )


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
    ascending = counts(figures)
    found, columns = skew(ascending), bins(ascending)
    words = about(_words(found))
    if len(columns) == 1:
        return section("Participation", words)
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
        says=f"Histogram of uses. {_words(found)}",
        at=middles(bars, x),
        rows="uses",
    )
    return section(
        "Participation",
        words,
        None if figures.registered else missing(unknown),
        figure("", picture, table("uses", ["rounds", "clients", "share of clients"], rows)),
    )


def _words(found: Skew) -> str:
    if found.least == found.most:
        who = "The one client" if found.clients == 1 else f"Each of the {found.clients:,} clients"
        return f"{who} was used in {found.most:,} rounds."
    took = found.clients - found.never
    return (
        f"{took:,} of {found.clients:,} clients took part. A client was used in "
        f"{number(round(found.mean, 2))} rounds on average (median {number(found.median)}, "
        f"least {found.least:,}, most {found.most:,}). The busiest tenth of them had "
        f"{_percent(found.busiest)} of all uses; Gini coefficient {found.gini:.2f} (0: all alike, "
        "near 1: a few did everything)."
    )


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"
