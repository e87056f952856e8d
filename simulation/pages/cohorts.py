"""Who takes part, by cohort of the fleet or site of the devices, and how the model does there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .across import across
from .blocks import about, figure, legend, section, table
from .markup import Markup, join, tag
from .plots import Axis, ranked, row_height
from .scale import Scale, percent
from ...server.signals import simulated

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .figures import Figures
    from ...server.signal_groups import Group

_MOST = 16
"""Groups that are drawn, those with most devices asked; the table has all."""


def cohorts(figures: Figures) -> Markup | None:
    """Return the section; None where there is nothing to compare."""
    found = figures.signals.groups
    if not found:
        return None
    kind = "cohort" if simulated(figures.run) else "site"
    drawn = sorted(found, key=lambda group: -group.asked)[:_MOST]
    levels = [name for name in ("p10", "p50", "p90") if any(name in g.accuracy for g in found)]
    rows = [
        (
            group.name or f"no {kind}",
            None if group.fleet is None else percent(group.fleet),
            percent(group.share_asked),
            percent(group.share_used),
            None if group.representation is None else round(group.representation, 3),
            *(group.accuracy.get(level) for level in levels),
        )
        for group in found
    ]
    heads = [kind, "share of the fleet", "of those asked", "of the updates", "updates for its part"]
    heads += [f"accuracy {level}" for level in levels]
    return section(
        f"By {kind}",
        about(_words(found, kind)),
        tag("div", _shares(drawn, kind), _spread(drawn, kind), class_="pair"),
        table("groups", heads, rows),
    )


def _words(found: Sequence[Group], kind: str) -> str:
    words = (
        f"Whose data the model learns from. Where a {kind} has fewer of the updates than of those "
        "asked, its devices are late, lost or refused more often than others."
    )
    known = [(group.representation, group) for group in found if group.representation is not None]
    if not known:
        return words
    (least, group) = min(known, key=lambda pair: pair[0])
    return (
        f"{words} Least heard for its size is {group.name or 'no ' + kind}: "
        f"{percent(group.share_used)} of the updates from {percent(group.fleet or 0.0)} of the "
        f"devices, {least:.2f} times its part."
    )


def _shares(found: Sequence[Group], kind: str) -> Markup:
    parts = {"of the fleet": 6, "of those asked": 1, "of the updates": 0}
    values = [
        {"of the fleet": g.fleet, "of those asked": g.share_asked, "of the updates": g.share_used}
        for g in found
    ]
    seen = {name: colour for name, colour in parts.items() if any(v[name] for v in values)}
    most = max(100 * v for each in values for v in each.values() if v is not None)
    x = Axis(name="share, %", scale=Scale.linear([most], floor=0.0, limits=(0.0, 100.0)))
    dots = [
        tag(
            "circle",
            class_=f"mark f{colour}",
            r=5.0,
            cx=f"{100 * x.scale.at(100 * share):.2f}%",
            cy=row_height(i),
        )
        for i, each in enumerate(values)
        for name, colour in seen.items()
        if (share := each[name]) is not None
    ]
    said = [f"{g.name} {percent(g.share_used)} of the updates" for g in found]
    picture = ranked(
        x=x,
        names=[g.name or f"no {kind}" for g in found],
        content=join(*dots),
        says="; ".join(said),
        at=[],
        rows="",
    )
    return figure("Shares", legend((n, f"bar f{c}") for n, c in seen.items()), picture)


def _spread(found: Sequence[Group], kind: str) -> Markup | None:
    """Return the middle and the tenths of the clients' accuracy; None where none is known."""
    told = [g for g in found if {"p10", "p50", "p90"} <= g.accuracy.keys()]
    if not told:
        return None
    values = [100 * value for group in told for value in group.accuracy.values()]
    x = Axis(name="accuracy, %", scale=Scale.linear(values, limits=(0.0, 100.0)))
    bars = [{"p10": (100 * g.accuracy["p10"], 100 * g.accuracy["p90"])} for g in told]
    dots = [
        tag(
            "circle",
            class_="mark f5",
            r=5.0,
            cx=f"{100 * x.scale.at(100 * g.accuracy['p50']):.2f}%",
            cy=row_height(i),
        )
        for i, g in enumerate(told)
    ]
    picture = ranked(
        x=x,
        names=[g.name or f"no {kind}" for g in told],
        content=join(across(bars, {"p10": 0}, x), *dots),
        says="; ".join(f"{g.name} median {percent(g.accuracy['p50'])}" for g in told),
        at=[],
        rows="",
    )
    samples = [("8 of 10 clients (p10 to p90)", "bar f0"), ("median client", "bar f5")]
    return figure("Accuracy of the clients, newest test", legend(samples), picture)
