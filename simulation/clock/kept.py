"""Reading a clock's state again: numbers and lists of numbers, whatever else was written there."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ...protocol.errors import StateError

if TYPE_CHECKING:
    from collections.abc import Mapping

_WHERE = "the clock's state"
_MOST = 2**62


def numbers_of(state: Mapping[str, object], names: set[str]) -> dict[str, object]:
    """Return the values of a state that has these names and no others.

    Raises:
        StateError: It has others.
    """
    if state.keys() != names:
        expected, got = (", ".join(sorted(keys)) or "nothing" for keys in (names, state.keys()))
        move = "go on with the fleet and the settings of before"
        raise StateError(_WHERE, expected, got, move)
    return dict(state)


def real(name: str, value: object) -> float:
    """Return a finite time, 0 or more.

    Raises:
        StateError: It is none.
    """
    if type(value) not in (int, float) or not 0 <= value < math.inf:  # type: ignore[operator]
        raise StateError(f"{_WHERE}: {name}", "a number, 0 or more", value)
    return float(value)  # type: ignore[arg-type]


def whole(name: str, value: object, most: int = _MOST) -> int:
    """Return an integer, 0 to `most`.

    Raises:
        StateError: It is none.
    """
    if type(value) is not int or not 0 <= value <= most:
        raise StateError(f"{_WHERE}: {name}", f"an integer, 0 to {most}", value)
    return value


def listed(name: str, value: object) -> list[object]:
    """Return a list.

    Raises:
        StateError: It is none.
    """
    if not isinstance(value, list):
        raise StateError(f"{_WHERE}: {name}", "a list", type(value).__name__)
    return value
