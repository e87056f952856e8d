"""What a run moves, burns and costs.

    devices    sum over cohorts of hours at work * price
    lines      sum over cohorts of 1e9 bytes over their lines, both ways, * line-price
    egress     1e9 bytes that leave the server * egress;  ingress: those that come in
    energy     kWh at work * price of one
    pool       hours of the run * ranks * hourly

All are means: of money the mean is what adds up. A cohort's kWh are its seconds at work times its
power / 3.6e6. Where a cohort has no power, or a price is 0, the part is 0 and not a guess.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..fleet.declared import Prices

GB = 1e9
HOUR = 3600.0
_KWH = 3.6e6


@dataclass(frozen=True, slots=True, kw_only=True)
class Used:
    """What one cohort does in a whole run, on average."""

    seconds: float
    """All its devices at work."""
    joules: float
    priced: float
    """Money for these hours."""
    down: float
    """Bytes."""
    up: float
    line: float
    """Money for these bytes on the devices' own lines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Of a whole run."""

    down: float
    up: float
    hours: float
    """Of devices at work."""
    kwh: float
    parts: dict[str, float]

    @property
    def money(self) -> float:
        """All parts."""
        return sum(self.parts.values())

    def described(self, rounds: float, currency: str) -> dict[str, Any]:
        """Return `bytes`, `energy` and `money` of a plan's file."""
        return {
            "bytes": {
                "down": self.down,
                "up": self.up,
                "round_down": self.down / rounds,
                "round_up": self.up / rounds,
            },
            "energy": {"kwh": self.kwh, "devices_kwh": self.kwh, "device_hours": self.hours},
            "money": {"currency": currency, "total": self.money, "parts": self.parts},
        }


def costs(used: Mapping[str, Used], prices: Prices, *, total: float, hourly: float) -> Costs:
    """Return what a run costs.

    Args:
        used: By cohort.
        prices: Of the server's traffic and of energy.
        total: Seconds of the run.
        hourly: Of all ranks together.
    """
    all_of = used.values()
    down, up = sum(one.down for one in all_of), sum(one.up for one in all_of)
    kwh = sum(one.joules for one in all_of) / _KWH
    return Costs(
        down=down,
        up=up,
        hours=sum(one.seconds for one in all_of) / HOUR,
        kwh=kwh,
        parts={
            "devices": sum(one.priced for one in all_of),
            "lines": sum(one.line for one in all_of),
            "egress": down / GB * prices.egress,
            "ingress": up / GB * prices.ingress,
            "energy": kwh * prices.energy,
            "pool": total / HOUR * hourly if hourly else 0.0,
        },
    )
