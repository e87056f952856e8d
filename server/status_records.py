"""What the records of a federation's runs say of its nodes: rounds, and what went wrong last.

A record is read again only when it has grown: `umbel server status --watch` looks every second or
two.
"""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING

from .ledger import Ledger
from .run_directory import list_runs
from .settings import FLOWER_RUN, OF_FEDERATION
from ..protocol.errors import StateError

if TYPE_CHECKING:
    from pathlib import Path

    from .ledger import Event

LATEST = 20
"""How many runs are looked at, the newest ones."""
WRONG = frozenset({"declined", "refused", "expelled", "lost", "late", "left out", "bad share"})
"""Kinds of events that say what went wrong with a node."""
_CODED = frozenset({"declined", "refused"})


@dataclass
class Record:
    """What was read of one run."""

    name: str
    created: str
    seq: int
    finished: int = 0
    rounds: Counter[str] = field(default_factory=Counter)
    """By node the finished training rounds that it is in."""
    wrong: dict[str, tuple[str, float, str]] = field(default_factory=dict)
    """By node code, time and run of the last event of `WRONG`."""
    wanted: int = 0
    """Rounds that the run is to have."""


class Records:
    """The records of one federation's runs."""

    def __init__(self, home: Path, federation: str) -> None:
        """Read nothing yet."""
        self._home, self._federation = home, federation
        self._known: dict[str, Record] = {}
        self._others: set[str] = set()

    def read(self) -> list[Record]:
        """Return what the newest runs say, the newest first; a damaged one says nothing."""
        found = []
        for run in list_runs(self._home):
            if run not in self._others:
                with suppress(StateError):
                    found.append(self._one(run))
        of_ours = [record for record in found if record is not None]
        return sorted(of_ours, key=lambda record: record.created, reverse=True)[:LATEST]

    def _one(self, run: str) -> Record | None:
        path = self._home / "runs" / run / "ledger.sqlite"
        with Ledger(path, read_only=True) as ledger:
            seq = ledger.head()[0]
            known = self._known.get(run)
            if known is not None and known.seq == seq:
                return known
            begun = ledger.begun()
            if begun is None:
                return None
            config = begun.config
            ours = config.get(OF_FEDERATION, self._federation) == self._federation
            if FLOWER_RUN not in config or not ours:
                self._others.add(run)
                return None
            wanted = config.get("rounds")
            found = Record(run, begun.created, seq, wanted=wanted if type(wanted) is int else 0)
            for record in ledger.rounds():
                if (record.phase, record.outcome) == ("train", "finished"):
                    found.finished += 1
                    found.rounds.update(record.survivors)
            for event in ledger.events():
                if event.node and event.kind in WRONG:
                    found.wrong[event.node] = (_code(event), _at(event), run)
        self._known[run] = found
        return found


def _code(event: Event) -> str:
    return event.code if event.kind in _CODED and event.code else event.kind


def _at(event: Event) -> float:
    try:
        return datetime.fromisoformat(event.at).timestamp()
    except ValueError:
        return 0.0
