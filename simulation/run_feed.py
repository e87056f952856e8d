"""What a run in another process has recorded, as it records it: from its ledger on the disk.

A ServerApp writes `runs/ID/ledger.sqlite` and nobody tells its id beforehand: the run is the one
whose record names Flower's run. Reading takes no lock, and a poll that finds nothing new costs one
query.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from ..protocol.errors import StateError
from ..server.ledger import Ledger
from ..server.run_directory import list_runs

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from ..server.ledger import RoundRecord, RunRecord

FLOWER_RUN = "flower-run"
"""Key of a run's recorded configuration."""


def is_over(records: Sequence[RoundRecord]) -> bool:
    """Tell whether a ledger holds the last that a run does: the evaluation of its model."""
    last = records[-1] if records else None
    return last is not None and (last.phase, last.outcome) == ("evaluate", "finished")


class RunFeed:
    """The records of one run, in the order in which they are committed."""

    def __init__(self, home: Path, flower_run: int) -> None:
        """Wait for the run in the state directory `home` that Flower calls `flower_run`."""
        self._home, self._flower_run, self._others = home, str(flower_run), set[str]()
        self._ledger: Ledger | None = None
        self._seen = 0
        self._head = 0
        self.run: RunRecord | None = None
        """The run, from the first poll on that found it."""
        self.records: list[RoundRecord] = []
        self.waiting: list[tuple[int, str, list[str]]] = []
        """Round, phase and nodes of each phase that the last poll found to wait for somebody."""
        self._told = 0

    @classmethod
    def of(cls, home: Path, run: str) -> Self:
        """Return the feed of a run that is known by our own id, its records read already.

        Raises:
            StateError: There is no such run, or it cannot be read.
        """
        found = cls(home, 0)
        found._ledger = Ledger(home / "runs" / run / "ledger.sqlite", read_only=True)
        found.run = found._ledger.run()
        found.poll()
        return found

    def __enter__(self) -> Self:
        """Return this feed."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the ledger."""
        self.close()

    def close(self) -> None:
        """Close the ledger; what was read stays."""
        if self._ledger is not None:
            self._ledger.close()
            self._ledger = None

    @property
    def path(self) -> Path:
        """The run's directory.

        Raises:
            StateError: The run was not found.
        """
        if self.run is None:
            raise StateError(str(self._home / "runs"), "the record of this run", "none")
        return self._home / "runs" / self.run.run

    def poll(self) -> list[RoundRecord]:
        """Return the records that were committed since the last poll.

        Raises:
            StateError: The ledger was found and cannot be read any more.
        """
        if self._ledger is None and not self._find():
            return []
        self.waiting = []
        ledger = self._ledger
        head = ledger.head()[0] if ledger is not None else 0
        if ledger is None or head == self._head:
            return []
        self._head = head
        found = ledger.rounds()
        new = list(found[self._seen :])
        self._seen = len(found)
        self.records += new
        self._look(ledger)
        return new

    def _look(self, ledger: Ledger) -> None:
        events = ledger.events(self._told)
        self._told += len(events)
        quiet: dict[tuple[int, int, str], list[str]] = {}
        for event in events:
            if event.kind == "waiting":
                quiet.setdefault((event.round, event.attempt, event.code), []).append(event.node)
        self.waiting = [(number, phase, nodes) for (number, _, phase), nodes in quiet.items()]

    def _find(self) -> bool:
        for run in list_runs(self._home):
            if run in self._others:
                continue
            try:
                ledger = Ledger(self._home / "runs" / run / "ledger.sqlite", read_only=True)
            except StateError:  # being made at this moment
                continue
            if self._take(ledger, run):
                return True
        return False

    def _take(self, ledger: Ledger, name: str) -> bool:
        """Keep the ledger if it is the run's; one without a record yet is looked at again."""
        try:
            record = ledger.run()
        except StateError:
            ledger.close()
            return False
        if record.config.get(FLOWER_RUN) != self._flower_run:
            self._others.add(name)
            ledger.close()
            return False
        self.run, self._ledger = record, ledger
        return True
