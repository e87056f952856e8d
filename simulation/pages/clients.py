"""What became of the clients of a round; how far apart they are; how old their models were."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from .blocks import about, figure, legend, missing, section, table
from .figures import READS, finite
from .learning import PICTURES, axis, chosen
from .markup import Markup, tag
from .over_rounds import Stack, stacked
from .plots import Axis, Band, Curve, area, lines
from .scale import Scale

if TYPE_CHECKING:
    from .figures import Figures
    from .learning import Picture

COLOURS = {"used": 0, "refused": 3, "late": 4, "lost": 1, "offline": 6, "crashed": 5}
"""Of what can become of a client, from below."""
_BANDS = (("p10", "p90", False), ("p25", "p75", True))


def outcomes(figures: Figures) -> Markup:
    """Return the section about who was used and who was not."""
    title, points = "What became of the clients", figures.points
    totals = {name: sum(p.outcomes.get(name, 0) for p in points) for name in COLOURS}
    seen = {name: colour for name, colour in COLOURS.items() if totals[name]}
    if not seen:
        return section(title, missing("No round records who was in it."))
    said = ", ".join(f"{totals[name]:,} {name}" for name in seen)
    none = "" if len(seen) > 1 else ": nobody was late, lost or refused"
    stack = Stack(name="clients a round", colours=seen, rows="outcomes")
    bars = stacked(points, lambda point: point.outcomes, stack)
    return section(title, about(f"In the rounds that finished: {said}{none}."), bars)


def spread(figures: Figures) -> Markup | None:
    """Return the section about how far the clients are apart; None where nothing is recorded."""
    drawn = [
        _quantiles(figures, picture, READS[f"spread of {kind}"])
        for kind, picture in PICTURES.items()
    ]
    if not any(drawn):
        return None
    words = (
        "Of the clients of a round, each on its own data, with the model that it received: p10 is "
        "what a tenth of them is below."
    )
    return section("From client to client", about(words), tag("div", *drawn, class_="pair"))


def _quantiles(figures: Figures, picture: Picture, beginning: str) -> Markup | None:
    """Return bands between quantiles that make a pair, and lines for the others."""
    family = {
        name.removeprefix(beginning): figures.curve(name) for name in figures.family(beginning)
    }
    whole = {name: values for name, values in family.items() if finite(values)}
    if not whole:
        return None
    places = [
        place
        for place in chosen(list(whole.values())[:2])
        if any(values[place] is not None for values in whole.values())
    ]
    curves = {name: [values[place] for place in places] for name, values in whole.items()}
    numbers = [float(figures.points[place].number) for place in places]
    values = [value for curve in curves.values() for value in finite(curve)]
    limits = picture.limits or (0.0, math.inf)
    x, rows = axis("rounds", numbers), f"spread-{picture.title.lower()}"
    y = Axis(
        name=f"{picture.title.lower()} ({picture.kind})", scale=Scale.linear(values, limits=limits)
    )
    bands, rest = _split(curves)
    drawn = area(
        x=x,
        y=y,
        content=lines(numbers, rest, bands, x, y),
        says=f"{picture.title} of the clients over {len(numbers)} rounds: {', '.join(curves)}.",
        at=[x.scale.at(number) for number in numbers],
        rows=rows,
    )
    samples = [(band.name, f"band{' strong' * band.strong} f0") for band in bands]
    samples += [(curve.name, f"line s{curve.colour}") for curve in rest]
    body = list(zip(map(int, numbers), *curves.values(), strict=True))
    return figure(picture.title, legend(samples), drawn, table(rows, ["round", *curves], body))


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
