"""The ledger: the append-only, hash-chained record of one run, one SQLite file.

Three tables: `run` (one row), `round` (one row an outcome), `event` (what happened on the way).
Rows of all three share one sequence 1, 2, 3, ... and each carries

    hash = SHA-256(hash of the row before, 32 zero bytes at first || canonical(row))

over its columns as stored (protocol/canonical.py). So a changed, removed or inserted row is found
by `verify`. Cutting rows off the end is not, unless somebody kept a later `head`; nor is a record
that was false when it was written.

What may stand here: roster, survivors, codes, bytes, times (docs/privacy.md, section 3). There is
no column for a weight, a metric or an update of a single client, and the detail of an event that
names a node takes the keys of `NODE_DETAIL` only. Time is passed in. WAL and synchronous=FULL: a
committed row survives a power cut.
"""

from __future__ import annotations

import json
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, field, fields, replace
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Self

from . import ledger_file
from .ledger_chain import dump, link, linked
from ..protocol.errors import SettingsError, StateError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

OUTCOMES = ("finished", "aborted", "void", "lost")
TESTED = "tested"
"""Kind of the event that has the server's own test of a round's model, which comes after the
round's entry: model digest (the code), and means by name. `rounds` shows them with the round."""
UNTESTED = "not tested"
"""... or why there is none (the code)."""
NODE_DETAIL = frozenset(
    {"boundary", "bytes", "trip", "key", "milliseconds", "position", "owner", "holder", "reason"}
)
"""Keys that an event may say about one node; their values are codes, places, bytes and times."""

_ILLEGIBLE = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError)
_TABLES = ("run", "round", "event")
_NEWEST = tuple(f"SELECT seq, hash FROM {name} ORDER BY seq DESC LIMIT 1" for name in _TABLES)  # noqa: S608


@dataclass(frozen=True, kw_only=True, slots=True)
class RunRecord:
    """The run as it was created."""

    run: str
    created: str
    """ISO 8601, UTC."""
    security: str
    """The line that the summary prints: `on (development CA)`, `off`."""
    config: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class RoundRecord:
    """One attempt at one phase of one round, closed."""

    round: int
    attempt: int
    phase: str
    """`train` or `evaluate`."""
    outcome: str
    """`finished`, `aborted` (before the sum), `void` (sum unusable) or `lost` (state gone)."""
    cause: str = ""
    """Why it did not finish, in words; no number of a single client."""
    roster: tuple[str, ...] = ()
    """Node ids, hex, in roster order."""
    survivors: tuple[str, ...] = ()
    """Node ids, hex, whose updates were folded when the survivors were fixed."""
    model: str = ""
    """Digest, hex, of the model in force after this round."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Of the aggregate, and of the server's own test of this model if there was one."""
    seconds: Mapping[str, float] = field(default_factory=dict)
    """Duration of each phase of the round table."""
    bytes_up: int = 0
    bytes_down: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Event:
    """Something that happened in a round."""

    kind: str
    round: int
    attempt: int
    node: str = ""
    """Node id, hex, or empty."""
    code: str = ""
    """A code from the fixed list of messages.proto, or of the coordinator."""
    detail: Mapping[str, float | str] = field(default_factory=dict)
    at: str = ""
    """ISO 8601, UTC, or empty."""


