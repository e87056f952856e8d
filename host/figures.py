"""Figures as people read them: bytes that moved or lie on a disk, days and times of day.

And the key that somebody meant who wrote another one.

What programs read is `--format json`: plain numbers.
"""

from __future__ import annotations

from datetime import UTC, datetime
from difflib import get_close_matches
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

_UNITS = ("B", "kB", "MB", "GB", "TB")


def size(nbytes: int) -> str:
    """Return bytes in the decimal unit that fits."""
    unit = min((len(str(nbytes)) - 1) // 3, len(_UNITS) - 1)
    return f"{nbytes / 1000**unit:.1f} {_UNITS[unit]}" if unit else f"{nbytes} B"


def day(at: float) -> str:
    """Return the day of a time in seconds since 1970, UTC."""
    return f"{datetime.fromtimestamp(at, UTC):%F}"


def moment(at: float) -> str:
    """Return a time in seconds since 1970 to the minute, UTC."""
    return f"{datetime.fromtimestamp(at, UTC):%F %R} UTC"


def nearest(key: str, known: Iterable[str]) -> str:
    """Return `perhaps KEY`, the known key that an unknown one is nearest to, or nothing."""
    found = get_close_matches(key, sorted(known), 1)
    return f"perhaps {found[0]}" if found else ""
