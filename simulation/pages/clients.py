"""What became of the clients of a round: used, late, lost, refused; how stale, how far apart."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .blocks import about, figure, legend, missing, section, table
from .figures import READS, finite
from .learning import axis, chosen
from .over_rounds import Stack, stacked
from .plots import Axis, Band, Curve, area, lines
from .scale import Scale

if TYPE_CHECKING:
    from .figures import Figures
    from .markup import Markup

OUTCOMES = {"used": 0, "late": 4, "lost": 1, "refused": 3}
"""With the numbers of their colours, from below."""
_BANDS = (("p10", "p90", False), ("p25", "p75", True))


@dataclass(frozen=True, kw_only=True)
class Family:
    """Metrics of one beginning: quantiles and means over the clients of a round."""

    key: str
    """In `READS`."""
    title: str
    about: str
    missing: str
    name: str
    """Of the y axis."""
    limits: tuple[float, float]
    floor: float | None


SPREAD = Family(
    key="spread",
    title="Accuracy from client to client",
    about="Of the clients of a round, each on its own data, with the model that it received.",
    missing=(
        "Not recorded. A secure run never knows one client's accuracy; a simulated run records "
        "the spread where its clients test."
    ),
    name="accuracy (share of examples)",
    limits=(0.0, 1.0),
    floor=None,
)
STALENESS = Family(
    key="staleness",
    title="Staleness",
    about="How many models were made between the start of an update and its use.",
    missing="Not recorded: every update began from the model of its own round.",
    name="models",
    limits=(-math.inf, math.inf),
    floor=0.0,
)


def outcomes(figures: Figures) -> Markup:
    """Return the section about used, late, lost and refused clients."""
    title, points = "What became of the clients", figures.points
    seen = {name: c for name, c in OUTCOMES.items() if any(p.outcomes.get(name) for p in points)}
    if not seen:
        return section(title, missing("No round records who was in it."))
    totals = {name: sum(p.outcomes.get(name, 0) for p in points) for name in OUTCOMES}
    said = ", ".join(f"{count:,} {name}" for name, count in totals.items())
    stack = Stack(name="clients a round", colours=seen, rows="outcomes")
    bars = stacked(points, lambda point: point.outcomes, stack)
    return section(title, about(f"In the rounds that finished: {said}."), bars)


def family(figures: Figures, kind: Family) -> Markup | None:
    """Return the section about a family: bands between its quantiles, lines for the rest.

    None where no round has a finite value of it.
    """
    beginning = READS[kind.key]
    cut = len(beginning.rpartition(".")[0]) + 1
    whole = {name[cut:]: figures.curve(name) for name in figures.family(beginning)}
    values = [value for curve in whole.values() for value in finite(curve)]
    if not values:
        return None
    places = chosen(list(whole.values())[:2])
    curves = {name: [values[place] for place in places] for name, values in whole.items()}
    numbers = [float(figures.points[place].number) for place in places]
    x = axis("rounds", numbers)
    scale = Scale.linear(values, floor=kind.floor, limits=kind.limits)
    y = Axis(name=kind.name, scale=scale)
    bands, rest = _split(curves)
    picture = area(
        x=x,
        y=y,
        content=lines(numbers, rest, bands, x, y),
        says=f"{kind.title} over {len(figures.points)} rounds.",
        at=[x.scale.at(number) for number in numbers],
        rows=kind.key,
    )
    samples = [(band.name, f"band{' strong' * band.strong} f0") for band in bands]
    samples += [(curve.name, f"line s{curve.colour}") for curve in rest]
    rows = list(zip(map(int, numbers), *curves.values(), strict=True))
    numbers_ = table(kind.key, ["round", *curves], rows)
    return section(kind.title, about(kind.about), figure("", legend(samples), picture, numbers_))


def _split(curves: dict[str, list[float | None]]) -> tuple[list[Band], list[Curve]]:
    """Return the quantiles in pairs, and the other curves."""
    bands = [
        Band(name=f"{low} to {high}", low=curves[low], high=curves[high], colour=0, strong=strong)
        for low, high, strong in _BANDS
        if low in curves and high in curves
    ]
    paired = {end for band in bands for end in band.name.split(" to ")}
    rest = [name for name in curves if name not in paired]
    return bands, [
        Curve(name=name, values=curves[name], colour=i % 7) for i, name in enumerate(rest)
    ]