class Ledger:
    """The open file. One thread of one process runs the run; others may append decisions."""

    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        """Open `path`; unless `read_only`, it is created (0600) when it is absent.

        Raises:
            StateError: The file is missing (read-only), damaged, or no ledger of this version.
        """
        self.path = path
        self._db = ledger_file.connect(path, read_only=read_only)

    def __enter__(self) -> Self:
        """Return the ledger."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the file."""
        self.close()

    def close(self) -> None:
        """Close the file; what was committed is on the disk."""
        self._db.close()

    def create_run(
        self, run: str, created: str, config: Mapping[str, object], security: str
    ) -> None:
        """Write the one row of `run`.

        Args:
            run: Umbel's run id.
            created: Time of creation, ISO 8601, UTC.
            config: Settings of the run, as JSON can hold them.
            security: The line about secure aggregation that the summary prints.

        Raises:
            StateError: The ledger has a run already, or cannot be written.
        """
        row = {"run": run, "created": created, "security": security, "config": dump(config)}
        with self._watched():
            if self._db.execute("SELECT 1 FROM run").fetchone():
                raise StateError(
                    str(self.path), "an empty ledger", "one that holds a run", "resume it"
                )
            self._append("run", row)

    def event(
        self,
        kind: str,
        *,
        round: int,  # noqa: A002 - the column's name
        attempt: int,
        node: str = "",
        code: str = "",
        detail: Mapping[str, float | str] | None = None,
        at: str = "",
    ) -> None:
        """Append an event; `at` is its time, ISO 8601, UTC.

        Raises:
            SettingsError: The event names a node and its detail says more than `NODE_DETAIL`.
            StateError: The file cannot be written.
        """
        if node and (extra := sorted(set(detail or {}) - NODE_DETAIL)):
            raise SettingsError(
                f"ledger event {kind}", f"details among {sorted(NODE_DETAIL)}", extra
            )
        row = {
            "at": at, "kind": kind, "round": round, "attempt": attempt,
            "node": node, "code": code, "detail": dump(detail or {}),
        }  # fmt: skip
        with self._watched():
            self._append("event", row)

    def commit_round(self, record: RoundRecord, *beside: Event) -> None:
        """Append the outcome of an attempt; only when this returns is the round finished.

        `beside` are events of it that name no node: all is written, or nothing.

        Raises:
            SettingsError: The outcome is none of `OUTCOMES`.
            StateError: The attempt is recorded already, the round has finished already, or the
                file cannot be written.
        """
        if record.outcome not in OUTCOMES:
            raise SettingsError("ledger round.outcome", f"one of {OUTCOMES}", record.outcome)
        values = {item.name: getattr(record, item.name) for item in fields(record)}
        row = {k: v if isinstance(v, str | int) else dump(v) for k, v in values.items()}
        with self.together():
            self._append("round", row)
            for event in beside:
                self.event(**asdict(event))

    @contextmanager
    def together(self) -> Iterator[None]:
        """Let everything that is appended meanwhile be committed at the end, or nothing of it."""
        with self._watched(), ledger_file.transaction(self._db):
            yield

    def run(self) -> RunRecord:
        """Return the run.

        Raises:
            StateError: There is none yet.
        """
        found = self.begun()
        if found is None:
            raise StateError(str(self.path), "a run", "an empty ledger", "start the run again")
        return found

    def begun(self) -> RunRecord | None:
        """Return the run; None where there is none yet."""
        with self.legible():
            return next(map(_run, self._rows("run")), None)

    def rounds(self) -> tuple[RoundRecord, ...]:
        """Return every attempt in the order of commitment, each with the test of its model."""
        with self.legible():
            found = map(_event, self._rows("event", kind=TESTED))
            tests = {(event.round, event.code): event.detail for event in found}
            return tuple(_with_test(_round(row), tests) for row in self._rows("round"))

    def finished(self, phase: str) -> frozenset[int]:
        """Return the numbers of the rounds whose `phase` finished."""
        query = "SELECT round FROM round WHERE outcome = 'finished' AND phase = ?"
        with self._watched():
            return frozenset(row[0] for row in self._db.execute(query, (phase,)))

    def models(self, only: int | None = None) -> dict[int, str]:
        """Return the model digest, hex, of each training round that finished and is not lost.

        Of one round alone, if its number is given: that takes no longer in a long run.
        """
        what = "SELECT round, outcome, model FROM round WHERE phase = 'train'"
        query = f"{what} ORDER BY seq" if only is None else f"{what} AND round = ? ORDER BY seq"
        found: dict[int, str] = {}
        with self._watched():
            for number, outcome, model in self._db.execute(query, () if only is None else (only,)):
                if outcome == "finished":
                    found[number] = model
                elif outcome == "lost":
                    found.pop(number, None)
        return found

    def initial(self) -> str | None:
        """Return the digest, hex, of the initial model, if it was recorded."""
        query = "SELECT code FROM event WHERE kind = 'initial' ORDER BY seq DESC LIMIT 1"
        with self._watched():
            row = self._db.execute(query).fetchone()
        return row and str(row[0])

    def events(self, after: int = 0) -> tuple[Event, ...]:
        """Return every event in order, without the first `after`."""
        with self.legible():
            return tuple(map(_event, self._rows("event", after)))

    def linked(self, kind: str) -> tuple[tuple[str, Event], ...]:
        """Return the events of a kind in order, each behind the hash, hex, of its row."""
        with self.legible():
            return tuple((r["hash"].hex(), _event(_own(r))) for r in self._raw("event", kind=kind))

    def head(self) -> tuple[int, str]:
        """Return number and hash, hex, of the last row; kept elsewhere, it dates the chain."""
        with self._watched(), self.legible():
            seq, last = self._last()
            return seq, last.hex()

    def verify(self) -> int:
        """Check the whole chain; return the number of rows.

        Raises:
            StateError: As `chain`.
        """
        return len(self.chain())

    def chain(self) -> list[str]:
        """Check every page and the whole chain; return each row's hash, hex, in order.

        Raises:
            StateError: The file is damaged, or a row was changed, removed or inserted; the
                first such row is named.
        """
        ledger_file.check(self._db, self.path)
        with self._watched(), self._snapshot():
            rows = [(row["seq"], table, row) for table in _TABLES for row in self._raw(table)]
        chain = [bytes(32)]
        for seq, table, row in sorted(rows, key=itemgetter(0)):
            stored = row.pop("hash")
            if seq != len(chain) or stored != linked(chain[-1], table, row):
                raise StateError(
                    str(self.path), f"row {len(chain)} as it was written", f"another ({table})",
                    "restore the file from a backup; do not resume from it",
                )  # fmt: skip
            chain.append(stored)
        return [link.hex() for link in chain[1:]]

    @contextmanager
    def _snapshot(self) -> Iterator[None]:
        """Read as the file is now, whatever is written meanwhile."""
        self._db.execute("BEGIN")
        try:
            yield
        finally:
            self._db.execute("ROLLBACK")

    def _append(self, table: str, row: dict[str, Any]) -> None:
        """Chain and insert one row, in one transaction that starts with the write lock."""
        with ledger_file.transaction(self._db):
            seq, last = self._last()
            row = {"seq": seq + 1, **row}
            row["hash"] = link(last, table, row)
            names, marks = ", ".join(row), ", ".join("?" * len(row))
            self._db.execute(
                f"INSERT INTO {table} ({names}) VALUES ({marks})",  # noqa: S608 - own names
                tuple(row.values()),
            )

    def _last(self) -> tuple[int, bytes]:
        newest = [self._db.execute(query).fetchone() for query in _NEWEST]
        return max((row for row in newest if row), default=(0, bytes(32)))

    def _raw(self, table: str, after: int = 0, kind: str = "") -> list[dict[str, Any]]:
        only = "WHERE kind = ?" if kind else ""
        query = f"SELECT * FROM {table} {only} ORDER BY seq LIMIT -1 OFFSET ?"  # noqa: S608 - own
        with self._watched():
            cursor = self._db.execute(query, (*filter(None, [kind]), after))
            names = [column[0] for column in cursor.description]
            return [dict(zip(names, row, strict=True)) for row in cursor]

    def _rows(self, table: str, after: int = 0, kind: str = "") -> list[dict[str, Any]]:
        """Return the rows without what belongs to the chain."""
        return [_own(row) for row in self._raw(table, after, kind)]

    @contextmanager
    def legible(self) -> Iterator[None]:
        """Turn what a row that nobody wrote does to its reader into one line."""
        try:
            yield
        except _ILLEGIBLE as error:
            raise StateError(
                str(self.path), "rows as they were written", error,
                "restore the file from a backup; do not resume from it",
            ) from error  # fmt: skip

    def _watched(self) -> AbstractContextManager[None]:
        return ledger_file.watched(self.path)


def _own(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name not in {"seq", "hash"}}


def _run(row: dict[str, Any]) -> RunRecord:
    return RunRecord(**(row | {"config": json.loads(row["config"])}))


def _event(row: dict[str, Any]) -> Event:
    return Event(**(row | {"detail": json.loads(row["detail"])}))


def _round(row: dict[str, Any]) -> RoundRecord:
    lists = {name: tuple(json.loads(row[name])) for name in ("roster", "survivors")}
    maps = {
        name: {key: float(value) for key, value in json.loads(row[name]).items()}
        for name in ("metrics", "seconds")
    }
    return RoundRecord(**(row | lists | maps))


def _with_test(
    record: RoundRecord, tests: Mapping[tuple[int, str], Mapping[str, float | str]]
) -> RoundRecord:
    """Return a finished training round with what was found of just its model."""
    done = (record.phase, record.outcome) == ("train", "finished")
    found = tests.get((record.round, record.model)) if done else None
    if not found:
        return record
    means = {name: float(value) for name, value in found.items()}
    return replace(record, metrics={**record.metrics, **means})
