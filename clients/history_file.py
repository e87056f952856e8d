"""The SQLite file of a device's own record: its rows, how it is opened, and how it is read.

Everybody may read it while a session writes. What is read is checked cell by cell: a disk damages
files, and a command that shows one must not fail for it in more than one line.
"""

from __future__ import annotations

import os
import sqlite3
import stat
from contextlib import suppress
from dataclasses import astuple, dataclass, fields
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from ..protocol.errors import StateError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

FILE = "history.sqlite"
OPEN, CONTRIBUTED, CLOSED, LEFT_OUT = "open", "contributed", "closed", "left out"
REFUSED, INTERRUPTED, ENDED = "refused", "interrupted", "ended"
MOST_BYTES = 16 << 20
"""Of rows; the oldest tenth goes when there are more."""
_SPARE_BYTES = 8 << 20
PAGE = 4096
TEXT_BYTES = 1000
_BUSY_S = 2.0
"""How long a row waits for another process of this device that writes one."""
_VERSION = 1
_SCHEMA = """
CREATE TABLE entry (id INTEGER PRIMARY KEY AUTOINCREMENT, kind TEXT NOT NULL, at REAL NOT NULL,
  until REAL NOT NULL, times INTEGER NOT NULL, run TEXT NOT NULL, round INTEGER NOT NULL,
  phase TEXT NOT NULL, attempt INTEGER NOT NULL, app TEXT NOT NULL, scheme TEXT NOT NULL,
  members INTEGER NOT NULL, survivors INTEGER NOT NULL, bytes_up INTEGER NOT NULL,
  bytes_down INTEGER NOT NULL, outcome TEXT NOT NULL, code TEXT NOT NULL, key TEXT NOT NULL,
  reason TEXT NOT NULL);
CREATE TABLE forgotten (entries INTEGER NOT NULL, attempts INTEGER NOT NULL,
  contributed INTEGER NOT NULL, refused INTEGER NOT NULL, bytes_up INTEGER NOT NULL,
  bytes_down INTEGER NOT NULL);
INSERT INTO forgotten VALUES (0, 0, 0, 0, 0, 0);
PRAGMA user_version = 1;
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """One row. Times in seconds since 1970 by the device's own clock."""

    kind: str
    at: float
    until: float
    """When it ended; of an open one, when it was last written."""
    times: int = 1
    run: str = ""
    round: int = 0
    phase: str = ""
    attempt: int = 0
    app: str = ""
    """SHA-256 of the bundle, hex."""
    scheme: str = ""
    members: int = 0
    """Of the roster; 0 where the attempt ended before it was known."""
    survivors: int = 0
    """Members whose updates are in the sum; 0 where this device was not told."""
    bytes_up: int = 0
    bytes_down: int = 0
    outcome: str = OPEN
    code: str = ""
    """Of a refusal: this much the server was told."""
    key: str = ""
    reason: str = ""
    """In full; only here."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Totals:
    """Sums over rows."""

    entries: int = 0
    attempts: int = 0
    contributed: int = 0
    refused: int = 0
    bytes_up: int = 0
    bytes_down: int = 0

    @classmethod
    def of(cls, several: Iterable[Totals]) -> Self:
        """Add up."""
        sums = zip(*(astuple(one) for one in several), strict=True)
        return cls(**dict(zip([item.name for item in fields(cls)], map(sum, sums), strict=False)))


COLUMNS = {item.name: str(item.type) for item in fields(Entry)}
INSERT = (
    f"INSERT INTO entry ({', '.join(COLUMNS)}) "  # noqa: S608 - our own names
    f"VALUES ({', '.join('?' * len(COLUMNS))})"
)
_SELECT = f"SELECT {', '.join(COLUMNS)} FROM entry"  # noqa: S608
_SUMS = (
    "SELECT run, COUNT(*), SUM((kind = 'attempt') * times), SUM((outcome = ?) * times), "
    "SUM((outcome = ?) * times), SUM(bytes_up), SUM(bytes_down) FROM entry"
)
_ENDLESS = float("inf")


class Asked(NamedTuple):
    """Which rows are asked for."""

    run: str | None = None
    """Only of this run."""
    since: float = 0.0
    """Only what ended then or later, seconds since 1970."""
    before: float = _ENDLESS
    """Only what began earlier."""

    @property
    def where(self) -> tuple[str, list[Any]]:
        """The condition, and its values."""
        more = ("", []) if self.run is None else (" AND run = ?", [self.run])
        return f"until >= ? AND at < ?{more[0]}", [self.since, self.before, *more[1]]


def read_history(
    directory: Path, asked: Asked | None = None, newest: int | None = None
) -> list[Entry]:
    """Return rows, oldest first; at most so many of them, the newest.

    Raises:
        StateError: The file cannot be read, or is damaged.
    """
    path = directory / FILE
    where, values = (asked or Asked()).where
    query = f"{_SELECT} WHERE {where} ORDER BY id DESC LIMIT ?"
    rows = _read(path, query, [*values, -1 if newest is None else newest])
    return [_entry(path, row) for row in reversed(rows)]


def read_totals(directory: Path, asked: Asked | None = None) -> dict[str, Totals]:
    """Return the sums of the rows of each run, by its id, in the order in which they began.

    Raises:
        StateError: The file cannot be read, or is damaged.
    """
    path = directory / FILE
    where, values = (asked or Asked()).where
    query = f"{_SUMS} WHERE {where} GROUP BY run ORDER BY MIN(id)"
    rows = _read(path, query, [CONTRIBUTED, REFUSED, *values])
    return {_text(path, "run", run): _totals(path, sums) for run, *sums in rows}


def read_forgotten(directory: Path) -> Totals:
    """Return the sums of rows that are kept no more.

    Raises:
        StateError: The file cannot be read, or is damaged.
    """
    path = directory / FILE
    rows = _read(path, "SELECT * FROM forgotten", [])
    if not rows and os.path.lexists(path):
        raise _unusable(path, "no sums")
    return _totals(path, rows[0]) if rows else Totals()


def _read(path: Path, query: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Return the rows of a query; none where there is no file."""
    if not os.path.lexists(path):
        return []
    try:
        _check_file(path)
        db = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=_BUSY_S)
        try:
            _check_version(db, path)
            return db.execute(query, values).fetchall()
        finally:
            db.close()
    except (sqlite3.Error, OSError, UnicodeDecodeError) as error:
        raise _unusable(path, error) from error


