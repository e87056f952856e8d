"""The device's own record: what it was asked, what it did and what it refused; one SQLite file.

| kind | a row for |
|---|---|
| `attempt` | one attempt at one phase of one round, from the server's `Start` on |
| `session` | what a session came to, and the bytes of it that belong to no attempt |
| `refusal` | what was refused outside an attempt: an app, an invitation, a plain message |

A row is there before the work that it is about, so a process that is killed leaves it `open`; the
next one that holds the journal marks it `interrupted`. WAL without a sync for each row: a killed
process loses nothing, a power cut the newest rows perhaps, and neither damages the file.

**A broken record never stops a training**, and is said: every writing method catches what the disk
and SQLite raise, says it once, and the device goes on. A damaged file is moved aside and another
begun. Rows go, oldest first, when they take more than `MOST_BYTES`; their sums stay. What repeats
the row before it, word for word, is counted there: nobody can push the rest out by asking again.

The full reason of a refusal stands here and nowhere else but on the console: it never travels.
"""

from __future__ import annotations

import sqlite3
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from .history_file import (
    COLUMNS,
    CONTRIBUTED,
    ENDED,
    FILE,
    INSERT,
    INTERRUPTED,
    MOST_BYTES,
    OPEN,
    PAGE,
    REFUSED,
    TEXT_BYTES,
    Entry,
    open_history,
)
from ..protocol.errors import StateError, one_line

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_SAME = ("kind", "run", "app", "scheme", "outcome", "code", "key", "reason")
"""What two rows that follow each other have in common if the second only repeats the first."""
_PASSING = {
    *(sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR),
    *(sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH),
    *(sqlite3.SQLITE_NOMEM, sqlite3.SQLITE_INTERRUPT, sqlite3.SQLITE_PROTOCOL),
}
Value = TypeVar("Value")


class History:
    """The record of one device, for its writers; nothing here raises what the disk raises."""

    def __init__(self, directory: Path, log: Callable[[str], None]) -> None:
        """Open nothing yet: the file is opened, or made, with the first row."""
        self._path = directory / FILE
        self._log = log
        self._db: sqlite3.Connection | None = None
        self._said: set[str] = set()

    def settle(self) -> None:
        """Mark what is open `interrupted`; for the one process that holds the journal."""
        change = "UPDATE entry SET outcome = ? WHERE outcome = ?"
        self._write(lambda db: db.execute(change, (INTERRUPTED, OPEN)))

    def add(self, entry: Entry) -> int:
        """Write a row and return its number; 0 where there is none to go on with.

        A row that is not open and only repeats the one before it is counted there.
        """

        def work(db: sqlite3.Connection) -> int:
            values = [_cut(getattr(entry, name)) for name in COLUMNS]
            number = db.execute(INSERT, values).lastrowid or 0
            if entry.outcome != OPEN:
                _fold(db, number)
            _evict(db)
            return number

        return self._write(work) or 0

    def change(self, number: int, **values: Any) -> None:
        """Set columns of a row; one that ends and only repeats the one before is counted there."""
        columns = ", ".join(f"{name} = ?" for name in values)
        change = f"UPDATE entry SET {columns} WHERE id = ?"  # noqa: S608 - our own names

        def work(db: sqlite3.Connection) -> None:
            db.execute(change, [*map(_cut, values.values()), number])
            if values.get("outcome", OPEN) != OPEN:
                _fold(db, number)

        if number:
            self._write(work)

    def refuse(self, code: str, key: str, reason: str, *, run: str = "", app: str = "") -> None:
        """Write that something was refused outside an attempt."""
        now = time.time()
        self.add(
            Entry(
                kind="refusal", at=now, until=now, run=run, app=app, outcome=REFUSED,
                code=code, key=key, reason=reason,
            )
        )  # fmt: skip

    def close(self) -> None:
        """Close the file."""
        db, self._db = self._db, None
        if db is not None:
            with suppress(sqlite3.Error):
                db.close()

    # -- the file -----------------------------------------------------------------------------

    def _write(self, work: Callable[[sqlite3.Connection], Value]) -> Value | None:
        """Run one transaction; what fails is said once, and the device goes on without it."""
        try:
            if self._db is None:
                self._db = open_history(self._path)
            with self._db as db:
                db.execute("BEGIN IMMEDIATE")
                return work(db)
        except (sqlite3.Error, OSError, UnicodeDecodeError, StateError) as error:
            self._say(f"history: {error}; what happens now may be missing from it")
            self.close()
            if _is_damage(error):
                self._put_aside()
        return None

    def _put_aside(self) -> None:
        """Move a damaged file out of the way; the next row begins another."""
        aside = self._path.with_name(f"{FILE}.damaged")
        with suppress(OSError):
            for suffix in ("-wal", "-shm"):
                self._path.with_name(FILE + suffix).unlink(missing_ok=True)
            self._path.replace(aside)
            self._say(f"history: what is left of the damaged file is {aside}")

    def _say(self, line: str) -> None:
        if line not in self._said:
            self._said.add(line)
            self._log(line)


