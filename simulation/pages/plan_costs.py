"""Of a plan: how many to ask, what it costs, what the server needs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .across import upright
from .bars import shares
from .blocks import about, facts, figure, legend, section, table
from .markup import Markup, join
from .plots import Axis, Curve, area, lines
from .scale import Scale, number, percent, size
from ..capacity.words import amount

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    Plan = Mapping[str, Any]

_COLOURS = 7


def quorum(plan: Plan) -> Markup:
    """Return the section about how likely a round has enough updates."""
    told, asked = plan["quorum"], plan["settings"].get("invited")
    wanted = _wanted(told)
    wants = f", and wants {wanted:,}" if wanted != told["needed"] else ""
    fewer = "has fewer" if plan["secure"] is None else "has fewer, or masks that stay on,"
    words = (
        f"A round needs {told['needed']:,} updates{wants}. As planned it {fewer} in "
        f"{_share(told['miss'])} of the rounds"
    )
    if told["independent"] is not None:
        words += (
            f"; who takes the devices for independent of each other would expect "
            f"{_share(told['independent'])}, for then nothing takes many of them at once"
        )
    rows: list[tuple[str, object]] = []
    if type(asked) is int:
        rows.append(("asked now", f"{asked:,}"))
    rows += [
        (
            f"to ask, for {all_wanted(plan)} in {percent(told['certainty'])} of the rounds",
            _count(told["invite"]),
        ),
        ("... as independence would have it", _count(told["invite_independent"])),
        ("the whole run is lost by it", _share(told["run_lost"])),
    ]
    if plan["secure"] is not None:
        rows += _secure(plan["secure"])
    pairs = told.get("by_asked") or []
    drawn = _odds(pairs, plan) if len(pairs) > 1 else None
    return section("How many to ask", about(f"{words}."), drawn, facts(rows))


def _wanted(told: Mapping[str, Any]) -> int:
    """Return how many updates the number to ask is for."""
    return int(told.get("wanted") or told["needed"])


def all_wanted(plan: Plan) -> str:
    """Return in words what the number to ask is for."""
    wanted = _wanted(plan["quorum"])
    return f"{wanted:,} updates" if plan["secure"] is None else f"a roster of {wanted:,}"


def _share(value: float | None) -> str:
    return "an unknown share" if value is None else percent(value)


def _count(value: float | None) -> str:
    return "no number is enough" if value is None else f"{value:,}"


def _secure(told: Mapping[str, Any]) -> list[tuple[str, object]]:
    shares_ = f"{told['k']} neighbours a member, {told['t']} of them needed"
    floor = f"{told['n']} members, {told['d']} of which may be lost, quorum {told['q']}"
    return [
        ("secure aggregation", f"{floor}; {shares_}"),
        ("the sum of a whole roster is void, for too many are lost", _share(told["void"])),
    ]


def _odds(pairs: Sequence[Sequence[float | None]], plan: Plan) -> Markup:
    """Return how many rounds have the wanted updates, by how many are asked."""
    told = plan["quorum"]
    numbers = [float(pair[0] or 0) for pair in pairs]
    names = {"as these devices fail": 1, "if they were independent": 2}
    curves = [
        Curve(
            name=name,
            values=[None if (m := pair[i]) is None else 100 * (1 - m) for pair in pairs],
            colour=i - 1,
        )
        for name, i in names.items()
    ]
    values = [v for each in curves for v in each.values if v is not None]
    x = Axis(name="clients asked", scale=Scale.linear(numbers, whole=True, tight=True))
    have = f"% of the rounds that have {all_wanted(plan)}"
    y = Axis(name=have, scale=Scale.linear(values, limits=(0.0, 100.0)))
    asked, wanted = plan["settings"].get("invited"), told["invite"]
    marks = {4: asked, 5: wanted}
    inside = {
        colour: float(value)
        for colour, value in marks.items()
        if isinstance(value, int | float) and numbers[0] <= value <= numbers[-1]
    }
    samples = [(curve.name, f"line s{curve.colour}") for curve in curves]
    if 4 in inside:  # noqa: PLR2004 - a colour
        samples.append((f"asked now: {asked:,}", "line s4"))
    if 5 in inside:  # noqa: PLR2004 - a colour
        samples.append((f"enough for {percent(told['certainty'])}: {wanted:,}", "line s5"))
    rows = [
        (
            int(n),
            *(None if v is None else f"{v:.6g} %" for v in (c.values[i] for c in curves)),
        )
        for i, n in enumerate(numbers)
    ]
    picture = area(
        x=x,
        y=y,
        content=join(lines(numbers, curves, [], x, y), upright(inside, x)),
        says=f"Rounds that have {all_wanted(plan)} by how many clients are asked.",
        at=[x.scale.at(n) for n in numbers],
        rows="odds",
    )
    heads = ["clients asked", *(curve.name for curve in curves)]
    return figure("", legend(samples), picture, table("odds", heads, rows))


def costs(plan: Plan) -> Markup:
    """Return the section about money, bytes and energy."""
    money, moved, energy = plan["money"], plan["bytes"], plan["energy"]
    rows: list[tuple[str, object]] = [
        ("down, to the devices", _bytes(moved, "down")),
        ("up, from them", _bytes(moved, "up")),
    ]
    if energy.get("kwh") is not None:
        devices = energy.get("devices_kwh")
        of = "" if devices is None else f", {number(devices)} of it by the devices"
        rows.append(("energy", f"{number(energy['kwh'])} kWh{of}"))
    parts = {name: value for name, value in money["parts"].items() if value}
    if not parts:
        line = "Nothing costs money by the prices that fleet.toml declares."
        return section("What it costs", about(line), facts(rows))
    ordered = _merged(parts)
    colours = {name: i for i, name in enumerate(ordered)}
    whole = sum(ordered.values())
    samples = [
        (
            f"{name}: {amount(value)} {money['currency']}, {percent(value / whole)}",
            f"bar f{colours[name]}",
        )
        for name, value in ordered.items()
    ]
    total = f"The whole run, by the declared prices: {amount(whole)} {money['currency']}."
    return section(
        "What it costs", about(total), shares(ordered, colours), legend(samples), facts(rows)
    )


def _bytes(moved: Mapping[str, Any], way: str) -> str:
    a_round = moved.get(f"round_{way}")
    more = "" if a_round is None else f", {size(a_round)} a round"
    return "unknown" if moved[way] is None else f"{size(moved[way])}{more}"


def _merged(parts: Mapping[str, float]) -> dict[str, float]:
    """Return the largest parts, what is left as `other`; as many as there are colours."""
    ordered = dict(sorted(parts.items(), key=lambda item: -item[1]))
    if len(ordered) <= _COLOURS:
        return ordered
    kept = dict(list(ordered.items())[: _COLOURS - 1])
    return {**kept, "other": sum(ordered.values()) - sum(kept.values())}


def server(plan: Plan) -> Markup:
    """Return the section about the server's memory and who folds."""
    told = plan["server"]
    ordered = _merged({name: value for name, value in told["terms"].items() if value})
    colours = {name: i for i, name in enumerate(ordered)}
    limit = told.get("limit")
    words = f"Memory for vectors: {size(told['memory'])}"
    if limit:
        fits = "it fits" if told["memory"] <= limit else "it does NOT fit"
        words += f" of the {size(limit)} that it has: {fits}"
    rows: list[tuple[str, object]] = []
    if told["ranks"] is not None:
        ranks = told["ranks"]
        rows.append(("ranks", f"{ranks:,}" if ranks else "none: the core adds up by itself"))
    if told["pool"]:
        rows.append(("of the pool", told["pool"]))
    samples = [
        (f"{name}: {size(value)}", f"bar f{colours[name]}") for name, value in ordered.items()
    ]
    return section(
        "The server",
        about(f"{words}."),
        shares(ordered, colours) if ordered else None,
        legend(samples),
        facts(rows) if rows else None,
    )
