"""Items for review in a run's ledger, and what people decided about them.

    review      the run's own: it left what is expected of it (watch.py)
    decision    a person's, by `umbel runs review`, from any process of this machine
    paused, went on   the run's own: it waited for decisions from here to there

A decision names its item's number, and the hash of the item's row in the chain: it is about that
row and no other. An item is decided once. Who, when and why stand beside it. A decision is appended
in one transaction that begins with the write lock and reads the chain's last row inside it, so the
run may write meanwhile.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ..protocol.errors import SettingsError, StateError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from .ledger import Event, Ledger

REVIEW, DECISION = "review", "decision"
PAUSED, WENT_ON = "paused", "went on"
KINDS = frozenset({REVIEW, DECISION, PAUSED, WENT_ON})
APPROVE, REJECT = "approve", "reject"
OPEN, APPROVED, REJECTED = "open", "approved", "rejected"
MOST_WHY, MOST_BY = 500, 100
"""Characters of a reason, and of a name."""
_YES, _NO = "yes", "no"


@dataclass(frozen=True, kw_only=True, slots=True)
class Decision:
    """What somebody decided about an item."""

    approved: bool
    always: bool
    """Whether the item's signal is accepted for the rest of the run."""
    by: str
    why: str
    at: str
    """ISO 8601, UTC."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Item:
    """Something about a run that a person is to look at."""

    number: int
    """1 and up, in the order of the ledger."""
    signal: str
    round: int
    value: float
    low: float
    high: float
    """What was expected: `low` to `high`; infinite where there is no bound."""
    cause: str
    """The likeliest cause, in words."""
    pauses: bool
    """Whether the run waits for the decision."""
    at: str
    hash: str = ""
    """Of its row, hex."""
    decision: Decision | None = None

    @property
    def state(self) -> str:
        """`open`, `approved` or `rejected`."""
        if self.decision is None:
            return OPEN
        return APPROVED if self.decision.approved else REJECTED

    @property
    def waits(self) -> bool:
        """Whether the run waits for somebody to decide."""
        return self.pauses and self.decision is None

    def detail(self) -> dict[str, float | str]:
        """Return what the ledger's event says of it, beside signal, round and time."""
        return {
            "number": self.number, "value": self.value, "low": self.low, "high": self.high,
            "cause": self.cause, "pauses": _YES if self.pauses else _NO,
        }  # fmt: skip


def items(ledger: Ledger) -> tuple[Item, ...]:
    """Return a run's items with what was decided, in order.

    Raises:
        StateError: The ledger cannot be read, or a row of it is none that was written so.
    """
    with ledger.legible():
        return decided(ledger.linked(REVIEW), ledger.linked(DECISION))


def decided(
    raised: Sequence[tuple[str, Event]], decisions: Sequence[tuple[str, Event]]
) -> tuple[Item, ...]:
    """Return items with their decisions, of rows behind their hashes.

    A decision that names another row than its item's is about nothing here.
    """
    found = {item.number: item for item in (_item(event, row) for row, event in raised)}
    for _, event in decisions:
        item = found.get(int(event.detail["number"]))
        if item is not None and item.decision is None and item.hash == event.detail["review"]:
            found[item.number] = replace(item, decision=_decision(event))
    return tuple(found[number] for number in sorted(found))


def decide(
    ledger: Ledger,
    number: int,
    *,
    approve: bool,
    by: str,
    why: str,
    at: str,
    always: bool = False,
) -> Item:
    """Append a decision about an open item; return the item as it was.

    Args:
        ledger: Open for writing; the run may go on beside it.
        number: The item's.
        approve: Whether the run may go on; else it ends.
        by: Who decides.
        why: The reason, in one line.
        at: The time, ISO 8601, UTC.
        always: Whether the signal is accepted for the rest of the run.

    Raises:
        SettingsError: There is no such item; name or reason is empty, too long or no plain line.
        StateError: It was decided already, or the ledger cannot be written.
    """
    _check_line("--by", by, MOST_BY)
    _check_line("--why", why, MOST_WHY)
    if always and not approve:
        raise SettingsError("--always", "with --approve", "with --reject")
    with ledger.together():
        known = {item.number: item for item in items(ledger)}
        run = ledger.run().run
        item = known.get(number)
        if item is None:
            numbers = ", ".join(map(str, known)) or "none: it raised no item"
            flag = "--approve" if approve else "--reject"
            raise SettingsError(flag, f"an item of run {run}: {numbers}", number)
        if (before := item.decision) is not None:
            raise StateError(
                f"run {run}: item {number}", "an open item",
                f"one that {before.by} {item.state} at {before.at}: {before.why}",
                "a decision stands; stop the run to end it another way",
            )  # fmt: skip
        detail: dict[str, float | str] = {
            "number": number, "review": item.hash, "by": by, "why": why,
            "always": _YES if always else _NO,
        }  # fmt: skip
        code = APPROVE if approve else REJECT
        ledger.event(DECISION, round=item.round, attempt=0, code=code, detail=detail, at=at)
    return item


