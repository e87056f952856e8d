"""Of a plan: what to change first, what closes a round, and how much each assumption matters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .across import across, laid, zero
from .bars import shares
from .blocks import about, figure, legend, missing, panels, section, table
from .clients import COLOURS
from .markup import Markup, join, tag
from .plots import Axis, ranked
from .scale import Scale, percent

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    Plan = Mapping[str, Any]

EFFECTS = {
    "total_p50": "the run's time",
    "round_p90": "a round's time (p90)",
    "miss": "rounds without quorum",
    "money": "money",
}
"""What an assumption acts on, and how a page calls it."""
PARTS = {"down": "download", "train": "training", "up": "upload"}
"""Parts of a client's work, and how a page calls them."""
_ROWS, _PARTS = 12, 6
"""Assumptions, and ways in which a round is closed, that are drawn; the tables have all."""
_LEAST = 0.005
"""Share of the largest effect below which a bar would not be seen."""
_WORDS = 22
"""Letters of an assumption's name."""


def first(plan: Plan) -> Markup:
    """Return the section that says what to change first, and how much each assumption matters."""
    said = {
        "What closes a round": plan["bottleneck"]["line"],
        "Quorum": plan["quorum"]["line"],
        "Deadline": plan["deadline"]["line"],
    }
    items = [tag("li", tag("b", name), f": {line}") for name, line in said.items() if line]
    items[:0] = [tag("li", tag("b", "Then"), f": {line}") for line in plan.get("then", ())]
    items += [tag("li", line, class_="bad") for line in plan["lines"]]
    return section(
        "What to change first",
        tag("p", _begun(plan["first"]), class_="first") if plan.get("first") else None,
        tag("ul", *items, class_="said") if items else None,
        *_assumptions(plan["sensitivity"]),
    )


def _begun(line: str) -> str:
    """Return a line that begins as a sentence."""
    return line[:1].upper() + line[1:]


def _assumptions(told: Sequence[Mapping[str, Any]]) -> list[Markup]:
    if not told:
        return [missing("This plan was made without trying out its assumptions.")]
    words = (
        "How much each assumption matters: every one was changed by itself and the plan made "
        "again. A long bar is worth measuring, and worth changing; where all are short, the plan "
        "hardly depends on what you cannot know."
    )
    drawn = [
        (name, _tornado(told, key, name))
        for key, name in EFFECTS.items()
        if any(row[key] for row in told)
    ]
    rows = [(row["name"], row["change"], *(_signed(row[key]) for key in EFFECTS)) for row in told]
    numbers = table("assumptions", ["assumption", "changed by", *EFFECTS.values()], rows)
    if not drawn:
        return [about("No assumption changes anything by itself."), numbers]
    return [about(words), panels(drawn, "", "What the assumptions act on"), numbers]


def _signed(value: float | None) -> str | None:
    if value is None:
        return None
    return f"{'+' if value >= 0 else '-'}{percent(abs(value))}"


def _tornado(told: Sequence[Mapping[str, Any]], key: str, name: str) -> Markup:
    """Return a bar for each change of each assumption, to the left where it makes less."""
    of: dict[str, dict[str, float]] = {}
    for row in told:
        if row[key] is not None:
            of.setdefault(row["name"], {})[row["change"]] = 100 * row[key]
    size = {row: max(map(abs, changes.values())) for row, changes in of.items()}
    least = _LEAST * max(size.values())
    ordered = sorted((row for row in of if size[row] >= least), key=lambda row: -size[row])[:_ROWS]
    changes = list(dict.fromkeys(change for row in ordered for change in of[row]))
    colours = {change: i % 7 for i, change in enumerate(changes)}
    values = [0.0, *(value for row in ordered for value in of[row].values())]
    more = "percentage points" if key == "miss" else "%"
    x = Axis(name=f"change of {name}, {more}", scale=Scale.linear(values))
    bars = [{change: (0.0, value) for change, value in of[row].items()} for row in ordered]
    samples = [(f"the assumption {change}", f"bar f{colours[change]}") for change in changes]
    picture = ranked(
        x=x,
        names=ordered,
        content=join(across(bars, colours, x), zero(x)),
        says=f"Change of {name} by assumption: "
        + "; ".join(f"{row} {c} {v:.3g}" for row in ordered for c, v in of[row].items()),
        at=[],
        rows="",
        longest=_WORDS,
    )
    left = len(of) - len(ordered)
    rest = about(f"{left} others change it by less, or not at all.") if left else None
    return figure("", legend(samples), picture, rest)


def closers(plan: Plan) -> Markup:
    """Return the section about what the last client of a round was doing, and who is not used."""
    told = plan["bottleneck"]
    words = (
        "A round is closed by the last update that it waits for. Whose that was, and what took "
        "that client longest: to make rounds shorter, make this quicker, or wait for fewer."
    )
    found = told.get("shares") or [told]
    parts = {_way(each): each["share"] for each in found if each["share"]}
    ordered = dict(sorted(parts.items(), key=lambda item: -item[1])[:_PARTS])
    rest = 1.0 - sum(ordered.values())
    if rest > 1e-6:  # noqa: PLR2004 - rounding
        ordered["anything else"] = rest
    colours = {name: i for i, name in enumerate(ordered)}
    samples = [
        (f"{name}: {percent(share)}", f"bar f{colours[name]}") for name, share in ordered.items()
    ]
    return section("What closes a round", about(words), shares(ordered, colours), legend(samples))


def _way(told: Mapping[str, Any]) -> str:
    if not told["cohort"]:
        return PARTS.get(told["part"], str(told["part"]))
    return f"{told['cohort']}, {PARTS.get(told['part'], told['part'])}"


def cohorts(plan: Plan) -> Markup:
    """Return the section about what becomes of the clients that are asked, by cohort."""
    told = plan["clients"]
    kinds = [kind for kind in COLOURS if any(each.get(kind) for each in told)]
    bars = [laid({kind: 100 * (each.get(kind) or 0.0) for kind in kinds}) for each in told]
    names = [str(each["cohort"]) for each in told]
    x = Axis(name="% of those who are asked", scale=Scale.linear([0.0, 100.0]))
    rows = [
        (
            each["cohort"],
            each["site"],
            *(None if each[k] is None else percent(each[k]) for k in ("share",)),
            each["asked"],
            *(None if each.get(kind) is None else percent(each[kind]) for kind in kinds),
        )
        for each in told
    ]
    words = (
        "What becomes of the devices that a round asks. Late ones were asked for nothing: their "
        "updates come after the round was closed, and their data counts less than its share."
    )
    if plan.get("asynchronous") is not None:
        words = (
            "What becomes of the devices that are asked while a buffer fills. Late ones are at "
            "work for longer than the deadline, and given up then."
        )
    picture = ranked(
        x=x,
        names=names,
        content=across(bars, COLOURS, x),
        says="By cohort: "
        + "; ".join(f"{each['cohort']} used {percent(each['used'] or 0.0)}" for each in told),
        at=[],
        rows="",
    )
    heads = ["cohort", "site", "share of the fleet", "asked a round", *kinds]
    samples = legend([(kind, f"bar f{COLOURS[kind]}") for kind in kinds])
    return section(
        "What becomes of the clients",
        about(words),
        figure("", samples, picture, table("cohorts", heads, rows)),
    )
