"""What one attempt is agreed on beside the model: `params`, and the numbers they imply.

`params` is part of ctx0, one set for the whole roster; the device compares each entry with
its own policy. Nothing in it depends on n: the graph, the threshold and the quorum follow
from the roster, and every member computes them itself.

    key            type   meaning
    alpha, delta   float  shares of corrupt and of lost members, [0, 1)
    a-min          int    least number of corrupt members to withstand
    ring-bits      int    32
    value-range    float  c: a delta lies in [-c, c]
    weight-cap     int    w_cap: a weight lies in 1 .. w_cap
    min-members    int    least n
    min-survivors  int    least |U|
    quorum         str    "majority": q = floor((n + A) / 2) + 1
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from . import graph
from .errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Mapping

VERSION = 1
"""The protocol version of ctx0 that this code speaks."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Params:
    """The parameters of a run, as they enter ctx0."""

    alpha: float = 0.1
    delta: float = 0.1
    a_min: int = 1
    value_range: float = 1.0
    weight_cap: int = 1
    min_members: int = 5
    min_survivors: int = 4

    def table(self) -> dict[str, int | float | str]:
        """Return them as the table that is hashed and sent."""
        return {
            "alpha": float(self.alpha),
            "delta": float(self.delta),
            "a-min": self.a_min,
            "ring-bits": 32,
            "value-range": float(self.value_range),
            "weight-cap": self.weight_cap,
            "min-members": self.min_members,
            "min-survivors": self.min_survivors,
            "quorum": "majority",
        }


KINDS: dict[str, type] = {key: type(value) for key, value in Params().table().items()}


def read(table: Mapping[str, object]) -> Params:
    """Return the parameters of a table that came from a peer, every key checked.

    Raises:
        SettingsError: A key is missing, unknown or of another type, or the ring, the quorum
            rule or a range is not one that this version has.
    """
    for key in KINDS.keys() | table.keys():
        if key not in KINDS or key not in table:
            raise SettingsError(f"params.{key}", f"the keys {sorted(KINDS)}", sorted(table))
        if type(table[key]) is not KINDS[key]:
            raise SettingsError(f"params.{key}", KINDS[key].__name__, table[key])
    fixed = {"ring-bits": 32, "quorum": "majority"}
    for key, value in fixed.items():
        if table[key] != value:
            raise SettingsError(f"params.{key}", repr(value), table[key])
    names = {key: key.replace("-", "_") for key in KINDS if key not in fixed}
    params = Params(**{name: table[key] for key, name in names.items()})  # type: ignore[arg-type]
    _check_ranges(params)
    return params


def _check_ranges(params: Params) -> None:
    for name in ("alpha", "delta"):
        if not 0.0 <= getattr(params, name) < 1.0:
            raise SettingsError(f"params.{name}", "a share in [0, 1)", getattr(params, name))
    if not 0.0 < params.value_range < float("inf"):
        raise SettingsError("params.value-range", "a number above 0", params.value_range)
    for name in ("a_min", "weight_cap", "min_members", "min_survivors"):
        if getattr(params, name) < 1:
            raise SettingsError(
                f"params.{name.replace('_', '-')}", "1 or more", getattr(params, name)
            )


def numbers(table: Mapping[str, object], n: int) -> graph.Parameters:
    """Return k, t, A, D and q for a roster of n members (docs/protocol.md, section 6).

    Raises:
        SettingsError: The table is not one of ours, n is below its min-members, or n has no
            safe parameters.
    """
    params = read(table)
    if n < params.min_members:
        raise SettingsError("roster", f"at least {params.min_members} members", n)
    return graph.parameters(n, alpha=params.alpha, delta=params.delta, a_min=params.a_min)
