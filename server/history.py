"""Where a run stands, by its ledger: what the next process of its server must know.

A round that is lost is over (lost_rounds.py): the next one has the next number.

Nothing is invited before this is read: an attempt number that a device has seen is closed to it,
and who voted on a model is in no other sum of it (docs/protocol.md, section 7).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from . import outcome
from .cohort import Standing, Voters

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .ledger import Event, RoundRecord
    from .round_folder import Round
    from .run_directory import RunDirectory

RESUMED = "resumed"
"""Kind of the event by which a process takes a run up: model in force (its digest is the code) and
the highest attempt number that it takes for used."""
SPARE = 4
"""Attempt numbers that a server which was killed may have used and not recorded: the one that was
open, and one that had just ended. The next process begins beyond them."""


@dataclass(frozen=True, kw_only=True)
class History:
    """What was before; of a new run, nothing."""

    round: int = 0
    """The last training round that is over, finished or lost."""
    evaluated: bool = False
    """Whether the last model was evaluated."""
    attempts: Mapping[bytes, int] = field(default_factory=dict)
    """By model digest the highest attempt number that a device may have seen."""
    floor: int = -1
    """The same of every model that is still to come: of one whose round was on its way to the disk
    an earlier process may have begun attempts, and the same round makes the same model again."""
    voters: Voters = field(default_factory=Voters)
    standing: Standing = field(default_factory=Standing)
    best: tuple[tuple[float, float], int] | None = None
    """Score and number of the best round."""
    records: tuple[RoundRecord, ...] = ()
    events: tuple[Event, ...] = ()

    @classmethod
    def of(cls, records: Sequence[RoundRecord], events: Sequence[Event], model: bytes) -> History:
        """Read a run's ledger.

        Args:
            records: Every attempt, in order.
            events: Every event, in order.
            model: Digest of the model that is in force.
        """
        base = next((e.code for e in events if e.kind == "initial"), "")
        last, evaluated, highest, voters, best = 0, False, -1, Voters(), None
        lost = {record.round for record in records if record.outcome == "lost"}
        for record in records:
            train, finished = record.phase == "train", record.outcome == "finished"
            moved = train and (finished or record.outcome == "lost")
            of = base if moved else record.model
            if of == model.hex() and record.outcome != "lost":
                highest = max(highest, record.attempt)
                voters.note(model, record.survivors)
            base = record.model
            if moved:
                last = max(last, record.round)
            score = outcome.score(record.metrics)
            if train and finished and record.round not in lost and (not best or score > best[0]):
                best = score, record.round
            evaluated = evaluated or (finished and not train)
        seen = (e.attempt for e in events if (e.kind, e.code) == (RESUMED, model.hex()))
        highest = max((highest, *seen))
        floor = SPARE * (1 + sum(e.kind == RESUMED for e in events)) - 1
        return cls(
            round=last,
            evaluated=evaluated,
            attempts={model: max(highest + SPARE, floor)},
            floor=floor,
            voters=voters,
            standing=Standing(events),
            best=best,
            records=tuple(records),
            events=tuple(events),
        )


def take_over(directory: RunDirectory, at: str) -> tuple[Round, History] | None:
    """Return the model in force and where the run stands; the ledger says that it was taken up.

    Args:
        directory: Open for writing, and nobody else writes.
        at: The time, ISO 8601, UTC.

    Returns:
        None where not even the initial model is there: the run begins.

    Raises:
        StateError: The directory cannot be read or written.
    """
    newest = directory.latest()
    if newest is None:
        return None
    found, ledger = directory.read(newest), directory.ledger
    history = History.of(ledger.rounds(), ledger.events(), found.digest)
    used, model = history.attempts[found.digest], found.digest.hex()
    ledger.event(RESUMED, round=history.round, attempt=used, code=model, at=at)
    return found, history
