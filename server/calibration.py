"""Whether a plan was right about a run's rounds: probability integral transform, and coverage.

A plan says with which probability a round takes at most so long. If it is right, the plan's own
probability of each measured time, F(t), is uniform on [0, 1] (the probability integral transform,
PIT; Dawid 1984). F is read off the plan's pairs (share p, seconds x):

    between two pairs    linear in the seconds
    before the first     linear from (0 s, share 0)
    after the last       1
    a time that several pairs have (a deadline)    spread evenly over their shares, and so counted
                         in parts in the histogram (Czado, Gneiting and Held 2009)

A time is not told from one that is half a per cent off: F goes from the one to the other.

Coverage is how many of n rounds took at most the plan's p50, p90, p99, with the interval that
Clopper and Pearson (1934) give for the share behind it: exact for binomial counts, so somewhat
wide. Rounds count as independent here. Those of one night are not, and then too many plans look
wrong.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    Reals = NDArray[np.float64]

LEVELS = (0.5, 0.9, 0.99)
"""Of the quantiles whose coverage is told."""
BINS = 10
CERTAINTY = 0.95
"""Of every interval here."""
FEW = 20
"""Rounds below which nothing is concluded."""
NEAR = 0.005
"""Share of a time by which it is not told from another: a plan whose rounds are all closed by one
deadline is not wrong by its milliseconds."""
_STEPS = 60
"""Of a bisection: far below what a double holds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """How many rounds were within one quantile of the plan."""

    level: float
    seconds: float
    """The plan's quantile."""
    within: int
    rounds: int
    low: float
    high: float
    """Interval for the share of rounds that are within it; rounds that are `NEAR` it may be."""

    @property
    def fits(self) -> bool:
        """Whether the plan's share lies in the interval."""
        return self.low <= self.level <= self.high


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """How a plan did."""

    rounds: int
    coverage: Sequence[Coverage]
    pit: Sequence[tuple[float, float]]
    """Of each round from which to which share of the plan's rounds its time lies."""
    histogram: Sequence[float]
    """Rounds, some in parts, by tenths of the transform."""
    low: int
    high: int
    """Within which one bar of it lies with `CERTAINTY` if the plan is right."""

    @property
    def verdict(self) -> str:
        """Say in one sentence whether the plan was right."""
        return _verdict(self)


def calibration(
    pairs: Sequence[tuple[float, float]], seconds: Sequence[float]
) -> Calibration | None:
    """Compare the rounds of a run with its plan.

    Args:
        pairs: Share of the rounds and seconds within which they are done, both ascending.
        seconds: Of each round that was closed, whatever came of it.

    Returns:
        None where there is nothing to compare.
    """
    if not pairs or not seconds:
        return None
    shares, times = np.array(pairs, np.float64).T
    measured = np.array(seconds, np.float64)
    low, high = transformed(measured, shares, times)
    n = len(measured)
    least, most = band(n, 1 / BINS)
    return Calibration(
        rounds=n,
        coverage=[
            _coverage(level, at, measured)
            for level in LEVELS
            if (at := _quantile(level, shares, times)) is not None
        ],
        pit=[(float(a), float(b)) for a, b in zip(low, high, strict=True)],
        histogram=histogram(low, high),
        low=least,
        high=most,
    )


def transformed(
    measured: Reals, shares: Reals, times: Reals, near: float = NEAR
) -> tuple[Reals, Reals]:
    """Return between which shares of the plan's rounds each time lies.

    Args:
        measured: Seconds, shape (n,).
        shares: Of the plan's pairs, ascending.
        times: Their seconds, ascending.
        near: Share of a time by which it is not told from another.
    """
    low = _passed(measured * (1 - near), shares, times, upto=False)
    return low, _passed(measured * (1 + near), shares, times, upto=True)


def _passed(at: Reals, shares: Reals, times: Reals, *, upto: bool) -> Reals:
    """Return the plan's share of rounds below some times, or up to them."""
    p, x = np.concatenate([[0.0], shares, [1.0]]), np.concatenate([[0.0], times, [np.inf]])
    i = np.searchsorted(times, at, "right" if upto else "left")
    with np.errstate(invalid="ignore"):
        part = np.where(x[i + 1] > x[i], (at - x[i]) / (x[i + 1] - x[i]), 1.0)
    found = p[i] + part * (p[i + 1] - p[i])
    several = len(times) > 1 and times[-2] == times[-1]
    over = at >= times[-1] if upto and several else at > times[-1]
    whole: Reals = np.where(over, 1.0, found)
    return whole


