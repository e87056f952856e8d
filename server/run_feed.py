"""What a run in another process has recorded, as it records it: from its ledger on the disk.

A ServerApp writes `runs/ID/ledger.sqlite` and nobody tells its id beforehand: the run is the one
whose record names Flower's run. Reading takes no lock, and a poll that finds nothing new costs one
query.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from . import reviews
from .disk_space import SERVER_TEST
from .evaluators import NO_DATA
from .ledger import TESTED, UNTESTED, Ledger
from .run_directory import list_runs
from .settings import FLOWER_RUN, SIMULATION
from ..protocol.errors import StateError

if TYPE_CHECKING:
    from pathlib import Path

    from .ledger import RoundRecord, RunRecord
    from .reviews import Item


class RunFeed:
    """The records of one run, in the order in which they are committed."""

    def __init__(self, home: Path, flower_run: int) -> None:
        """Wait for the run in the state directory `home` that Flower calls `flower_run`."""
        self._home, self._flower_run, self._others = home, str(flower_run), set[str]()
        self._ledger: Ledger | None = None
        self._head = 0
        self.run: RunRecord | None = None
        """The run, from the first poll on that found it."""
        self.records: list[RoundRecord] = []
        self.waiting: list[tuple[int, str, list[str]]] = []
        """Round, phase and nodes of each phase that the last poll found to wait for somebody."""
        self.tested: list[RoundRecord] = []
        """Earlier records that the last poll found to have a test of their models now."""
        self.untested: list[tuple[int, str]] = []
        """Rounds that it found to have none, and why."""
        self.said: list[str] = []
        """What it found to be said about items for review, and about decisions."""
        self.items: tuple[Item, ...] = ()
        self._told = 0
        self._tried: set[int] = set()
        """Rounds whose models were tested, or cannot be; 0 where there is nothing to test with."""

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

    @property
    def over(self) -> bool:
        """Whether the run has done its last: its model is evaluated and, if it is to be, tested."""
        last = self.records[-1] if self.records else None
        if self.run is not None and SIMULATION in self.run.config:
            rounds = self.run.config.get("rounds")
            return last is not None and (last.round, last.outcome) == (rounds, "finished")
        if last is None or (last.phase, last.outcome) != ("evaluate", "finished"):
            return False
        tests = self.run is not None and bool(self.run.config.get(SERVER_TEST))
        done = [r.round for r in self.records if (r.phase, r.outcome) == ("train", "finished")]
        return not tests or max(done, default=0) in self._tried or 0 in self._tried

    def poll(self) -> list[RoundRecord]:
        """Return the records that were committed since the last poll.

        Raises:
            StateError: The ledger was found and cannot be read any more.
        """
        if self._ledger is None and not self._find():
            return []
        self.waiting, self.tested, self.untested, self.said = [], [], [], []
        ledger = self._ledger
        head = ledger.head()[0] if ledger is not None else 0
        if ledger is None or head == self._head:
            return []
        self._head = head
        self._look(ledger)
        found, before = list(ledger.rounds()), self.records
        self.tested = [now for was, now in zip(before, found, strict=False) if now != was]
        self.records = found
        return found[len(before) :]

    def _look(self, ledger: Ledger) -> None:
        events = ledger.events(self._told)
        self._told += len(events)
        quiet: dict[tuple[int, int, str], list[str]] = {}
        for event in events:
            if event.kind == "waiting":
                quiet.setdefault((event.round, event.attempt, event.code), []).append(event.node)
            elif event.kind in {TESTED, UNTESTED}:
                self._tried.add(0 if event.code == NO_DATA else event.round)
                if event.kind == UNTESTED:
                    self.untested.append((event.round, event.code))
        if any(event.kind in reviews.KINDS for event in events):
            self.items = reviews.items(ledger)
            self.said = reviews.told(events, self.items, self.run.run if self.run else "")
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
        if record.config.get(FLOWER_RUN) != self._flower_run or record.run != name:  # no copy
            self._others.add(name)
            ledger.close()
            return False
        self.run, self._ledger = record, ledger
        return True
