"""How far what was seen moved a number of a fleet."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Moved:
    """One number, before and after."""

    what: str
    before: float | None
    """None: nothing was thought of it."""
    after: float
    observations: int
    weight: float
    """How many observations the number was worth before."""
    unit: str
    """Of the weight."""

    @property
    def factor(self) -> float | None:
        """After over before; None where that is nothing."""
        return self.after / self.before if self.before else None

    def as_json(self) -> dict[str, Any]:
        """Return it as a plan keeps it."""
        return {
            "what": self.what,
            "before": self.before,
            "after": self.after,
            "factor": self.factor,
            "observations": self.observations,
            "weight": self.weight,
        }


def as_text(moved: tuple[Moved, ...]) -> str:
    """Return a table."""
    rows = [("", "before", "after", "factor", "seen", "worth before")]
    for item in moved:
        before = "-" if item.before is None else f"{item.before:.4g}"
        factor = "-" if item.factor is None else f"{item.factor:.3g}"
        one = item.weight == 1
        worth = f"{item.weight:g} {item.unit.removesuffix('s') if one else item.unit}"
        seen = str(item.observations)
        rows.append((item.what, before, f"{item.after:.4g}", factor, seen, worth))
    wide = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [
        f"{row[0]:<{wide[0]}}"
        + "".join(f"  {cell:>{width}}" for cell, width in zip(row[1:], wide[1:], strict=True))
        for row in rows
    ]
    return "\n".join(lines)
