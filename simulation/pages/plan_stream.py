"""Of an asynchronous plan: how old updates are, and whose they are."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from .bars import Bar, middles, stacks
from .blocks import about, figure, open_table, section, table
from .markup import Markup, tag
from .participation import MOST
from .plots import Axis, area
from .scale import Scale, percent

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    Plan = Mapping[str, Any]


def stream(plan: Plan) -> Markup:
    """Return the section about staleness and participation."""
    told = plan["asynchronous"]
    stale, whose = told["lines"]
    share = {each["cohort"]: each["share"] for each in plan["clients"]}
    rows = [
        (name, percent(share[name] or 0.0), percent(part or 0.0))
        for name, part in told["updates"].items()
    ]
    heads = ["cohort", "share of the devices", "share of the updates"]
    return section(
        "How old updates are, and whose",
        about(
            f"{told['at_work']:,} clients are always at work, and {told['buffer']:,} updates make "
            f"a version. {stale[:1].upper()}{stale[1:]}."
        ),
        _ages(told["staleness"]["shares"]),
        about(f"{whose[:1].upper()}{whose[1:]}."),
        tag("div", open_table(heads, rows, "Whose the updates are")),
    )


def _ages(shares: Sequence[Sequence[float]]) -> Markup | None:
    """Return a histogram; None where no update is ever used."""
    if not shares:
        return None
    oldest = int(max(age for age, _ in shares))
    width = max(1, math.ceil((oldest + 1) / MOST))
    parts = [0.0] * (oldest // width + 1)
    for age, share in shares:
        parts[int(age) // width] += 100 * share
    bars = [
        Bar(start=place * width - 0.5, end=(place + 1) * width - 0.5, parts={"updates": part})
        for place, part in enumerate(parts)
    ]
    ends = [bars[0].start, bars[-1].end]
    x = Axis(name="versions old", scale=Scale.linear(ends, whole=True, tight=True))
    y = Axis(name="% of the updates", scale=Scale.linear([max(parts)], floor=0.0))
    first = [round(bar.start + 0.5) for bar in bars]
    rows = [
        (f"{a:,}" if width == 1 else f"{a:,} to {a + width - 1:,}", percent(part / 100))
        for a, part in zip(first, parts, strict=True)
    ]
    drawn = area(
        x=x,
        y=y,
        content=stacks(bars, {"updates": 0}, x, y),
        says="Histogram of how many versions old the updates are.",
        at=middles(bars, x),
        rows="ages",
    )
    return figure("", drawn, table("ages", ["versions old", "share of the updates"], rows))
