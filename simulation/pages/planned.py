"""A run beside the plan that it was started with: its rounds before the plan's bands."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from .blocks import about, figure, legend, missing, open_table, section, table
from .calibrated import calibrated
from .learning import axis, chosen
from .markup import Markup, join
from .plots import Axis, Band, Curve, area, lines
from .scale import TIMES, Scale, duration, percent, size
from ...protocol.errors import SettingsError
from ...server.planned_rounds import closed, compared

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .figures import Figures
    from ...server.run_plan import RunPlan
    from ...server.watch_terms import Band as Interval

_TITLE = "Beside the plan"


def plan(figures: Figures) -> list[Markup]:
    """Return the sections about the run's plan; none for a run without one."""
    try:
        found = figures.plan
    except SettingsError as error:
        return [section(_TITLE, missing(f"The record's plan cannot be read: {error}"))]
    if found is None:
        return []
    measured = closed(figures.records)
    told = compared(figures.run, figures.records)
    if told is None:
        line = "No round was closed yet, or the plan expected none to be: nothing to compare."
        return [section(_TITLE, missing(line))]
    return [
        section(_TITLE, about(_words(found)), _rounds(found, measured), _rows(figures, found)),
        calibrated(told),
    ]


def _words(found: RunPlan) -> str:
    return (
        "Grey: where 9 of 10 rounds should lie by the plan (p5 to p95), and all but 1 in 1,000 "
        "(p0.05 to p99.95). How many rounds outside stop a run depends on its length "
        f"(docs/planning.md). The plan was made for {found.clients:,} clients; its digest begins "
        "with "
        f"{found.digest[:12]}."
    )


def _rounds(found: RunPlan, measured: Sequence[tuple[int, float]]) -> Markup:
    """Return the measured rounds before the plan's bands."""
    values = [seconds for _, seconds in measured]
    places = chosen([values])
    numbers = [float(measured[place][0]) for place in places]
    drawn = [values[place] for place in places]
    wide = found.expected.duration
    level = _at(found, 0.5)
    edges = [] if wide is None else [wide.low, wide.high, wide.low3, wide.high3]
    x = axis("rounds", numbers)
    y = Axis(
        name="time of a round",
        scale=Scale.linear([*drawn, *edges, level], units=TIMES, floor=0.0),
    )
    ends = [x.scale.low, x.scale.high]
    bands = [] if wide is None else _bands(wide)
    content = join(
        lines(ends, [], bands, x, y),
        lines(ends, [Curve(name="p50", values=[level, level], colour=1)], [], x, y),
        lines(numbers, [Curve(name="measured", values=drawn, colour=0)], [], x, y),
    )
    out = 0 if wide is None else sum(not wide.low <= value <= wide.high for value in values)
    says = f"Measured rounds before the plan's bands: {out} of {len(values)} outside p5 to p95."
    picture = area(
        x=x, y=y, content=content, says=says, at=[x.scale.at(n) for n in numbers], rows="planned"
    )
    samples = [("measured", "line s0"), ("the plan's p50", "line s1")]
    samples += [] if wide is None else [("the plan's p5 to p95", "band strong f6")]
    samples += [] if wide is None else [("p0.05 to p99.95", "band f6")]
    rows = [(int(n), duration(v), _where(v, wide)) for n, v in zip(numbers, drawn, strict=True)]
    return figure(
        "Time of each round",
        legend(samples),
        picture,
        table("planned", ["round", "took", "by the plan"], rows),
    )


def _at(found: RunPlan, level: float) -> float:
    shares, seconds = zip(*found.quantiles, strict=True)
    return float(np.interp(level, shares, seconds))


def _bands(wide: Interval) -> list[Band]:
    pairs = {"far": (wide.low3, wide.high3, False), "near": (wide.low, wide.high, True)}
    return [
        Band(name=name, low=[low, low], high=[high, high], colour=6, strong=strong)
        for name, (low, high, strong) in pairs.items()
    ]


def _where(value: float, wide: Interval | None) -> str | None:
    if wide is None:
        return None
    if wide.low <= value <= wide.high:
        return "within p5 to p95"
    side = "above" if value > wide.high else "below"
    return (
        f"{side} p0.05 to p99.95" if not wide.low3 <= value <= wide.high3 else f"{side} p5 to p95"
    )


def _rows(figures: Figures, found: RunPlan) -> Markup:
    """Return what the plan said of other numbers than the time, and what came."""
    expected, signals = found.expected, figures.signals
    tried = sum(signals.attempts.values())
    rows: list[tuple[object, ...]] = []
    for name, level in (("half of the rounds take at most", 0.5), ("9 of 10 take at most", 0.9)):
        values = [seconds for _, seconds in closed(figures.records)]
        rows.append(
            (name, duration(_at(found, level)), duration(float(np.quantile(values, level))))
        )
    if expected.miss is not None and tried:
        failed = signals.attempts.get("aborted", 0)
        rows.append(("tries without quorum", percent(expected.miss), percent(failed / tried)))
        lost = found.kept["quorum"].get("run_lost")  # at all tries of some round
        if type(lost) in {int, float} and 0 <= lost <= 1:
            rows.append(
                ("runs that end early, a round having failed at all tries", percent(lost), None)
            )
    if (refused := expected.rejections) is not None:
        values = [v for v in signals.curve("rejections") if v is not None]
        if values:
            middle = percent(float(np.median(values)))
            rows.append(("updates refused", _interval(refused), f"{middle} in the median round"))
    shares = {group.name: group.share_used for group in signals.groups}
    rows += [
        (f"updates that come from {name}", _interval(wide), percent(shares[name]))
        for name, wide in expected.participation.items()
        if name in shares
    ]
    if expected.traffic:
        moved = [
            up + down
            for up, down in zip(signals.curve("bytes.up"), signals.curve("bytes.down"), strict=True)
            if up is not None and down is not None
        ]
        mean = size(math.fsum(moved) / len(moved)) if moved else None
        rows.append(("bytes of a round, on average", size(expected.traffic), mean))
    return open_table(["", "the plan", "the run"], rows, "The run beside its plan")


def _interval(wide: Interval) -> str:
    low, high = percent(wide.low), percent(wide.high)
    return low if low == high else f"{low} to {high}"
