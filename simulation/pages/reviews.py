"""What a run asked people to look at, and what they decided: out of its ledger."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from .blocks import about, open_table, section
from .markup import Markup, tag
from .scale import number
from ...server.reviews import expected

if TYPE_CHECKING:
    from .figures import Figures

_MOST = 100
"""Items in the table; all are in `umbel runs review`."""


def reviews(figures: Figures) -> Markup | None:
    """Return the section; None for a run that asked nothing."""
    items = figures.items
    if not items:
        return None
    waits = [item for item in items if item.waits]
    states = Counter(item.state for item in items)
    count = ", ".join(f"{n:,} {state}" for state, n in sorted(states.items()))
    words = (
        f"What left the expected, and what people decided about it: {count}. Items and decisions "
        "stand in the run's hash-chained record."
    )
    said = None
    if waits:
        numbers = ", ".join(str(item.number) for item in waits)
        line = f"The run waits for a decision about item {numbers}: umbel runs review"
        said = tag("p", f"{line} {figures.run.run}", class_="first")
    rows = []
    for item in items[-_MOST:]:
        made = item.decision
        who = None if made is None else f"{made.by}, {made.at}"
        always = " (for the rest of the run)" if made is not None and made.always else ""
        rows.append(
            (
                item.number,
                item.round,
                item.signal,
                number(item.value),
                expected(item),
                item.cause,
                f"{item.state}{always}",
                who,
                None if made is None else made.why,
            )
        )
    heads = ["item", "round", "signal", "value", "expected", "likely cause", "state", "by", "why"]
    return section("For review", said, about(words), open_table(heads, rows, "Items for review"))