def histogram(low: Reals, high: Reals) -> list[float]:
    """Return how many of some intervals in [0, 1] lie in each tenth, in parts where they cross."""
    edges = np.linspace(0.0, 1.0, BINS + 1)
    width = high - low
    found = np.zeros(BINS)
    for i in range(BINS):
        inside = np.clip(np.minimum(high, edges[i + 1]) - np.maximum(low, edges[i]), 0.0, None)
        last = edges[i + 1] == 1.0
        point = (low >= edges[i]) & ((low < edges[i + 1]) | last)
        found[i] = np.where(width > 0, inside / np.where(width > 0, width, 1.0), point).sum()
    return [float(value) for value in found]


def _quantile(level: float, shares: Reals, times: Reals) -> float | None:
    """Return the plan's seconds for a share; None where its pairs do not reach that far."""
    if not shares[0] <= level <= shares[-1]:
        return None
    return float(np.interp(level, shares, times))


def _coverage(level: float, at: float, measured: Reals) -> Coverage:
    n = len(measured)
    surely, within, perhaps = (
        int(np.count_nonzero(measured * factor <= at)) for factor in (1 + NEAR, 1.0, 1 - NEAR)
    )
    low, high = interval(surely, n)[0], interval(perhaps, n)[1]
    return Coverage(level=level, seconds=at, within=within, rounds=n, low=low, high=high)


@lru_cache(maxsize=1024)
def interval(count: int, n: int, certainty: float = CERTAINTY) -> tuple[float, float]:
    """Return Clopper's and Pearson's interval for the share behind `count` of `n`."""
    tail = (1 - certainty) / 2
    low = 0.0 if count == 0 else _solved(lambda p: 1 - cumulative(n, p)[count - 1] < tail)
    high = 1.0 if count == n else _solved(lambda p: cumulative(n, p)[count] > tail)
    return low, high


def band(n: int, share: float, certainty: float = CERTAINTY) -> tuple[int, int]:
    """Return the counts between which a Binomial(n, share) lies with at least `certainty`."""
    tail = (1 - certainty) / 2
    reached = cumulative(n, share)
    low = int(np.searchsorted(reached, tail, "right"))
    return low, int(np.searchsorted(reached, 1 - tail, "left"))


def cumulative(n: int, share: float) -> Reals:
    """Return P[Binomial(n, share) <= k] for k = 0..n, of terms formed in logarithms; 0 < p < 1."""
    k = np.arange(n + 1)
    factorials = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, n + 1)))])
    logs = factorials[n] - factorials - factorials[::-1]
    terms = np.exp(logs + k * math.log(share) + (n - k) * math.log1p(-share))
    found: Reals = np.minimum(np.cumsum(terms), 1.0)
    return found


def _solved(holds: Callable[[float], bool]) -> float:
    """Return the largest p for which something holds that holds up to there."""
    low, high = 0.0, 1.0
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return (low + high) / 2


def _verdict(found: Calibration) -> str:
    n = found.rounds
    if n < FEW:
        return f"{n} rounds are too few to judge the plan by: it takes {FEW}."
    wrong = {c.level: c for c in found.coverage if not c.fits}
    for level in (0.9, 0.5, 0.99):  # what people plan by comes first
        if (c := wrong.get(level)) is None:
            continue
        name, slower = f"p{100 * level:.0f}", n - c.within
        due = f"{(1 - level) * n:.3g}"
        if c.high < level:
            return (
                f"The plan was too hopeful: {slower} of {n} rounds were slower than its {name}, "
                f"where {due} were to be expected."
            )
        few = f"only {slower}" if slower else "none"
        return (
            f"The plan was too cautious: {few} of {n} rounds were slower than its {name}, "
            f"where {due} were to be expected."
        )
    told = next((c for c in found.coverage if c.level == 0.9), None)  # noqa: PLR2004 - p90
    if told is None:
        return f"Nothing in {n} rounds speaks against the plan."
    return (
        f"The plan was right as far as {n} rounds can tell: {told.within} of them were within its "
        f"p90, where {0.9 * n:.3g} were to be expected."
    )
