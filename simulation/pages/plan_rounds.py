"""Of a plan: how long a round takes, and what the hour of the day makes of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .across import upright
from .bars import Bar, middles, stacks
from .blocks import about, figure, legend, missing, section, table
from .markup import Markup, join, tag
from .plots import Axis, Band, Curve, area, lines
from .scale import TIMES, Scale, duration, percent

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    Plan = Mapping[str, Any]

MARKS = {"p50": "half of the rounds", "p90": "9 of 10", "p99": "99 of 100"}
"""Quantiles that are drawn, and how many rounds are over by then."""
_BINS = 40
_FAR, _TAIL = 2.0, 1.5
"""A deadline so many times p99 is said, and not drawn; no more is rounds so many times p99: nothing
else would be seen."""
_APART = 0.5
_CLOCK = Scale(0.0, 24.0, tuple(float(hour) for hour in range(0, 25, 3)))
_SAME = 0.02
"""Share of a value by which another one looks the same."""
_RARE = 1e-4
"""Rounds without quorum that no picture would show."""


def curve(pairs: Sequence[Sequence[float | None]]) -> tuple[NDArray[np.float64], NDArray[Any]]:
    """Return shares and seconds of a plan's quantiles, both ascending, those that are numbers."""
    found = np.array([p for p in pairs if p[0] is not None and p[1] is not None], np.float64)
    if not found.size:
        return np.empty(0), np.empty(0)
    return found[:, 0], np.maximum.accumulate(found[:, 1])


def lengths(plan: Plan) -> Markup:
    """Return the section about a round's time."""
    title, told = "How long a round takes", plan["round"]
    flows = plan.get("asynchronous") is not None
    if flows:
        title = "From one version to the next"
    shares, seconds = curve(told["quantiles"])
    marks = {name: told[name] for name in MARKS if told[name] is not None}
    if not seconds.size or not marks:
        return section(title, missing("No round is expected to end: see the warnings above."))
    said = "; ".join(f"{MARKS[name]} within {duration(value)}" for name, value in marks.items())
    words = f"From asking the clients to closing the round: {said}. {_waits(told['wait'])}"
    if flows:
        words = f"Until the buffer is full again: {said}."
    if seconds[-1] - seconds[0] <= 1e-9 * max(1.0, seconds[-1]):
        return section(title, about(words), missing("Every round takes the same time."))
    return section(title, about(words), _histogram(plan, shares, seconds, marks))


def _waits(wait: Mapping[str, float | None]) -> str:
    late, typical = wait.get("p90"), wait.get("p50")
    if late is None or typical is None:
        return "Some rounds wait for ever until enough devices are online."
    if late <= 0:
        return "It hardly ever waits until enough devices are online."
    half = "not at all" if typical <= 0 else f"at most {duration(typical)}"
    return (
        f"Before it asks, it waits until enough devices are online: {half} in half of the "
        f"rounds, at most {duration(late)} in 9 of 10."
    )


def _histogram(
    plan: Plan,
    shares: NDArray[np.float64],
    seconds: NDArray[np.float64],
    marks: Mapping[str, float],
) -> Markup:
    deadline, end = plan["deadline"]["set"], min(seconds[-1], _TAIL * max(marks.values()))
    near = deadline is not None and deadline <= max(end, _FAR * max(marks.values()))
    edges = np.linspace(seconds[0], end, _BINS + 1)
    below = np.interp(edges, *_steps(seconds, shares))
    below[0] = 0.0
    if end == seconds[-1] and plan["round"]["quantiles"][-1][1] is not None:
        below[-1] = 1.0  # the last two thousandth parts lie beyond what is drawn
    bars = [
        Bar(start=float(a), end=float(b), parts={"rounds": float(inside)})
        for a, b, inside in zip(edges[:-1], edges[1:], np.diff(below), strict=True)
    ]
    ends = [*edges[[0, -1]], *marks.values(), *([deadline] if near else [])]
    x = Axis(name="time of a round", scale=Scale.linear(ends, units=TIMES, floor=_floor(ends)))
    tops = [100 * bar.total for bar in bars]
    y = Axis(name="% of the rounds", scale=Scale.linear(tops, floor=0.0))
    drawn = [Bar(start=b.start, end=b.end, parts={"rounds": 100 * b.total}) for b in bars]
    lines_ = {i: value for i, value in enumerate(marks.values(), 1)}
    names = [
        (f"{name}: {MARKS[name]} take at most {duration(value)}", f"line s{i}")
        for i, (name, value) in enumerate(marks.items(), 1)
    ]
    if near:
        lines_[5] = deadline
        names.append((f"deadline: {duration(deadline)}", "line s5"))
    elif deadline is not None:
        names.append((f"deadline: {duration(deadline)}, beyond the picture", "line s5"))
    rows = [
        (f"{duration(b.start)} to {duration(b.end)}", percent(b.total), percent(float(upto)))
        for b, upto in zip(bars, below[1:], strict=True)
    ]
    picture = area(
        x=x,
        y=y,
        content=join(stacks(drawn, {"rounds": 0}, x, y), upright(lines_, x)),
        says=f"Histogram of a round's expected time. {'; '.join(name for name, _ in names)}.",
        at=middles(bars, x),
        rows="lengths",
    )
    left = 1.0 - float(below[-1])
    more = f"{percent(left)} of the rounds take longer than is drawn." if left > _RARE else ""
    heads = ["a round takes", "share of the rounds", "share that are over by then"]
    numbers = table("lengths", heads, rows)
    return figure("", legend(names), picture, about(more) if more else None, numbers)


