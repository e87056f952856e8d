"""How old the models were that the updates of an asynchronous run began from."""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING

from .bars import Bar, middles, stacks
from .blocks import about, figure, legend, section, table
from .learning import axis, chosen
from .markup import Markup, tag
from .participation import MOST
from .plots import Axis, Curve, area, lines
from .scale import Scale, number
from ...server.signals import ages
from ...server.signals import staleness as measured

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .figures import Figures


def staleness(figures: Figures) -> Markup | None:
    """Return the section about the ages of updates; None where no round records them."""
    counts = [ages(point.metrics) for point in figures.points]
    every: Counter[int] = Counter()
    for found in counts:
        every.update(found)
    told = measured(every)
    if told is None:
        return None
    words = (
        f"How many models were made between the start of an update and its use. Of "
        f"{sum(every.values()):,} updates the mean is {number(round(told[0], 2))}, 90 % were at "
        f"most {told[1]:,} versions old, the oldest {told[2]:,}."
    )
    both = tag("div", _histogram(every), _over_rounds(figures, counts), class_="pair")
    return section("Staleness", about(words), both)


def _histogram(every: Mapping[int, int]) -> Markup:
    width = max(1, math.ceil((max(every) + 1) / MOST))
    bars = [
        Bar(
            start=first - 0.5,
            end=first + width - 0.5,
            parts={"updates": float(sum(every.get(age, 0) for age in range(first, first + width)))},
        )
        for first in range(0, max(every) + 1, width)
    ]
    ends = Scale.linear([bars[0].start, bars[-1].end], whole=True, tight=True)
    x = Axis(name="versions old", scale=ends)
    tops = Scale.linear([bar.total for bar in bars], floor=0.0, whole=True)
    y = Axis(name="updates", scale=tops)
    rows = [
        (f"{a:,}" if width == 1 else f"{a:,} to {a + width - 1:,}", int(bar.total))
        for bar in bars
        for a in (int(bar.start + 0.5),)
    ]
    drawn = area(
        x=x,
        y=y,
        content=stacks(bars, {"updates": 0}, x, y),
        says="Histogram of the ages of all updates.",
        at=middles(bars, x),
        rows="ages",
    )
    return figure("All updates", drawn, table("ages", ["versions old", "updates"], rows))


def _over_rounds(figures: Figures, counts: list[dict[int, int]]) -> Markup:
    told = [measured(found) for found in counts]
    places = chosen(
        [[each and float(each[2]) for each in told], [each and each[0] for each in told]]
    )
    places = [place for place in places if told[place] is not None]
    numbers = [float(figures.points[place].number) for place in places]
    curves = {
        name: [float(each[i]) for place in places if (each := told[place]) is not None]
        for i, name in enumerate(("mean", "90 % at most", "oldest"))
    }
    x = axis("rounds", numbers)
    y = Axis(name="versions old", scale=Scale.linear([*curves["oldest"]], floor=0.0))
    drawn = [Curve(name=n, values=v, colour=i) for i, (n, v) in enumerate(curves.items())]
    picture = area(
        x=x,
        y=y,
        content=lines(numbers, drawn, [], x, y),
        says="Mean, 90th percentile and oldest over the rounds.",
        at=[x.scale.at(number) for number in numbers],
        rows="staleness",
    )
    samples = legend([(curve.name, f"line s{curve.colour}") for curve in drawn])
    rows = list(zip(map(int, numbers), *curves.values(), strict=True))
    return figure("Over the rounds", samples, picture, table("staleness", ["round", *curves], rows))
