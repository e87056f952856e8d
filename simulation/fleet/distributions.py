"""Distributions from which the numbers of devices are drawn, each device's by its own words.

    constant                 the same for all
    uniform a b              a + (b - a) u
    loguniform a b           a (b/a)^u
    lognormal median sigma   median exp(sigma z)
    normal mean deviation    mean + deviation z
    recorded values          one after another, and again from the first
    choice values weights    the value in whose share of [0, 1) u falls: an empirical distribution

u and v are the counter's numbers for the quantity and for its angle, z = sqrt(-2 ln(u + 1e-12))
cos(2 pi v) is normal (Box and Muller 1958). What lies outside the bounds is set to the bound.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from .counter import Purpose, uniform

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .counter import Word

    Reals = NDArray[np.float64]
    Numbers = NDArray[np.uint64]

_TINY = 1e-12
"""Added to u: its logarithm is finite."""


class Distribution(Protocol):
    """Where a quantity of devices comes from."""

    def draw(self, seed: int, purpose: Purpose, numbers: Numbers) -> Reals:
        """Return the quantity for some devices; each depends on the device's number only."""

    def ends(self) -> tuple[float, ...]:
        """Return the values that must lie in the quantity's range."""


@dataclass(frozen=True, slots=True)
class Constant:
    """The same for all."""

    value: float

    def draw(self, seed: int, purpose: Purpose, numbers: Numbers) -> Reals:
        """Return the value for each; see `Distribution`."""
        return np.full(len(numbers), self.value)

    def ends(self) -> tuple[float, ...]:
        """Return the value."""
        return (self.value,)


@dataclass(frozen=True, slots=True)
class Uniform:
    """From `low` to `high`, all alike."""

    low: float
    high: float

    def draw(self, seed: int, purpose: Purpose, numbers: Numbers) -> Reals:
        """Return it; see `Distribution`."""
        return self.low + (self.high - self.low) * uniform(seed, purpose, numbers)

    def ends(self) -> tuple[float, ...]:
        """Return both ends."""
        return self.low, self.high


@dataclass(frozen=True, slots=True)
class LogUniform:
    """From `low` to `high`, every order of magnitude alike; both above 0."""

    low: float
    high: float

    def draw(self, seed: int, purpose: Purpose, numbers: Numbers) -> Reals:
        """Return it; see `Distribution`."""
        width = math.log(self.high / self.low)
        return self.low * np.exp(width * uniform(seed, purpose, numbers))

    def ends(self) -> tuple[float, ...]:
        """Return both ends."""
        return self.low, self.high


@dataclass(frozen=True, slots=True)
class LogNormal:
    """Its logarithm is normal: half lie below `median`, two thirds within a factor e^sigma."""

    median: float
    sigma: float

    def draw(self, seed: int, purpose: Purpose, numbers: Numbers) -> Reals:
        """Return it; see `Distribution`."""
        return self.median * np.exp(self.sigma * normal(seed, purpose, numbers))

    def ends(self) -> tuple[float, ...]:
        """Return the median: what lies far from it is clipped."""
        return (self.median,)


@dataclass(frozen=True, slots=True)
class Normal:
    """Around `mean`; what is impossible is clipped."""

    mean: float
    deviation: float

    def draw(self, seed: int, purpose: Purpose, numbers: Numbers) -> Reals:
        """Return it; see `Distribution`."""
        return self.mean + self.deviation * normal(seed, purpose, numbers)

    def ends(self) -> tuple[float, ...]:
        """Return the mean."""
        return (self.mean,)


@dataclass(frozen=True, slots=True)
class Choice:
    """One of some values, as often as its weight says."""

    values: tuple[float, ...]
    weights: tuple[float, ...]

    def draw(self, seed: int, purpose: Purpose, numbers: Numbers) -> Reals:
        """Return it; see `Distribution`."""
        shares = np.cumsum(self.weights) / math.fsum(self.weights)
        places = np.searchsorted(shares[:-1], uniform(seed, purpose, numbers), side="right")
        return np.asarray(self.values, np.float64)[places]

    def ends(self) -> tuple[float, ...]:
        """Return all of them."""
        return self.values


@dataclass(frozen=True, slots=True)
class Clipped:
    """Another distribution, between two bounds."""

    inner: Distribution
    least: float
    most: float

    def draw(self, seed: int, purpose: Purpose, numbers: Numbers) -> Reals:
        """Return it; see `Distribution`."""
        return np.clip(self.inner.draw(seed, purpose, numbers), self.least, self.most)

    def ends(self) -> tuple[float, ...]:
        """Return the bounds that it has: where it has one, the inner ends do not count."""
        return tuple(end for end in (self.least, self.most) if math.isfinite(end))


@dataclass(frozen=True, slots=True, eq=False)
class Recorded:
    """Recorded values in turn: the k-th device of a cohort has the k-th, and so on round."""

    values: Reals

    def draw(self, seed: int, purpose: Purpose, numbers: Numbers) -> Reals:
        """Return each device's own; see `Distribution`."""
        return self.values[place_of(numbers) % len(self.values)]

    def ends(self) -> tuple[float, ...]:
        """Return the least and the largest."""
        return float(self.values.min()), float(self.values.max())


def place_of(numbers: Numbers) -> NDArray[np.int64]:
    """Return a device's place within its cohort: its number without the cohort's own half."""
    return (numbers & np.uint64(0xFFFFFFFF)).astype(np.int64)


def normal(seed: int, purpose: Purpose, numbers: Numbers, *words: Word) -> Reals:
    """Return standard normal numbers, each device's and each further word's own."""
    radius = np.sqrt(-2 * np.log(uniform(seed, purpose, numbers, *words) + _TINY))
    beside = purpose == Purpose.SPEED
    angle = Purpose.SPEED_ANGLE if beside else purpose + Purpose.ANGLE
    z: Reals = radius * np.cos(2 * math.pi * uniform(seed, angle, numbers, *words))
    return z
