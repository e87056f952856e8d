"""A plan for people: about a screen, what to change first above all else."""

from __future__ import annotations

import math
from textwrap import fill
from typing import TYPE_CHECKING, Any

from .words import amount, change, money, number, seconds, share
from ...host.figures import size

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_MOST = 8
"""Assumptions that are printed; all are in the JSON."""
_WIDE, _LINE = 11, 100


def as_text(plan: Mapping[str, Any]) -> str:
    """Return the lines of a plan's object (plan_file.py)."""
    return "\n".join(_lines(plan))


def _lines(plan: Mapping[str, Any]) -> Iterator[str]:
    yield from _what(plan)
    yield ""
    yield _row("first", plan["first"])
    yield from (_row("then", said) for said in plan["then"])
    yield ""
    yield from _times(plan)
    yield _row("quorum", plan["quorum"]["line"])
    if plan["asynchronous"] is None:
        yield _row("ask", _ask(plan))
    yield _row("deadline", plan["deadline"]["line"])
    if (secure := plan["secure"]) is not None:
        yield _row("masks", _secure(secure))
    if (flows := plan["asynchronous"]) is None:
        yield _row("slowest", plan["bottleneck"]["line"])
    else:
        stale, whose = flows["lines"]
        yield _row("staleness", stale)
        yield _row("updates", whose)
    yield from _server(plan)
    yield _row("traffic", _traffic(plan))
    yield _row("cost", _cost(plan))
    yield ""
    yield from _sensitivity(plan)
    if (measured := plan["measured"]) is not None:
        yield ""
        yield from _measured(measured)
    if plan["lines"]:
        yield ""
        yield from (_row("!", line) for line in plan["lines"])


def _row(name: str, text: str) -> str:
    """Return a named line, or the few that it takes."""
    return fill(
        text.rstrip(),
        _LINE,
        initial_indent=f"{name:<{_WIDE}}",
        subsequent_indent=" " * _WIDE,
        replace_whitespace=False,
        drop_whitespace=True,
        break_on_hyphens=False,
    )


def _what(plan: Mapping[str, Any]) -> Iterator[str]:
    settings, model, fleet = plan["settings"], plan["model"], plan["fleet"]
    kinds = len(plan["clients"])
    rounds = (
        f"{settings['rounds']:,} rounds of {settings['cohort']:,} updates, "
        f"{settings['invited']:,} asked for them"
    )
    if (flows := plan["asynchronous"]) is not None:
        rounds = (
            f"asynchronous, {flows['at_work']:,} at work, {settings['rounds']:,} versions of "
            f"{flows['buffer']:,} updates"
        )
    yield (
        f"{fleet['file']}: {fleet['clients']:,} devices of {kinds} kind{'s' * (kinds > 1)}; "
        f"{rounds}"
    )
    masks = "on" if settings["secure"] else "off"
    yield (
        f"model of {model['parameters']:,} numbers, {size(model['down'])} down and "
        f"{size(model['bytes'])} up; secure aggregation {masks}"
    )


def _times(plan: Mapping[str, Any]) -> Iterator[str]:
    round_, total = plan["round"], plan["total"]
    yield f"{'':<{_WIDE}}{'p50':>10}{'p90':>10}{'p99':>10}"
    name = "round" if plan["asynchronous"] is None else "version"
    yield f"{name:<{_WIDE}}{_three(round_)}"
    wait = round_["wait"]
    if wait["p99"]:
        yield f"{'wait':<{_WIDE}}{_three(wait)}   until enough are online"
    yield f"{'run':<{_WIDE}}{_three(total)}"


def _three(found: Mapping[str, float | None]) -> str:
    return "".join(f"{_time(found[key]):>10}" for key in ("p50", "p90", "p99"))


def _time(value: float | None) -> str:
    return seconds(math.inf if value is None else value)


def _ask(plan: Mapping[str, Any]) -> str:
    quorum, certainty = plan["quorum"], share(plan["certainty"])
    count = plan["settings"]["cohort"]
    wanted = f"{count:,} updates" if plan["secure"] is None else f"a roster of {count:,}"
    if quorum["invite"] is None:
        found = f"no number gives {wanted} with {certainty}"
    else:
        found = f"{quorum['invite']:,} clients for {wanted} with {certainty}"
    if quorum["invite_independent"] not in {None, quorum["invite"]}:
        found += f" (independent losses would need {quorum['invite_independent']:,})"
    return found


def _secure(secure: Mapping[str, Any]) -> str:
    return (
        f"{secure['n']:,} members, {secure['k']} neighbours each, {secure['t']} shares open a "
        f"secret, {secure['d']} may be lost; {share(secure['void'])} of the rounds are void"
    )


def _server(plan: Mapping[str, Any]) -> Iterator[str]:
    server = plan["server"]
    terms = sorted(server["terms"].items(), key=lambda term: -term[1])
    named = ", ".join(f"{name} {size(int(value))}" for name, value in terms)
    yield _row("memory", f"{size(int(server['memory']))} at the server's most: {named}")
    place = "" if server["pool"] is None else f" of pool {server['pool']}"
    one = server["ranks"] == 1
    yield _row("ranks", f"{server['ranks']} {'process' if one else 'processes'}{place}")


def _traffic(plan: Mapping[str, Any]) -> str:
    moved = plan["bytes"]
    return f"{size(int(moved['down']))} to the devices, {size(int(moved['up']))} from them"


def _cost(plan: Mapping[str, Any]) -> str:
    paid, energy = plan["money"], plan["energy"]
    parts = [f"{name} {amount(value)}" for name, value in paid["parts"].items() if value]
    named = f": {', '.join(parts)}" if parts else ", for no price is named"
    return f"{number(energy['kwh'])} kWh; {money(paid['total'], paid['currency'])}{named}"


def _sensitivity(plan: Mapping[str, Any]) -> Iterator[str]:
    rows = plan["sensitivity"]
    if not rows:
        return
    heads = f"{'round p90':>11}{'run p50':>11}{'missed':>11}{'money':>11}"
    yield f"{'what matters':<32}{heads}"
    for row in rows[:_MOST]:
        name = f"{row['name']} {row['change']}"
        values = [_change(row[key]) for key in ("round_p90", "total_p50")]
        values += [_points(row["miss"]), _change(row["money"])]
        yield f"{name:<32}" + "".join(f"{value:>11}" for value in values)


def _change(value: float | None) -> str:
    return "?" if value is None else change(value)


def _points(value: float | None) -> str:
    """Return a change of a probability, in points of per cent."""
    return "?" if value is None else f"{100 * value:+.2f}"


def _measured(measured: Mapping[str, Any]) -> Iterator[str]:
    rounds, runs = measured["rounds"], ", ".join(measured["runs"])
    yield f"measured in {rounds:,} rounds of {runs}"
    for moved in measured["moved"][:_MOST]:
        before = "nothing" if moved["before"] is None else number(moved["before"])
        yield f"  {moved['what']}: {before} before, {number(moved['after'])} now"
