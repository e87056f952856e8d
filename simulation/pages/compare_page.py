"""The page about several runs: their curves in the same axes, and the rows of the comparison."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from .blocks import missing, open_table, panels, section
from .compare import shared
from .figures import named
from .learning import PICTURES, WRITE, Curves, Line, against
from .markup import Markup, tag
from .shell import page
from ... import __version__

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from .compare import Group
    from .figures import Figures
    from .learning import Picture


def comparison(found: Sequence[Figures], groups: Sequence[Group]) -> bytes:
    """Return the page, UTF-8."""
    runs = [figures.run.run for figures in found]
    said = f"{', '.join(runs)}. A dash says: not recorded, or never reached."
    made = [_group(runs, group) for group in groups]
    return page(
        f"{' and '.join(runs)}: compared",
        tag("header", tag("h1", "Runs compared"), tag("p", said, class_="lead")),
        tag("main", _curves(found), tag("div", *made, class_="twin")),
        tag("footer", f"Made by umbel {__version__} from the runs' records."),
    )


def _group(runs: Sequence[str], group: Group) -> Markup:
    title = group.title[:1].upper() + group.title[1:]
    if not group.rows:
        return section(title, missing(group.note))
    rows = [(row.name, *row.texts) for row in group.rows]
    return section(title, open_table(["", *runs], rows, title))


def _curves(found: Sequence[Figures]) -> Markup:
    metrics = {picture: shared(found, kind) for kind, picture in PICTURES.items()}
    lacks = [
        missing(f"{picture.title}: there is none that every one of these runs records.")
        for picture, name in metrics.items()
        if name is None
    ]
    drawn = {picture: name for picture, name in metrics.items() if name is not None}
    if not drawn:
        return section("Learning", *lacks)
    curves = {f.run.run: Curves.of(f, list(drawn.values())) for f in found}
    measures = [name for name in WRITE if all(name in these.by for these in curves.values())]
    shown = [
        (measure, tag("div", *_pair(measure, drawn, curves), class_="pair")) for measure in measures
    ]
    tables = [
        these.table(f"run-{i}", f"Numbers of {run}")
        for i, (run, these) in enumerate(curves.items())
    ]
    return section("Learning", *lacks, panels(shown), *tables)


def _pair(
    measure: str, drawn: Mapping[Picture, str], curves: Mapping[str, Curves]
) -> Iterator[Markup]:
    for picture, metric in drawn.items():
        lines = [
            Line(name=run, xs=these.by[measure], values=these.values[metric], colour=i)
            for i, (run, these) in enumerate(curves.items())
        ]
        whose = replace(picture, kind=f"{picture.kind}, {named(metric)[1]}")
        yield against(whose, measure, lines, "")