def _floor(ends: Sequence[float]) -> float | None:
    """Return 0 where the axis is to begin there: not where all lies far from it."""
    return None if min(ends) > _APART * max(ends) else 0.0


def _steps(
    seconds: NDArray[np.float64], shares: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the distribution's corners: of quantiles with one value the last share counts."""
    last = np.append(np.diff(seconds) > 0, True)
    return seconds[last], shares[last]


def hours(plan: Plan) -> Markup | None:
    """Return the section about the hour of the day; None where the plan has none."""
    told = plan["round"]["by_hour"]
    if not told:
        return None
    title = "By the hour of the day"
    if all(_alike([hour[name] for hour in told]) for name in ("p50", "p90", "miss", "online")):
        return section(title, about("The hour at which a round begins makes no difference."))
    rows = [
        (
            f"{hour['hour']:02d}:00",
            *(value and duration(value) for value in (hour["p50"], hour["p90"])),
            *(None if hour[k] is None else percent(hour[k]) for k in ("miss", "online")),
        )
        for hour in told
    ]
    heads = ["begins at", "p50", "p90", "without quorum", "online"]
    return section(
        title,
        about(_when(told)),
        tag("div", _times(told), _online(told), class_="pair"),
        _misses(told),
        table("hours", heads, rows),
    )


def _alike(values: Sequence[float | None]) -> bool:
    """Whether no picture would show that values differ."""
    found = [value for value in values if value is not None]
    if len(found) < len(values):
        return not found
    return max(found) - min(found) <= max(_SAME * max(found), _RARE)


def _when(told: Sequence[Mapping[str, Any]]) -> str:
    found = [(hour["p90"], hour["hour"]) for hour in told if hour["p90"] is not None]
    if not found:
        return "A round that begins at a given hour, by the fleet's clock."
    (best, at), (worst, then) = min(found), max(found)
    if len(found) == 1:
        return f"All rounds that were looked at begin in the hour from {at:02d}:00."
    return (
        f"A round that begins at a given hour, by the fleet's clock. The quickest begin at "
        f"{at:02d}:00 (9 of 10 within {duration(best)}), the slowest at {then:02d}:00 "
        f"({duration(worst)})."
    )


def _middles(told: Sequence[Mapping[str, Any]]) -> list[float]:
    return [hour["hour"] + 0.5 for hour in told]


def _times(told: Sequence[Mapping[str, Any]]) -> Markup | None:
    curves = {name: [hour[name] for hour in told] for name in ("p50", "p90")}
    values = [value for each in curves.values() for value in each if value is not None]
    if len(values) <= len(curves):
        return None  # a curve of one hour is none
    x = Axis(name="hour at which the round begins", scale=_CLOCK)
    y = Axis(name="time of a round", scale=Scale.linear(values, units=TIMES, floor=0.0))
    at = _middles(told)
    drawn = [Curve(name=n, values=v, colour=i) for i, (n, v) in enumerate(curves.items())]
    band = Band(name="between", low=curves["p50"], high=curves["p90"], colour=0)
    picture = area(
        x=x,
        y=y,
        content=lines(at, drawn, [band], x, y),
        says=f"A round's p50 and p90 by the hour at which it begins. {_when(told)}",
        at=[x.scale.at(value) for value in at],
        rows="hours",
    )
    samples = [("p50: half take at most so long", "line s0"), ("p90: 9 of 10", "line s1")]
    return figure("Time of a round", legend(samples), picture)


def _online(told: Sequence[Mapping[str, Any]]) -> Markup | None:
    shares = [None if hour["online"] is None else 100 * hour["online"] for hour in told]
    values = [share for share in shares if share is not None]
    if not values:
        return None
    x = Axis(name="hour of the day", scale=_CLOCK)
    y = Axis(name="% of the devices", scale=Scale.linear(values, floor=0.0, limits=(0.0, 100.0)))
    at = _middles(told)
    picture = area(
        x=x,
        y=y,
        content=lines(at, [Curve(name="online", values=shares, colour=2)], [], x, y),
        says=f"Devices online: from {min(values):.3g} to {max(values):.3g} %.",
        at=[x.scale.at(value) for value in at],
        rows="hours",
    )
    return figure("Devices online", picture)


def _misses(told: Sequence[Mapping[str, Any]]) -> Markup | None:
    """Return how often a round has too few updates by hour; None where that is rare throughout."""
    found = [(hour["hour"], 100 * (hour["miss"] or 0.0)) for hour in told]
    most = max(share for _, share in found)
    if most < 100 * _RARE:
        return None
    bars = [Bar(start=hour, end=hour + 1.0, parts={"misses": share}) for hour, share in found]
    x = Axis(name="hour at which the round begins", scale=_CLOCK)
    y = Axis(name="% of the rounds", scale=Scale.linear([most], floor=0.0, limits=(0.0, 100.0)))
    picture = area(
        x=x,
        y=y,
        content=stacks(bars, {"misses": 1}, x, y),
        says=f"Rounds without quorum by hour: at most {most:.3g} %.",
        at=middles(bars, x),
        rows="hours",
    )
    return figure("Rounds without quorum", picture)
