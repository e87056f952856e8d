"""The picture of a plan: what to expect of a fleet, and what to change first, as one page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .blocks import about, facts, open_table, section, table, tiles
from .markup import Markup, tag
from .plan_costs import all_wanted, costs, quorum, server
from .plan_levers import closers, cohorts, first
from .plan_rounds import hours, lengths
from .plan_stream import stream
from .scale import duration, number, percent, size
from .shell import page as whole
from ..capacity.words import amount

if TYPE_CHECKING:
    from collections.abc import Mapping

    Plan = Mapping[str, Any]


def page(plan: Plan) -> bytes:
    """Return the page, UTF-8; the same bytes for the same plan.

    Where a plan lacks `quorum.by_asked` or `bottleneck.shares`, their pictures are left out.

    Args:
        plan: As capacity/plan_file.py describes it.
    """
    title = f"{plan['app'] or 'A run'} on {plan['fleet']['file']}"
    made = f"Made by umbel {plan['umbel']}, seed {plan['seed']}; plan "
    return whole(
        f"{title}: plan",
        tag("header", tag("h1", "What to expect"), tag("p", *_lead(plan), class_="lead")),
        tag(
            "main",
            tiles(_glance(plan)),
            first(plan),
            lengths(plan),
            hours(plan),
            *_rounds(plan),
            tag("div", costs(plan), server(plan), class_="twin"),
            _measured(plan),
            _plan(plan),
        ),
        tag("footer", made, tag("span", plan["digest"], class_="mono")),
    )


def _rounds(plan: Plan) -> list[Markup]:
    """Return who closes rounds and how many to ask, or what an asynchronous run has instead."""
    if plan.get("asynchronous") is not None:
        return [stream(plan), cohorts(plan)]
    return [tag("div", closers(plan), cohorts(plan), class_="twin"), quorum(plan)]


def _lead(plan: Plan) -> list[object]:
    settings, fleet = plan["settings"], plan["fleet"]
    masks = "secure aggregation on" if plan["secure"] is not None else "secure aggregation off"
    asked = settings.get("invited") or settings.get("cohort")
    wants = f"of which {settings['cohort']:,} are used" if settings.get("cohort") else ""
    each = f", {asked:,} asked for each{f', {wants}' if wants else ''}" if asked else ""
    rounds = f"{settings['rounds']:,} rounds{each}" if settings.get("rounds") else "A run"
    if (flows := plan.get("asynchronous")) is not None:
        rounds = (
            f"{settings['rounds']:,} versions of {flows['buffer']:,} updates, {flows['at_work']:,} "
            "clients always at work"
        )
    return [
        f"{plan['app'] or 'A model'} of {plan['model']['parameters']:,} parameters on ",
        tag("b", f"{fleet['clients']:,} devices"),
        f" of {fleet['file']}: {rounds}; {masks}. Nothing has been trained: these are "
        "probabilities, from what the file says of the devices.",
    ]


def _within(told: Mapping[str, float | None], share: str) -> str:
    value = told[share]
    return "no end" if value is None else duration(value)


def _round(plan: Plan) -> str:
    return "a round" if plan.get("asynchronous") is None else "a version"


def _glance(plan: Plan) -> list[tuple[str, str, str]]:
    told, money = plan["quorum"], plan["money"]
    found = [
        (name, _within(plan[key], "p50"), f"9 of 10 within {_within(plan[key], 'p90')}")
        for name, key in ((_round(plan), "round"), ("the run", "total"))
    ]
    if told["miss"] is not None:
        alone = told["independent"]
        below = "" if alone is None else f"{percent(alone)} if devices were independent"
        name = "tries without quorum"
        if plan.get("asynchronous") is not None:
            name = "buffers that do not fill"
        found.append((name, percent(told["miss"]), below))
        if told["run_lost"] is not None:
            said = "a round failed at all its tries"
            found.append(("runs that end early", percent(told["run_lost"]), said))
    if told["invite"] is not None:
        found.append(
            (
                "clients to ask",
                f"{told['invite']:,}",
                f"for {all_wanted(plan)} with {percent(told['certainty'])}",
            )
        )
    deadline = plan["deadline"]
    if deadline["suggested"] is not None:
        now = "" if deadline["set"] is None else f"now {duration(deadline['set'])}"
        found.append(("deadline that would do", duration(deadline["suggested"]), now))
    moved = [value for value in (plan["bytes"]["up"], plan["bytes"]["down"]) if value is not None]
    found.append(("bytes moved", size(sum(moved)), "in the whole run"))
    if money["total"] is not None:
        found.append((f"money ({money['currency']})", amount(money["total"]), "the whole run"))
    found.append(("server's memory", size(plan["server"]["memory"]), "for vectors"))
    return found


def _measured(plan: Plan) -> Markup | None:
    """Return the section about what measured rounds changed; None for a plan without any."""
    told = plan["measured"]
    if told is None:
        return None
    runs = ", ".join(map(str, told["runs"]))
    words = (
        f"The file's numbers were corrected by {told['rounds']:,} measured rounds of {runs}: what "
        "they say most clearly counts most."
    )
    rows = [
        (
            row["what"],
            _plain(row["before"]),
            _plain(row["after"]),
            None if row["factor"] is None else f"x {row['factor']:.3g}",
        )
        for row in told["moved"]
    ]
    heads = ["number", "by the file", "after the rounds", "moved by"]
    return section(
        "What measured rounds changed",
        about(words),
        open_table(heads, rows, "What measured rounds changed"),
    )


def _plain(value: object) -> object:
    return number(value) if isinstance(value, int | float) else value


def _plan(plan: Plan) -> Markup:
    """Return the section about what the plan was made for."""
    model, fleet = plan["model"], plan["fleet"]
    rows: list[tuple[str, object]] = [
        ("fleet", fleet["file"]),
        ("digest of the fleet", tag("span", fleet["digest"], class_="mono")),
        (
            "model",
            f"{model['parameters']:,} parameters, {model['dtype']}, {size(model['bytes'])} a "
            "message",
        ),
    ]
    if model["digest"]:
        rows.append(("digest of the model", tag("span", model["digest"], class_="mono")))
    flat = [(key, str(value)) for key, value in sorted(plan["settings"].items())]
    named = table("settings", ["setting", "value"], flat, "", f"All {len(flat)} settings")
    return section("The plan", facts(rows), named)
