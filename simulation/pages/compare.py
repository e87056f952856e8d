"""Several runs side by side: what they reached, by when, at what cost, and whether bits are equal.

Everything is a row of values, one for each run, in groups; text, JSON and page show the same rows.
Runs are judged by an accuracy that all of them record, else by a loss. Its value at some round,
time or number of bytes is the last one measured until then. None says that a run does not record
it, or did not come so far.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from .figures import READS, best, finite, named, settings
from .learning import PICTURES, WRITE, measures
from .scale import duration, number, size
from ...protocol.errors import SettingsError
from ...server.settings import FLOWER_RUN

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .figures import Figures

    Value = float | str | None

LEAST, MOST = 2, 7
"""Runs in one comparison: at most as many as there are colours that can be told apart."""
_SLACK = 1e-9
_NO_SETTINGS = {READS["tier, why"], FLOWER_RUN}
"""What a run's record has that nobody set."""
_PLAN = "plan.digest"
"""Of a plan: its other hundred numbers are no settings, and follow from it."""
_WIDEST = 40
"""Letters of a cell of the table in text; JSON has all."""
QUARTERS = (0.25, 0.5, 0.75, 1.0)
"""Of what the run that went least far came to: where accuracies are compared."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One thing about every run."""

    name: str
    values: Sequence[Value]
    write: Callable[[float], str] = field(default=number, repr=False, compare=False)
    at: float | None = None
    """The round, seconds or bytes that the row is about."""

    @property
    def texts(self) -> list[str]:
        """The values as people read them."""
        return [
            "-" if value is None else value if isinstance(value, str) else self.write(value)
            for value in self.values
        ]


@dataclass(frozen=True, kw_only=True)
class Group:
    """Rows that belong together."""

    key: str
    """In JSON."""
    title: str
    rows: Sequence[Row]
    note: str = ""
    """What stands there where there are no rows."""
    target: float | None = None
    """The accuracy that the group is about."""


def check(runs: Sequence[str], target: float | None) -> None:
    """Refuse what cannot be compared.

    Raises:
        SettingsError: Too few or too many runs, one twice, or a target that is no number above 0.
    """
    if not LEAST <= len(runs) <= MOST:
        raise SettingsError("runs to compare", f"{LEAST} to {MOST}", len(runs))
    if len(set(runs)) < len(runs):
        raise SettingsError("runs to compare", "each once", ", ".join(runs))
    if target is not None and not 0 < target < math.inf:
        raise SettingsError("--target", "an accuracy or a loss above 0", target)


def shared(found: Sequence[Figures], kind: str) -> str | None:
    """Return the first metric of a kind that every run has a finite value of."""
    names = found[0].of_kind(kind)
    return next(
        (name for name in names if all(finite(figures.curve(name)) for figures in found)), None
    )


@dataclass(frozen=True, kw_only=True)
class Goal:
    """By what runs are judged."""

    metric: str
    larger: bool
    """Whether larger is better."""

    @property
    def name(self) -> str:
        """What it is called in a title."""
        return "accuracy" if self.larger else "loss"

    def best(self, figures: Figures) -> tuple[int, float]:
        """Return round and value of a run's best."""
        return best(figures, self.metric, larger=self.larger)

    def most(self, found: Sequence[Figures]) -> float:
        """Return the best of all runs: an app may count accuracy in per cent."""
        return max(self.best(figures)[1] for figures in found)

    def target(self, found: Sequence[Figures]) -> float:
        """Return what every run came to: two digits of the best of the run that did worst."""
        values = [self.best(figures)[1] for figures in found]
        if self.larger:
            return math.floor(min(values) * 100 + _SLACK) / 100
        worst = max(values)
        step = 10.0 ** (math.floor(math.log10(worst)) - 1) if worst > 0 else 1.0
        return math.ceil(worst / step - _SLACK) * step

    def good(self, value: float, target: float) -> bool:
        """Tell whether a value is as good as the target."""
        return value >= target if self.larger else value <= target