def as_json(item: Item) -> dict[str, Any]:
    """Return an item as JSON can hold it: a bound that is not finite is null."""
    made = None
    if (found := item.decision) is not None:
        made = {
            "approved": found.approved, "always": found.always, "by": found.by,
            "why": found.why, "at": found.at,
        }  # fmt: skip
    bounds = {name: _finite(getattr(item, name)) for name in ("value", "low", "high")}
    return {
        "number": item.number, "signal": item.signal, "round": item.round, **bounds,
        "cause": item.cause, "pauses": item.pauses, "at": item.at, "state": item.state,
        "hash": item.hash, "decision": made,
    }  # fmt: skip


def waiting(found: Iterable[Item]) -> list[Item]:
    """Return the items for whose decision the run waits: not of signals accepted for the rest."""
    every = list(found)
    accepted = accepted_of(every)
    return [item for item in every if item.waits and item.signal not in accepted]


def accepted_of(found: Iterable[Item]) -> set[str]:
    """Return the signals that somebody accepted for the rest of the run."""
    made = [(item.signal, item.decision) for item in found]
    return {signal for signal, one in made if one is not None and one.always and one.approved}


def ended(found: Iterable[Item]) -> str:
    """Return by which decision the run ends; empty for none."""
    for item in found:
        made = item.decision
        if made is not None and not made.approved:
            return f"{made.by} rejected {said(item)}; the reason: {made.why}"
    return ""


def move(run: str, waits: Sequence[Item]) -> str:
    """Return what a run says that waits, with the command by which somebody decides."""
    first = waits[0].number
    return (
        f"{run} waits for a decision about {numbers(waits)}: umbel runs review {run} "
        f'--approve {first} --why "…", or --reject {first} --why "…"'
    )


def told(events: Iterable[Event], found: Sequence[Item], run: str) -> list[str]:
    """Return a line for each event of these kinds, for whoever follows a run."""
    known, lines = {item.number: item for item in found}, list[str]()
    for event in events:
        if event.kind == PAUSED and (waits := waiting(found)):
            lines.append(f"paused before round {event.round}: {move(run, waits)}")
        elif event.kind == WENT_ON:
            lines.append(f"{event.code}: decided; the run does not wait any more")
        elif event.kind in {REVIEW, DECISION}:
            item = known.get(int(event.detail["number"]))
            if item is not None and event.kind == REVIEW:
                lines.append(said(item))
            elif item is not None and (made := item.decision) is not None:
                lines.append(f"item {item.number}: {made.by} {item.state} it: {made.why}")
    return lines


def numbers(found: Sequence[Item]) -> str:
    """Return the numbers of items as words."""
    return f"item{'s' * (len(found) > 1)} {', '.join(str(item.number) for item in found)}"


def said(item: Item) -> str:
    """Return an item as a line: what left which interval, and why."""
    return (
        f"item {item.number}, round {item.round}: {item.signal} {item.value:.4g}, expected "
        f"{expected(item)}: {item.cause}"
    )


def expected(item: Item) -> str:
    """Return an item's interval in words."""
    low, high = _finite(item.low), _finite(item.high)
    if low is None:
        return "anything" if high is None else f"at most {high:.4g}"
    return f"at least {low:.4g}" if high is None else f"{low:.4g} to {high:.4g}"


def _item(event: Event, row: str) -> Item:
    detail: Mapping[str, Any] = event.detail
    return Item(
        number=int(detail["number"]),
        signal=event.code,
        round=event.round,
        value=float(detail["value"]),
        low=float(detail["low"]),
        high=float(detail["high"]),
        cause=str(detail["cause"]),
        pauses=detail["pauses"] == _YES,
        at=event.at,
        hash=row,
    )


def _decision(event: Event) -> Decision:
    detail = event.detail
    return Decision(
        approved=event.code == APPROVE,
        always=detail["always"] == _YES,
        by=str(detail["by"]),
        why=str(detail["why"]),
        at=event.at,
    )


def _finite(value: float) -> float | None:
    return value if abs(value) < float("inf") else None


def _check_line(flag: str, text: str, most: int) -> None:
    if not text.strip() or len(text) > most or not text.isprintable():
        raise SettingsError(flag, f"one line of 1 to {most} printable characters", text)
