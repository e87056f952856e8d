"""The page about one run: its figures at a glance, the pictures, its settings."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from .bars import shares
from .blocks import about, facts, legend, missing, section, table, tiles
from .clients import outcomes, spread
from .cohorts import cohorts
from .figures import PARTS, READS, best, finite, named, settings
from .learning import learning
from .markup import Markup, tag
from .metrics import metrics
from .over_rounds import Stack, stacked
from .participation import participation
from .planned import plan
from .reviews import reviews
from .scale import TIMES, duration, size
from .shell import page
from .signals import signals
from .staleness import staleness
from .troubles import troubles
from ... import __version__

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .figures import Figures, Point

_COLOURS = 7
_REAL = {
    "From client to client": "The server of real devices never learns one client's accuracy.",
    "Staleness": "In rounds of real devices every update begins from the round's own model.",
    "Virtual time": "Real devices take the time that was measured.",
}
_SIMULATED = {
    "From client to client": "Recorded where clients test the model: setting client-test-every.",
    "Staleness": "Recorded in asynchronous runs; here every update began from its round's model.",
    "Virtual time": "Recorded where a fleet is simulated; here nothing took any.",
}
"""Why there is no picture."""


def report(figures: Figures) -> bytes:
    """Return the page, UTF-8; the same bytes for the same record."""
    made = f"Made by umbel {__version__} from the run's record."
    return page(
        f"{figures.run.run}: report",
        tag("header", tag("h1", figures.run.run), tag("p", *_lead(figures), class_="lead")),
        tag("main", tiles(_glance(figures)), *_sections(figures)),
        tag("footer", made),
    )


def _sections(figures: Figures) -> list[Markup | None]:
    if not figures.points:
        line = "No training round has finished yet, so there is nothing to draw."
        lacks = section("Learning", missing(line))
        return [reviews(figures), lacks, *plan(figures), troubles(figures), _run(figures)]
    drawn = {"From client to client": spread(figures), "Staleness": staleness(figures)}
    return [
        reviews(figures),
        learning(figures),
        *plan(figures),
        signals(figures),
        tag("div", participation(figures), outcomes(figures), class_="twin"),
        cohorts(figures),
        *drawn.values(),
        metrics(figures),
        _time(figures),
        troubles(figures),
        _absent(figures, [title for title, made in drawn.items() if made is None]),
        _run(figures),
    ]


def _absent(figures: Figures, titles: Sequence[str]) -> Markup | None:
    """Return the section about what the run does not record, and why."""
    why = _SIMULATED if figures.simulated else _REAL
    lines = [(title, why[title]) for title in titles]
    if figures.points and figures.points[-1].virtual is None:
        lines.append(("Virtual time", why["Virtual time"]))
    return section("Not in this record", facts(lines)) if lines else None


def _lead(figures: Figures) -> list[object]:
    done, wanted = len(figures.points), figures.wanted
    rounds = f"{done:,} of {wanted:,} rounds finished" if wanted else f"{done:,} rounds finished"
    said: list[object] = [f"Created {figures.run.created}. ", tag("b", rounds), ". "]
    if figures.records and (last := figures.records[-1]).outcome != "finished":
        line = f"Round {last.round} {last.outcome}: {last.cause}. "
        said.append(tag("b", line, class_="bad"))
    return [*said, "Secure aggregation: ", tag("b", figures.run.security), "."]


def _glance(figures: Figures) -> list[tuple[str, str, str]]:
    found: list[tuple[str, str, str]] = []
    curves = {name: finite(figures.curve(name)) for name in figures.of_kind("accuracy")}
    name = next((name for name, values in curves.items() if values), None)
    if name is not None:
        number, top = best(figures, name)
        below = f"{named(name)[1]}; best {top:.4f}, round {number:,}"
        found.append(("accuracy", f"{curves[name][-1]:.4f}", below))
    if figures.points:
        found += _costs(figures, figures.points[-1])
    tier = figures.said("tier")
    if tier is not None:
        why = (figures.said("tier, why") or "").partition(";")[0]
        found.append(("tier", tier, why.partition(": ")[2] or why))
    return found


def _costs(figures: Figures, last: Point) -> list[tuple[str, str, str]]:
    rounds = len(figures.points)
    found = [
        ("measured time", duration(last.seconds), f"{duration(last.seconds / rounds)} a round")
    ]
    if last.virtual is not None:
        spent = finite(figures.curve(READS["work of the devices"]))
        worked = f"; devices worked {duration(sum(spent))}" if spent else ""
        each = f"{duration(last.virtual / rounds)} a round{worked}"
        found.append(("virtual time", duration(last.virtual), each))
    up = sum(record.bytes_up for record in figures.records)
    down = sum(record.bytes_down for record in figures.records)
    if up or down:
        found.append(("bytes moved", size(up + down), f"{size(up)} up, {size(down)} down"))
    trained = sum(figures.used.values())
    if trained:
        of = f" of {figures.registered:,}" if figures.registered else ""
        found.append(("clients used", f"{len(figures.used):,}{of}", f"{trained:,} updates"))
        if last.seconds > 0:
            speed = f"{trained / last.seconds:,.4g}"
            found.append(("updates a second", speed, "of measured time"))
    return found


def _time(figures: Figures) -> Markup:
    """Return the section about where the seconds went."""
    title = "Where the time went"
    totals: dict[str, float] = {}
    for point in figures.points:
        for part, seconds in point.own.items():
            totals[part] = totals.get(part, 0.0) + (seconds if math.isfinite(seconds) else 0.0)
    order = [
        *(part for part in PARTS if part in totals),
        *(part for part in totals if part not in PARTS),
    ]
    parts = _merged({part: totals[part] for part in order if totals[part] > 0})
    if not parts:
        return section(title, missing("No round records the seconds of its parts."))
    colours = {part: i for i, part in enumerate(parts)}
    whole = sum(parts.values())
    said = [
        (_share(part, seconds, whole), f"bar f{colours[part]}") for part, seconds in parts.items()
    ]
    stack = Stack(name="time a round", colours=colours, units=TIMES, rows="seconds", legend=False)
    bars = stacked(figures.points, lambda point: _merged_as(point.own, colours), stack)
    line = "Of the rounds that finished, as this run's server measured it."
    return section(title, about(line), shares(parts, colours), legend(said), bars)


def _share(part: str, seconds: float, whole: float) -> str:
    words = f" ({PARTS[part]})" if PARTS.get(part) else ""
    return f"{part}{words}: {100 * seconds / whole:.3g} %, {duration(seconds)}"


def _merged(totals: Mapping[str, float]) -> dict[str, float]:
    """Return the largest parts under their names, what is left as `other`; as many as colours."""
    if len(totals) <= _COLOURS:
        return dict(totals)
    large = sorted(totals, key=lambda part: -totals[part])[: _COLOURS - 1]
    kept = {part: seconds for part, seconds in totals.items() if part in large}
    return {**kept, "other": sum(totals.values()) - sum(kept.values())}


def _merged_as(own: Mapping[str, float], colours: Mapping[str, int]) -> dict[str, float]:
    found: dict[str, float] = {}
    for part, seconds in own.items():
        key = part if part in colours else "other"
        found[key] = found.get(key, 0.0) + seconds
    return found


def _versions(figures: Figures) -> str:
    found = figures.recorded(READS["versions"])
    if not isinstance(found, Mapping):
        return f"not recorded; this page was made by umbel {__version__}"
    return ", ".join(f"{name} {version}" for name, version in found.items())


def _run(figures: Figures) -> Markup:
    """Return the section about what the run was: settings, digest, record."""
    said: list[tuple[str, object]] = [("secure aggregation", figures.run.security)]
    for name, key in (("tier", "tier, why"), ("hand-over", "hand-over")):
        words = figures.said(key)
        said += [(name, words)] if words else []
    said.append(("versions", _versions(figures)))
    if figures.points:
        last = figures.points[-1]
        digest = tag("span", last.model, class_="mono")
        said.append((f"digest of the model of round {last.number:,}", digest))
    rows, head = figures.head
    kept = ", ".join(map(str, figures.kept))
    said += [
        ("models on the disk", f"of rounds {kept}" if kept else "none"),
        ("record", f"{rows:,} rows, chain intact"),
        ("head of the record", tag("span", head, class_="mono")),
    ]
    flat = list(settings(figures.run).items())
    named_ = table("settings", ["setting", "value"], flat, "", f"All {len(flat)} settings")
    return section("The run", facts(said), named_)