def goal(found: Sequence[Figures]) -> Goal | None:
    """Return by what these runs can be judged."""
    for kind, larger in (("accuracy", True), ("loss", False)):
        metric = shared(found, kind)
        if metric is not None:
            return Goal(metric=metric, larger=larger)
    return None


def compared(found: Sequence[Figures], target: float | None = None) -> list[Group]:
    """Return everything that is compared.

    Args:
        found: Two runs or more.
        target: What is to be reached; None for the best that every run came to.

    Raises:
        SettingsError: The target is no accuracy, and the runs are judged by one.
    """
    by = goal(found)
    if by is not None and by.larger and target is not None and target > max(1.0, by.most(found)):
        raise SettingsError("--target", "an accuracy up to 1", target)
    groups = [_glance(found, by)]
    if by is not None:
        groups += [*_at_equal(found, by), _until(found, by, target)]
    else:
        none = "there is no accuracy and no loss that every one of these runs records"
        groups.append(Group(key="until", title="accuracy", rows=(), note=none))
    return [*groups, _bits(found), _settings(found)]


def _glance(found: Sequence[Figures], by: Goal | None) -> Group:
    ends = [figures.points[-1] if figures.points else None for figures in found]
    used = [float(sum(figures.used.values())) for figures in found]
    spent = [end.seconds if end else None for end in ends]
    speeds = [u / s if s else None for u, s in zip(used, spent, strict=True)]
    rows = [
        Row(name="rounds finished", values=[len(figures.points) for figures in found]),
        Row(name="rounds wanted", values=[figures.wanted for figures in found]),
        Row(name="secure aggregation", values=[figures.run.security for figures in found]),
        Row(name="tier", values=[figures.said("tier") for figures in found]),
        Row(name="measured time", values=spent, write=duration),
        Row(name="virtual time", values=[e.virtual if e else None for e in ends], write=duration),
        Row(name="bytes moved", values=[e.moved if e else None for e in ends], write=size),
        Row(name="updates", values=used),
        Row(name="updates a second", values=speeds, write=lambda speed: f"{speed:,.4g}"),
    ]
    for kind in PICTURES:
        metric = shared(found, kind)
        rows += [_last(found, metric)] if metric is not None else []
    if by is not None:
        tops = [by.best(figures) for figures in found]
        rows += [
            Row(name=f"{by.name}, best", values=[value for _, value in tops], write=_four),
            Row(name="round of the best", values=[number for number, _ in tops]),
        ]
    said = [row for row in rows if any(value is not None for value in row.values)]
    return Group(key="glance", title="at a glance", rows=said)


def _last(found: Sequence[Figures], metric: str) -> Row:
    name, whose = named(metric)
    values = [finite(figures.curve(metric))[-1] for figures in found]
    return Row(name=f"{name}, last ({whose})", values=values, write=_four)


def _four(value: float) -> str:
    return f"{value:.4f}"


def _at_equal(found: Sequence[Figures], by: Goal) -> list[Group]:
    """Return what runs came to by the same rounds, times and bytes."""
    groups = []
    for measure in WRITE:
        curves = [curve(figures, by.metric, measure) for figures in found]
        if not all(xs for xs, _ in curves):
            continue
        far = min(xs[-1] for xs, _ in curves)
        marks = {far * quarter for quarter in QUARTERS}
        if measure == "rounds":
            marks = {float(math.ceil(mark)) for mark in marks}
        write = WRITE[measure]
        rows = [
            Row(name=write(mark), at=mark, values=[at(*line, mark) for line in curves], write=_four)
            for mark in sorted(marks)
        ]
        key = f"at_{measure.replace(' ', '_')}"
        groups.append(Group(key=key, title=f"{by.name} at equal {measure}", rows=rows))
    return groups


def curve(figures: Figures, metric: str, measure: str) -> tuple[list[float], list[float]]:
    """Return the finite values of a metric and where they stand; empty where that is unknown."""
    xs = measures(figures.points).get(measure, []) if figures.points else []
    both = [
        (x, value)
        for x, value in zip(xs, figures.curve(metric), strict=False)
        if value is not None and math.isfinite(value)
    ]
    return [x for x, _ in both], [value for _, value in both]


