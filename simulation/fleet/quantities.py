"""A quantity as fleet.toml writes it: a number, or a table that names a distribution.

    speed = 0.02
    speed = { uniform = [0.01, 0.03] }
    speed = { loguniform = [0.01, 0.1] }
    speed = { lognormal = { median = 0.02, sigma = 0.6 }, most = 1.0 }
    speed = { normal = { mean = 0.02, deviation = 0.005 }, least = 0.01 }
    speed = { choice = [0.01, 0.02, 0.05], weights = [5, 3, 2] }
    speed = { each = [0.011, 0.024] }           the k-th device has the k-th, and so on round

`least` and `most` clip any of them. What a distribution is made of must lie in the quantity's
range; what a tail draws beyond it is clipped.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from .distributions import (
    Choice,
    Clipped,
    Constant,
    LogNormal,
    LogUniform,
    Normal,
    Recorded,
    Uniform,
)
from ...host.figures import nearest
from ...protocol.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from .distributions import Distribution

_MOST_VALUES = 100_000


class Range(NamedTuple):
    """What a quantity may be, ends included."""

    low: float
    high: float
    unit: str

    def __str__(self) -> str:
        """Say it as an error does."""
        return f"{self.low:g} to {self.high:g} {self.unit}".rstrip()


def number(value: object, where: str, bounds: Range) -> float:
    """Return a number of a range.

    Raises:
        SettingsError: It is none.
    """
    if type(value) not in (int, float):
        raise SettingsError(where, f"a number, {bounds}", "nothing" if value is None else value)
    if not bounds.low <= value <= bounds.high:  # type: ignore[operator]
        raise SettingsError(where, str(bounds), value)
    return float(value)  # type: ignore[arg-type]


def checked(owner: object, where: str, bounds: Mapping[str, Range]) -> None:
    """Compare fields of an object that came from Python with what they may be.

    Raises:
        SettingsError: One is no number, or outside.
    """
    for name, allowed in bounds.items():
        value = getattr(owner, name)
        if isinstance(value, bool) or not isinstance(value, int | float | np.number):
            raise SettingsError(f"{where}.{name}", f"a number, {allowed}", type(value).__name__)
        if not allowed.low <= value <= allowed.high:
            raise SettingsError(f"{where}.{name}", str(allowed), float(value))


def distribution(value: object, where: str, bounds: Range) -> Distribution:
    """Return the distribution that a value of fleet.toml names.

    Raises:
        SettingsError: It names none, or one that leaves the range.
    """
    if not isinstance(value, dict):
        return Constant(number(value, where, bounds))
    kinds = [key for key in value if key in _KINDS]
    if len(kinds) != 1:
        got = " and ".join(kinds) or ", ".join(map(str, value)) or "an empty table"
        raise SettingsError(where, f"one of {', '.join(_KINDS)}", got)
    kind = kinds[0]
    known = {kind, "least", "most"} | ({"weights"} if kind == "choice" else set())
    check_keys(value, known, where)
    made = _KINDS[kind](value, f"{where}.{kind}")
    least, most = (
        number(value[key], f"{where}.{key}", bounds) if key in value else None
        for key in ("least", "most")
    )
    if least is not None and most is not None and least > most:
        raise SettingsError(f"{where}.most", f"{least:g} or more, the least", most)
    bounded = least is not None or most is not None
    low = -math.inf if least is None else least
    for end in (Clipped(made, low, math.inf if most is None else most) if bounded else made).ends():
        number(end, f"{where}.{kind}", bounds)
    return Clipped(
        made, bounds.low if least is None else least, bounds.high if most is None else most
    )


def check_keys(table: dict[str, object], known: set[str], where: str) -> None:
    """Refuse a key that is not known, by its name.

    Args:
        table: What the file says.
        known: Its keys.
        where: The table, or the file and a colon where it is the whole file.

    Raises:
        SettingsError: There is one.
    """
    for key in table:
        if key not in known:
            expected = f"one of the keys {', '.join(sorted(known))}"
            place = f"{where} {key}" if where.endswith(":") else f"{where}.{key}"
            raise SettingsError(place, expected, key, nearest(key, known))


_FINITE = Range(-1e30, 1e30, "")
_POSITIVE = Range(1e-30, 1e30, "")
_WIDTH = Range(0, 100, "")


def _pair(value: object, where: str, bounds: Range) -> tuple[float, float]:
    if not isinstance(value, list) or len(value) != 2:  # noqa: PLR2004
        raise SettingsError(where, "two numbers, [low, high]", value)
    low, high = (number(item, where, bounds) for item in value)
    if low > high:
        raise SettingsError(where, "[low, high], the lower one first", value)
    return low, high


def _named(value: object, where: str, first: str, second: str) -> tuple[object, object]:
    if not isinstance(value, dict) or value.keys() != {first, second}:
        raise SettingsError(where, f"a table with {first} and {second}", value)
    return value[first], value[second]


def _uniform(table: dict[str, object], where: str) -> Distribution:
    return Uniform(*_pair(table["uniform"], where, _FINITE))


def _loguniform(table: dict[str, object], where: str) -> Distribution:
    return LogUniform(*_pair(table["loguniform"], where, _POSITIVE))


def _lognormal(table: dict[str, object], where: str) -> Distribution:
    median, sigma = _named(table["lognormal"], where, "median", "sigma")
    return LogNormal(
        number(median, f"{where}.median", _POSITIVE), number(sigma, f"{where}.sigma", _WIDTH)
    )


def _normal(table: dict[str, object], where: str) -> Distribution:
    mean, deviation = _named(table["normal"], where, "mean", "deviation")
    return Normal(
        number(mean, f"{where}.mean", _FINITE),
        number(deviation, f"{where}.deviation", Range(0, 1e30, "")),
    )


def _choice(table: dict[str, object], where: str) -> Distribution:
    values = table["choice"]
    if not isinstance(values, list) or not 1 <= len(values) <= _MOST_VALUES:
        raise SettingsError(where, f"a list of 1 to {_MOST_VALUES} numbers", values)
    weights = table.get("weights", [1] * len(values))
    beside = f"{where.rpartition('.')[0]}.weights"
    if not isinstance(weights, list) or len(weights) != len(values):
        raise SettingsError(beside, f"a list of {len(values)} numbers, one a value", weights)
    shares = tuple(number(item, beside, Range(0, 1e12, "")) for item in weights)
    if not math.fsum(shares):
        raise SettingsError(beside, "at least one above 0", weights)
    return Choice(tuple(number(item, where, _FINITE) for item in values), shares)


def _each(table: dict[str, object], where: str) -> Distribution:
    values = table["each"]
    if not isinstance(values, list) or not 1 <= len(values) <= _MOST_VALUES:
        raise SettingsError(where, f"a list of 1 to {_MOST_VALUES} numbers", values)
    return Recorded(np.array([number(item, where, _FINITE) for item in values]))


_KINDS: dict[str, Callable[[dict[str, object], str], Distribution]] = {
    "uniform": _uniform,
    "loguniform": _loguniform,
    "lognormal": _lognormal,
    "normal": _normal,
    "choice": _choice,
    "each": _each,
}
