"""Times, shares and money in words, to two or three digits; sizes are host/figures.py's."""

from __future__ import annotations

import math

_TIMES = (("s", 1.0), ("min", 60.0), ("h", 3600.0), ("days", 86400.0))
_PER_CENT = 100.0
_ENOUGH = 3.0
"""Of a larger unit from which on it is taken: 3 min, and 150 s."""
_LEAST = 1e-6
_MOST = 1 - _LEAST
_TENS, _HUNDREDS = 9.95, 99.5
_CENTS = 0.1


def number(value: float) -> str:
    """Return a number to three digits, whole ones with all of theirs."""
    if value == round(value) and abs(value) >= _HUNDREDS:
        return f"{value:,.0f}"
    if abs(value) >= _HUNDREDS:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= _TENS else f"{value:.3g}"


def seconds(value: float) -> str:
    """Return a time."""
    if not math.isfinite(value):
        return "never"
    unit, size = next(((u, s) for u, s in reversed(_TIMES[1:]) if value >= _ENOUGH * s), ("s", 1.0))
    return f"{number(value / size)} {unit}"


def share(value: float) -> str:
    """Return a probability or a share in per cent; what is next to 0 or 1 is said so."""
    if math.isnan(value):
        return "unknown"
    if value <= 0.0 or value >= 1.0:
        return f"{_PER_CENT * round(value):.0f} %"
    if value < _LEAST:
        return f"below {_LEAST * _PER_CENT:.4f} %"
    if value > _MOST:
        return f"above {_MOST * _PER_CENT:.4f} %"
    shown = _PER_CENT * value
    # what is near 1 keeps the digits of its distance from it
    digits = max(0, 1 - math.floor(math.log10(min(shown, _PER_CENT - shown))))
    return f"{shown:.{digits}f} %"


def change(value: float) -> str:
    """Return a relative change with its sign."""
    if not math.isfinite(value):
        return "?"
    return f"{_PER_CENT * value:+.1f} %"


def money(value: float, currency: str) -> str:
    """Return an amount with its currency."""
    return f"{amount(value)} {currency}"


def amount(value: float) -> str:
    """Return an amount of money: two decimals, and three digits of less than a tenth."""
    if not 0.0 < value < _CENTS:
        return f"{value:,.2f}"
    return f"{value:.{2 - math.floor(math.log10(value))}f}"