def at(xs: Sequence[float], values: Sequence[float], mark: float) -> float | None:
    """Return the last value until `mark`; None before the first."""
    place = bisect_right(xs, mark * (1 + 1e-12))
    return values[place - 1] if place else None


def _until(found: Sequence[Figures], by: Goal, target: float | None) -> Group:
    """Return where each run first came to the target."""
    wanted = by.target(found) if target is None else target
    rows = []
    for measure in WRITE:
        curves = [curve(figures, by.metric, measure) for figures in found]
        values = [
            next((x for x, value in zip(*line, strict=True) if by.good(value, wanted)), None)
            for line in curves
        ]
        if any(value is not None for value in values):
            rows.append(Row(name=measure, values=values, write=WRITE[measure]))
    note = "" if rows else f"no run came to {wanted:g}"
    title = f"until {by.name} {wanted:g}"
    return Group(key="until", title=title, rows=rows, note=note, target=wanted)


def _bits(found: Sequence[Figures]) -> Group:
    """Return in how many rounds a model is, bit for bit, the first run's: by their digests."""
    first, *others = ({p.number: p.model for p in figures.points} for figures in found)
    common: list[Value] = [len(first)]
    equal: list[Value] = [len(first)]
    differs: list[Value] = [None]
    for models in others:
        both = sorted(first.keys() & models.keys())
        wrong = [number for number in both if first[number] != models[number]]
        common.append(len(both))
        equal.append(len(both) - len(wrong))
        differs.append(wrong[0] if wrong else None)
    rows = [
        Row(name=f"rounds in common with {found[0].run.run}", values=common),
        Row(name="models equal bit for bit", values=equal),
        Row(name="first round that differs", values=differs),
    ]
    return Group(key="bits", title="equal bits", rows=rows)


def _settings(found: Sequence[Figures]) -> Group:
    flat = [settings(figures.run) for figures in found]
    names = sorted(
        name
        for name in {name for table in flat for name in table} - _NO_SETTINGS
        if name == _PLAN or not name.startswith("plan.")
    )
    rows = [
        Row(name=name, values=values)
        for name in names
        if len(set(values := [table.get(name) for table in flat])) > 1
    ]
    note = "" if rows else "none: these runs were set alike"
    return Group(key="settings", title="settings that differ", rows=rows, note=note)


def as_text(runs: Sequence[str], groups: Sequence[Group]) -> str:
    """Return a table with a column for each run."""
    names = [row.name for group in groups for row in group.rows]
    first = max(map(len, names), default=0) + 2
    cells = [list(map(_cut, row.texts)) for group in groups for row in group.rows]
    wide = [max(len(run), *(len(row[i]) for row in cells)) for i, run in enumerate(runs)]

    def line(name: str, texts: Sequence[str]) -> str:
        shown = (f"{text:<{width}}" for text, width in zip(texts, wide, strict=True))
        return f"{name:<{first + 2}}{'  '.join(shown)}".rstrip()

    lines = [line("", runs)]
    for group in groups:
        lines += ["", group.title + (f": {group.note}" if group.note else "")]
        lines += [line(f"  {row.name}", list(map(_cut, row.texts))) for row in group.rows]
    return "\n".join(lines)


def _cut(text: str) -> str:
    return text if len(text) <= _WIDEST else f"{text[: _WIDEST - 1]}…"


def as_json(runs: Sequence[str], groups: Sequence[Group]) -> dict[str, object]:
    """Return the same for programs; what is not finite or not known is null."""
    return {"runs": list(runs), **{group.key: _group(group) for group in groups}}


def _group(group: Group) -> dict[str, object]:
    rows = [
        {"name": row.name, "values": [_plain(value) for value in row.values]}
        | ({} if row.at is None else {"at": row.at})
        for row in group.rows
    ]
    return {"rows": rows} | ({} if group.target is None else {"target": group.target})


def _plain(value: Value) -> Value:
    return None if isinstance(value, float) and not math.isfinite(value) else value