def _is_damage(error: Exception) -> bool:
    """Tell whether the file itself is wrong, and not the disk, its rights, or who holds it."""
    code = getattr(error, "sqlite_errorcode", None)
    if code is None:
        return isinstance(error, UnicodeDecodeError)  # an error's own text quotes the damage
    return code & 0xFF not in _PASSING


def _fold(db: sqlite3.Connection, number: int) -> None:
    """Count a row that only repeats the one before it there, and remove it."""
    same = " AND ".join(f"old.{name} = new.{name}" for name in _SAME)
    found = db.execute(
        f"SELECT old.id, new.until, new.times, new.bytes_up, new.bytes_down "  # noqa: S608
        f"FROM entry new JOIN entry old ON {same} "
        f"WHERE new.id = ? AND old.id = (SELECT MAX(id) FROM entry WHERE id < new.id) "
        f"AND new.outcome IN (?, ?)",
        (number, REFUSED, ENDED),
    ).fetchone()
    if found is None:
        return
    old, until, times, up, down = found
    db.execute(
        "UPDATE entry SET until = ?, times = times + ?, bytes_up = bytes_up + ?, "
        "bytes_down = bytes_down + ? WHERE id = ?",
        (until, times, up, down, old),
    )
    db.execute("DELETE FROM entry WHERE id = ?", (number,))


def _evict(db: sqlite3.Connection) -> None:
    """Remove the oldest tenth of the rows when all take too much; their sums stay."""
    used = db.execute("PRAGMA page_count").fetchone()[0]
    used -= db.execute("PRAGMA freelist_count").fetchone()[0]
    if used * PAGE <= MOST_BYTES:
        return
    first, last = db.execute("SELECT MIN(id), MAX(id) FROM entry").fetchone()
    upto = first + (last - first) // 10
    db.execute(
        "UPDATE forgotten SET (entries, attempts, contributed, refused, bytes_up, bytes_down) = "
        "(SELECT entries + COUNT(*), attempts + SUM((kind = 'attempt') * times), "
        "contributed + SUM((outcome = ?) * times), refused + SUM((outcome = ?) * times), "
        "forgotten.bytes_up + SUM(entry.bytes_up), "
        "forgotten.bytes_down + SUM(entry.bytes_down) FROM entry WHERE id <= ?)",
        (CONTRIBUTED, REFUSED, upto),
    )
    db.execute("DELETE FROM entry WHERE id <= ?", (upto,))


def _cut(value: Any) -> Any:
    """Return a text as one line of bounded length in bytes, anything else as it is."""
    if not isinstance(value, str):
        return value
    return one_line(value[:TEXT_BYTES]).encode()[:TEXT_BYTES].decode(errors="ignore")
