"""Axes: round numbers to stand on them, and units that people read."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

TIMES = (("ms", 1e-3), ("s", 1.0), ("min", 60.0), ("h", 3600.0), ("days", 86400.0))
SIZES = (("B", 1.0), ("kB", 1e3), ("MB", 1e6), ("GB", 1e9), ("TB", 1e12))
_LOG_FROM = 30.0
"""Largest over smallest value from which a loss is drawn on a logarithmic axis."""
_LARGE = 1e5
_FINE = 1e-9
"""Share of a value below which values count as one."""
_ROOM = 0.5
"""Of a step: how far a first tick must be from the beginning for that to be a tick, too."""
_FEW_POWERS = 4
"""Powers of ten up to which a logarithmic axis has ticks between them."""
_EXACT, _THOUSAND, _TINY = 1e15, 1000, 1e-4
_NEVER, _LEAST_PERCENT, _NEARLY_ALL = 1e-9, 0.001, 99.0


@dataclass(frozen=True)
class Scale:
    """From values to the share 0 to 1 of an axis."""

    low: float
    high: float
    ticks: tuple[float, ...]
    unit: str = ""
    """Behind the axis's name, in brackets."""
    factor: float = 1.0
    """Of the unit: what a tick is divided by before it is written."""
    log: bool = False

    def at(self, value: float) -> float:
        """Return where a value stands, 0 to 1."""
        low, high = (math.log(self.low), math.log(self.high)) if self.log else (self.low, self.high)
        where = (math.log(max(value, self.low)) if self.log else value) - low
        return min(1.0, max(0.0, where / (high - low)))

    def label(self, tick: float) -> str:
        """Return a tick as text."""
        return number(tick / self.factor)

    @classmethod
    def linear(
        cls,
        values: Sequence[float],
        *,
        units: Sequence[tuple[str, float]] = (("", 1.0),),
        floor: float | None = None,
        limits: tuple[float, float] = (-math.inf, math.inf),
        whole: bool = False,
        tight: bool = False,
    ) -> Self:
        """Return the scale of finite values.

        Args:
            values: What has to fit, at least one.
            units: Names and factors, ascending; the largest that the values reach is taken.
            floor: Where the axis begins, if the values do not say.
            limits: What the axis does not go beyond, unless values do.
            whole: Whether there are whole numbers only.
            tight: Whether the axis ends with the values and not at the next tick.
        """
        low = min(values) if floor is None else min(floor, *values)
        high = max(*values, low)
        unit, factor = max(
            ((n, f) for n, f in units if f <= max(high, units[0][1])), key=lambda found: found[1]
        )
        least, most = limits if limits[0] <= low <= high <= limits[1] else (-math.inf, math.inf)
        if high - low <= _FINE * max(abs(low), abs(high)):
            pad = max(factor, abs(high) / 4)
            low, high = low - pad * (floor is None), high + pad
        step = _step((high - low) / factor, whole=whole) * factor
        first = math.floor(low / step + 1e-9)
        last = math.ceil(high / step - 1e-9)
        start, end = (low, high) if tight else (first * step, last * step)
        start, end = max(start, least), min(end, most)
        slack = step * 1e-6
        ticks = [
            t for k in range(first, last + 1) if start - slack <= (t := k * step) <= end + slack
        ]
        if whole and ticks and start == int(start) and ticks[0] - start >= step * _ROOM:
            ticks.insert(0, start)
        return cls(start, end, tuple(ticks), unit, factor)

    @classmethod
    def positive(cls, values: Sequence[float]) -> Self:
        """Return a linear scale; a logarithmic one where values above 0 lie far apart."""
        low, high = min(values), max(values)
        if low <= 0 or high / low < _LOG_FROM:
            return cls.linear(values, floor=0.0 if low >= 0 else None)
        powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        steps = [m * 10.0**p for p in powers for m in (1, 2, 5)]
        below = max(step for step in [10.0 ** powers[0], *steps] if step <= low * (1 + _FINE))
        above = min(step for step in [10.0 ** powers[-1], *steps] if step >= high * (1 - _FINE))
        many = len(powers) > _FEW_POWERS
        ticks = [10.0**p for p in powers] if many else steps
        inside = tuple(t for t in ticks if below * (1 - _FINE) <= t <= above * (1 + _FINE))
        return cls(below, above, inside, log=True)


def _step(span: float, *, whole: bool) -> float:
    """Return 1, 2 or 5 times a power of ten, of which four to six fit."""
    rough = span / 5
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= rough * (1 - 1e-9))
    return max(1.0, step) if whole else step


def number(value: float) -> str:
    """Return a number with four digits that count, thousands apart."""
    if not math.isfinite(value):
        return "not finite"
    if value == int(value) and abs(value) < _EXACT:
        return f"{int(value):,}"
    if abs(value) >= _THOUSAND:
        return f"{value:,.0f}"
    if abs(value) < _TINY:
        return f"{value:.2e}"
    return f"{value:.4g}"


def of_unit(units: Sequence[tuple[str, float]]) -> Callable[[float], str]:
    """Return what writes a value in the unit that fits it."""

    def write(value: float) -> str:
        unit, factor = units[0]
        for name, size in units:
            if abs(value) >= size:
                unit, factor = name, size
        return (
            f"{value / factor:.3g} {unit}"
            if abs(value) < _LARGE * factor
            else f"{value / factor:,.0f} {unit}"
        )

    return write


duration = of_unit(TIMES)
size = of_unit(SIZES)


def percent(share: float) -> str:
    """Return a share in per cent, with as many digits as tell it from all; tiny ones as 1 in n."""
    value = 100 * share
    if 0 < share < _NEVER:
        return "almost none"
    if 0 < value < _LEAST_PERCENT:
        return f"1 in {float(f'{1 / share:.2g}'):,.0f}"
    if _NEARLY_ALL < value < 100:  # noqa: PLR2004 - per cent
        return f"{value:.6g} %"
    return f"{value:.3g} %"
