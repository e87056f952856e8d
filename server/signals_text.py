"""The signals of a run for people and for programs."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from . import signal_groups
from .signals import SIGNALS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .calibration import Calibration
    from .signals import Signals
    from .skew import Skew

_MOST = 20
"""Reasons that are printed; all are in the JSON."""
_COLUMNS = ("last", "p10", "p50", "p90", "rounds")
_DIGITS = {"share": ".4f", "s": ".3f", "B": ",.0f", "": ".4g"}


def as_json(found: Signals, plan: Calibration | None = None) -> dict[str, Any]:
    """Return the signals as JSON can hold them, with how the run's plan did."""
    return {
        "run": found.run.run,
        "security": found.run.security,
        "signals": {name: asdict(signal) for name, signal in SIGNALS.items()},
        "summary": found.summary(),
        "plan": plan and asdict(plan) | {"verdict": plan.verdict},
        "attempts": dict(found.attempts),
        "retried": found.retried,
        "skew": None if found.skew is None else asdict(found.skew),
        "versions": dict(found.versions),
        "histogram": found.histogram
        and {"round": found.histogram[0], "clients": list(found.histogram[1])},
        "groups": [signal_groups.as_json(group) for group in found.groups],
        "reasons": [asdict(reason) for reason in found.reasons],
        "rounds": [
            {"round": each.number, "asked": each.asked, "used": each.used, **each.values}
            for each in found.rounds
        ],
    }


def as_text(found: Signals, plan: Calibration | None = None) -> str:
    """Return the signals as lines, with how the run's plan did."""
    lines = [
        f"run {found.run.run}: {len(found.rounds):,} training rounds finished{_failed(found)}",
        f"secure aggregation: {found.run.security}",
    ]
    lines += _table(found)
    lines += [] if plan is None else _planned(plan)
    lines += [f"clients: {words(found.skew)}"] if found.skew is not None else []
    if found.histogram is not None:
        number, counts = found.histogram
        lines.append(f"clients by accuracy of model {number}: {in_words(counts)}")
    if found.versions:
        said = ", ".join(f"{n:,} of {name}" for name, n in found.versions.items())
        lines.append(f"versions of the newest round: {said}")
    lines += _groups(found)
    for reason in found.reasons[:_MOST]:
        alone = reason.first == reason.last
        where = f"round {reason.first}" if alone else f"rounds {reason.first} to {reason.last}"
        who = f"{reason.clients:,} client{'s' * (reason.clients != 1)}"
        lines.append(f"{reason.times:>6,} x {reason.kind} {reason.code}: {who}, {where}")
    if more := len(found.reasons) - _MOST:
        lines += [f"       and {more} reasons more: --format json"] if more > 0 else []
    return "\n".join(lines)


def _planned(plan: Calibration) -> list[str]:
    """Return what became of a plan's quantiles."""
    said = [
        f"{c.within:,} of {c.rounds:,} rounds within its p{100 * c.level:.3g}, {c.seconds:.4g} s"
        for c in plan.coverage
    ]
    return [f"plan: {plan.verdict}", f"  {'; '.join(said)}"]


def _groups(found: Signals) -> list[str]:
    """Return a line for each site or cohort."""
    lines = []
    for group in found.groups:
        fleet = "" if group.fleet is None else f"{100 * group.fleet:.3g} % of the fleet, "
        of = "".join(f", accuracy {name} {value:.4f}" for name, value in group.accuracy.items())
        lines.append(
            f"  {group.name or 'no site'}: {fleet}{100 * group.share_asked:.3g} % of those asked, "
            f"{100 * group.share_used:.3g} % of the updates{of}"
        )
    return lines[:_MOST]


def in_words(counts: Sequence[int]) -> str:
    """Return a histogram over [0, 1] in words, without its empty parts."""
    step = 100 / len(counts)
    said = [f"{n:,} in {i * step:.3g} to {(i + 1) * step:.3g} %" for i, n in enumerate(counts) if n]
    return ", ".join(said) or "none"


def words(found: Skew) -> str:
    """Return in words how evenly clients were used."""
    if found.least == found.most:
        who = "The one client" if found.clients == 1 else f"Each of the {found.clients:,} clients"
        return f"{who} was used in {found.most:,} rounds."
    took = found.clients - found.never
    return (
        f"{took:,} of {found.clients:,} clients took part. A client was used in "
        f"{found.mean:.4g} rounds on average (median {found.median:.4g}, "
        f"least {found.least:,}, most {found.most:,}). The busiest tenth of them had "
        f"{100 * found.busiest:.3g} % of all uses; Gini coefficient {found.gini:.2f} "
        "(0: all alike, near 1: a few did everything)."
    )


def _failed(found: Signals) -> str:
    gone = {name: n for name, n in found.attempts.items() if name != "finished"}
    if not gone:
        return ", each at the first attempt" if found.rounds else ""
    said = ", ".join(f"{n} {name}" for name, n in gone.items())
    share, tried = 100 * found.retried, sum(found.attempts.values())
    return f"; {share:.3g} % of {tried:,} attempts did not ({said})"


def _table(found: Signals) -> list[str]:
    rows: list[tuple[str, ...]] = [("signal", *_COLUMNS, "what it is")]
    for name, values in found.summary().items():
        signal = SIGNALS[name]
        form = _DIGITS[signal.unit]
        shown = [format(values[column], form) for column in _COLUMNS[:-1]]
        unit = f" ({signal.unit})" if signal.unit not in {"", "share"} else ""
        rows.append((name + unit, *shown, f"{values['rounds']:,.0f}", signal.says))
    if len(rows) == 1:
        return ["no training round has finished: there is nothing to say yet"]
    wide = [max(len(row[i]) for row in rows) for i in range(len(rows[0]) - 1)]
    lines = []
    for name, *numbers, says in rows:
        cells = (f"{cell:>{width}}" for cell, width in zip(numbers, wide[1:], strict=True))
        lines.append("  ".join([f"{name:<{wide[0]}}", *cells, says]))
    return lines