def _totals(path: Path, sums: Sequence[Any]) -> Totals:
    names = [item.name for item in fields(Totals)]
    if len(sums) != len(names) or not all(type(n) is int and n >= 0 for n in sums):
        raise _unusable(path, "sums that are none")
    return Totals(**dict(zip(names, sums, strict=True)))


def open_history(path: Path) -> sqlite3.Connection:
    """Open the file for writing; it is made with mode 0600 where there is none."""
    with suppress(FileExistsError):  # to close a file that is open elsewhere here drops its locks
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW, 0o600))
    _check_file(path)
    db = sqlite3.connect(path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False)
    try:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = NORMAL")
        db.execute("PRAGMA wal_autocheckpoint = 128")
        db.execute("PRAGMA journal_size_limit = 1048576")
        db.execute(f"PRAGMA max_page_count = {(MOST_BYTES + _SPARE_BYTES) // PAGE}")
        db.execute("BEGIN IMMEDIATE")
        if not db.execute("SELECT 1 FROM sqlite_schema LIMIT 1").fetchone():
            for statement in filter(str.strip, _SCHEMA.split(";")):
                db.execute(statement)
        db.execute("COMMIT")
        _check_version(db, path)
    except BaseException:
        db.close()
        raise
    return db


def _check_file(path: Path) -> None:
    if not stat.S_ISREG(path.lstat().st_mode):
        raise StateError(str(path), "a regular file", "something else", "remove it")


def _check_version(db: sqlite3.Connection, path: Path) -> None:
    (found,) = db.execute("PRAGMA user_version").fetchone()
    if found != _VERSION:
        raise StateError(
            str(path), f"a record of version {_VERSION}", found, "move it away, or update umbel"
        )


def _entry(path: Path, row: Sequence[Any]) -> Entry:
    """Return a row, if each cell is of its type and a terminal can show it."""
    for (name, kind), value in zip(COLUMNS.items(), row, strict=True):
        if kind == "str":
            _text(path, name, value)
        elif type(value).__name__ != kind or not 0 <= value < _ENDLESS:
            raise _unusable(path, f"a damaged cell in `{name}`")
    return Entry(**dict(zip(COLUMNS, row, strict=True)))


def _text(path: Path, name: str, value: object) -> str:
    if not isinstance(value, str) or not value.isprintable() or len(value) > TEXT_BYTES:
        raise _unusable(path, f"a damaged cell in `{name}`")
    return value


def _unusable(path: Path, got: object) -> StateError:
    return StateError(
        str(path), "a record that can be read", got, "move it away: the device makes another"
    )
