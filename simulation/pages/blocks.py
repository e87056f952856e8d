"""What pages are put together from, beside pictures: sections, figures, legends, tables, panels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from .markup import Markup, tag
from .scale import number

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

NOTHING: Final = "\N{EN DASH}"
"""What a cell without a value says; page.js passes over it."""


def section(title: str, *content: object) -> Markup:
    """Return a section of a page."""
    return tag("section", tag("h2", title), *content)


def about(line: str) -> Markup:
    """Return a line of explanation."""
    return tag("p", line, class_="about")


def missing(line: str) -> Markup:
    """Return the line about what a run does not record."""
    return tag("p", line, class_="missing")


def figure(title: str, *content: object) -> Markup:
    """Return a picture with its caption, legend and table."""
    return tag("figure", title and tag("figcaption", title), *content)


def legend(samples: Iterable[tuple[str, str]]) -> Markup:
    """Return names with a sample each; the second is `line s0`, `bar f0` or `band f0`."""
    items = []
    for name, look in samples:
        if look.startswith("line"):
            sample = tag("line", class_=look, x1="0", x2="22", y1="6", y2="6")
        else:
            sample = tag("rect", class_=look, x="4", y="1", width="14", height="10")
        drawn = tag("svg", sample, width="22", height="12", aria_hidden="true")
        items.append(tag("li", drawn, name))
    return tag("ul", *items, class_="legend")


def table(
    name: str,
    heads: Sequence[str],
    rows: Iterable[Sequence[object]],
    note: str = "",
    summary: str = "Numbers",
) -> Markup:
    """Return a picture's numbers, folded: the picture for who does not see it, and for copying.

    Args:
        name: The table's id.
        heads: Of the columns.
        rows: Numbers are written with `number`, None as a dash, all else as it is.
        note: A line above it.
        summary: What stands there while it is folded.
    """
    box = open_table(heads, rows, summary, name)
    return tag("details", tag("summary", summary), note and tag("p", note, class_="note"), box)


def open_table(
    heads: Sequence[str], rows: Iterable[Sequence[object]], says: str, name: str | None = None
) -> Markup:
    """Return a table that is not folded; see `table`."""
    top = tag("tr", *(tag("th", head, scope="col") for head in heads))
    body = [tag("tr", *map(_cell, row)) for row in rows]
    made = tag("table", tag("thead", top), tag("tbody", *body), id=name)
    look = "wide" if name is None else "wide low"
    return tag("div", made, class_=look, tabindex="0", role="region", aria_label=says)


def _cell(value: object) -> Markup:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return tag("td", number(value), class_="n")
    return tag("td", NOTHING if value is None else value)


def written(values: Iterable[float | None], write: Callable[[float], str]) -> list[str | None]:
    """Return values as texts, None as it is."""
    return [None if value is None else write(value) for value in values]


def facts(rows: Iterable[tuple[str, object]]) -> Markup:
    """Return names and values, unfolded."""
    lines = [tag("tr", tag("th", name, scope="row"), tag("td", value)) for name, value in rows]
    return tag("table", tag("tbody", *lines), class_="facts")


def tiles(found: Iterable[tuple[str, str, str]]) -> Markup:
    """Return figures at a glance: a name, a value, a line below."""
    made = (
        tag("div", tag("dt", name), tag("dd", value, below and tag("small", below)))
        for name, value, below in found
    )
    return tag("dl", *made, class_="tiles")


def panels(
    content: Sequence[tuple[str, Markup]],
    before: str = "against ",
    says: str = "What the pictures are drawn against",
) -> Markup:
    """Return up to four panels, of which one is seen, chosen without a script; printed are all.

    A page has one such choice; `before` stands before each name, `says` is for who sees none.
    """
    inputs: list[Markup] = []
    for i, (name, _) in enumerate(content):
        inputs += [
            tag("input", type="radio", name="by", id=f"by-{i}", checked=i == 0),
            tag("label", f"{before}{name}", for_=f"by-{i}"),
        ]
    shown = [tag("div", inner, class_=f"panel panel-{i}") for i, (_, inner) in enumerate(content)]
    legend_ = tag("legend", says, class_="unseen")
    return tag("fieldset", legend_, *inputs, *shown, class_="choice")
