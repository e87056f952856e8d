"""Whether a plan was right: how many rounds were within its times, and where in it they fell."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .across import across
from .bars import Bar, middles, stacks
from .blocks import about, figure, legend, section, table
from .markup import Markup, join, tag
from .plots import Axis, Band, Curve, area, lines, ranked, row_height
from .scale import Scale, duration, percent
from ...server.calibration import BINS, CERTAINTY

if TYPE_CHECKING:
    from ...server.calibration import Calibration


def calibrated(found: Calibration) -> Markup:
    """Return the section about how often the plan was right."""
    words = (
        f"Of {found.rounds:,} rounds, how many were within the times that the plan gave, and in "
        "which tenth of the plan's own probabilities each fell. Rounds are counted as independent "
        "here; those of one night are not, and so a plan may look somewhat worse than it is."
    )
    return section(
        "Was the plan right?",
        tag("p", found.verdict, class_="first"),
        about(words),
        tag("div", _coverage(found), _histogram(found), class_="pair"),
    )


def _coverage(found: Calibration) -> Markup:
    """Return the share of rounds within each quantile beside what the plan gave."""
    names = [f"p{100 * c.level:.3g}" for c in found.coverage]
    x = Axis(name="% of the rounds within it", scale=Scale.linear([0.0, 100.0]))
    bars = [{"interval": (100 * c.low, 100 * c.high)} for c in found.coverage]
    dots = [
        tag(
            "circle",
            class_=f"mark f{colour}",
            r=5.0,
            cx=f"{100 * x.scale.at(100 * share):.2f}%",
            cy=row_height(i),
        )
        for i, c in enumerate(found.coverage)
        for share, colour in ((c.level, 1), (c.within / c.rounds, 5))
    ]
    said = [
        f"{c.within} of {c.rounds} within p{100 * c.level:.3g}, the plan gave {percent(c.level)}"
        for c in found.coverage
    ]
    picture = ranked(
        x=x,
        names=names,
        content=join(across(bars, {"interval": 0}, x), *dots),
        says="; ".join(said),
        at=[],
        rows="",
    )
    samples = [
        ("the plan", "bar f1"),
        ("the run", "bar f5"),
        (f"{percent(CERTAINTY)} interval of what is behind it", "bar f0"),
    ]
    rows = [
        (
            f"p{100 * c.level:.3g}",
            duration(c.seconds),
            percent(c.level),
            f"{c.within:,} of {c.rounds:,}",
            percent(c.within / c.rounds),
            f"{percent(c.low)} to {percent(c.high)}",
        )
        for c in found.coverage
    ]
    heads = ["", "the plan's time", "the plan's share", "rounds within it", "share", "interval"]
    return figure(
        "Rounds within the plan's times", legend(samples), picture, table("coverage", heads, rows)
    )


def _histogram(found: Calibration) -> Markup:
    """Return the histogram of the probability integral transform and its band."""
    bars = [
        Bar(start=100 * i / BINS, end=100 * (i + 1) / BINS, parts={"rounds": count})
        for i, count in enumerate(found.histogram)
    ]
    due = found.rounds / BINS
    x = Axis(
        name="where the plan had put it: 0 quickest, 100 slowest, %",
        scale=Scale.linear([0.0, 100.0]),
    )
    y = Axis(name="rounds", scale=Scale.linear([*found.histogram, found.high], floor=0.0))
    ends = [0.0, 100.0]
    band = Band(name="", low=[found.low] * 2, high=[found.high] * 2, colour=6, strong=True)
    content = join(
        lines(ends, [], [band], x, y),
        stacks(bars, {"rounds": 0}, x, y),
        lines(ends, [Curve(name="due", values=[due, due], colour=1)], [], x, y),
    )
    outside = sum(not found.low <= count <= found.high for count in found.histogram)
    picture = area(
        x=x,
        y=y,
        content=content,
        says=f"Histogram of the transform: {outside} of {BINS} bars outside the band.",
        at=middles(bars, x),
        rows="pit",
    )
    samples = [
        ("rounds", "bar f0"),
        (f"as many as in a right plan: {due:.3g}", "line s1"),
        (f"{percent(CERTAINTY)} of its bars are in here", "band strong f6"),
    ]
    words = (
        "High bars at the right: rounds were slower than planned; at the left: quicker; at both "
        "ends: the plan was too sure; in the middle: it was too unsure."
    )
    rows = [(f"{b.start:.0f} to {b.end:.0f} %", round(b.total, 2)) for b in bars]
    heads = ["tenth of the plan", "rounds"]
    return figure(
        "In which tenth of the plan rounds fell (PIT)",
        legend(samples),
        picture,
        about(words),
        table("pit", heads, rows),
    )
