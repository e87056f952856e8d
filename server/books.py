"""What a coordinator writes down of its run, and who is told of it.

An entry, the event `clients` beside it and the items for review that it raises are committed
together: an item is there where its round is.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from . import client_times

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .attempt import Attempt
    from .deadlines import Deadlines
    from .invitation import Joined
    from .ledger import RoundRecord
    from .surroundings import Surroundings


class Books:
    """Of one coordinator."""

    def __init__(self, around: Surroundings, deadlines: Deadlines) -> None:
        """Write to the run's directory; `deadlines` learns from what is written."""
        self._around, self._deadlines = around, deadlines

    def note(self, place: tuple[int, int], kind: str, node: str, code: str) -> None:
        """Record an event of a round and an attempt; `node` may be empty."""
        number, attempt = place
        at = self._around.wall().isoformat(timespec="milliseconds")
        self._deadlines.event(kind, node, code)
        self._around.watch.noted(kind, node, code)
        ledger = self._around.directory.ledger
        ledger.event(kind, round=number, attempt=attempt, node=node, code=code, at=at)

    def record(self, attempt: Attempt, record: RoundRecord, here: Mapping[str, Joined]) -> None:
        """Write an attempt's entry; for a round that finished, this is what finishes it."""
        around = self._around
        beside = client_times.event(attempt, around.wall())
        raised = around.watch.closed(record, beside, here)
        events = raised if beside is None else (beside, *raised)
        around.directory.ledger.commit_round(record, *events)
        self._deadlines.record(record)
        around.observe(record)
        if around.open_rounds is not None:
            around.open_rounds.drop()

    def tested(self, number: int, metrics: Mapping[str, float]) -> None:
        """Take what the server's own test found of a round's model, after the round."""
        for event in self._around.watch.tested(number, metrics):
            said = asdict(event)
            self._around.directory.ledger.event(said.pop("kind"), **said)
