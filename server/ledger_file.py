"""The SQLite file of a ledger: how it is opened, and what each of its errors asks for.

A reader changes nothing, yet SQLite makes a `-shm` file beside a database in WAL mode. Where that
cannot be, on a read-only or a full disk, and there is no `-wal` file with rows of its own, the
file is read as one that nobody writes.

| SQLite says | the operator |
|---|---|
| FULL, IOERR | frees the disk or sees to it, and resumes the run |
| READONLY, CANTOPEN, PERM, AUTH | gives this user the directory, or copies the run elsewhere |
| BUSY, LOCKED | ends the process that holds it |
| CONSTRAINT | looks which other process runs the run |
| any other | restores a backup |
"""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

from ..host.disk_room import ROOM_BYTES, free_bytes
from ..protocol.errors import StateError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

APPLICATION_ID = 0x554D424C  # "UMBL"
SCHEMA_VERSION = 1
SCHEMA = """
CREATE TABLE run (seq INTEGER PRIMARY KEY, run TEXT NOT NULL UNIQUE, created TEXT NOT NULL,
  security TEXT NOT NULL, config TEXT NOT NULL, hash BLOB NOT NULL);
CREATE TABLE round (seq INTEGER PRIMARY KEY, round INTEGER NOT NULL, attempt INTEGER NOT NULL,
  phase TEXT NOT NULL, outcome TEXT NOT NULL, cause TEXT NOT NULL, roster TEXT NOT NULL,
  survivors TEXT NOT NULL, model TEXT NOT NULL, metrics TEXT NOT NULL, seconds TEXT NOT NULL,
  bytes_up INTEGER NOT NULL, bytes_down INTEGER NOT NULL, hash BLOB NOT NULL,
  UNIQUE (round, phase, attempt));
CREATE UNIQUE INDEX once ON round (round, phase) WHERE outcome = 'finished';
CREATE TABLE event (seq INTEGER PRIMARY KEY, at TEXT NOT NULL, kind TEXT NOT NULL,
  round INTEGER NOT NULL, attempt INTEGER NOT NULL, node TEXT NOT NULL, code TEXT NOT NULL,
  detail TEXT NOT NULL, hash BLOB NOT NULL);
"""
_BEGUN = ("SELECT 1 FROM round", "SELECT 1 FROM event WHERE kind = 'initial'")
_SHM_BYTES = 1 << 16
"""Twice what SQLite needs for a `-shm` file."""
_NO_SPACE = {sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR}
_NO_ENTRY = {
    *(sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH),
}
_HELD = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}


def connect(path: Path, *, read_only: bool) -> sqlite3.Connection:
    """Open a ledger's file; unless `read_only`, it is made (0600) when it is absent or empty.

    Raises:
        StateError: It is missing (read-only), damaged, no ledger of this version, or cannot be
            opened.
    """
    with watched(path):
        if path.exists() and not path.is_file():
            raise StateError(str(path), "a ledger", "no regular file", "move it away")
        if not read_only:
            os.close(os.open(path, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW, 0o600))
            return _opened(path, "rw", make=path.stat().st_size == 0)
        if not path.exists():
            raise StateError(str(path), "a ledger", "no such file", "see `umbel runs list`")
        try:
            return _opened(path, "ro", make=False)
        except sqlite3.OperationalError as error:
            if _code(error) not in _NO_ENTRY | _NO_SPACE or _has_wal(path) or _takes_files(path):
                raise
        return _opened(path, "ro&immutable=1", make=False)


@contextmanager
def transaction(db: sqlite3.Connection) -> Iterator[None]:
    """Write all of it or nothing, beginning with the write lock; a part of one that is open."""
    if db.in_transaction:
        yield
        return
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:  # SQLite ends it itself where the disk failed
            db.execute("ROLLBACK")
        raise


def is_blank(path: Path) -> bool:
    """Tell whether a ledger's file is not there, or knows no model: nothing is lost with it."""
    if not path.exists() or path.stat().st_size == 0:
        return True
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as db:
            return not _schema(db) or not any(db.execute(query).fetchone() for query in _BEGUN)
    except sqlite3.Error:
        return False


@contextmanager
def watched(path: Path) -> Iterator[None]:
    """Turn errors of the database or the file system into one line with the next move."""
    try:
        yield
    except sqlite3.IntegrityError as error:
        raise StateError(
            str(path), "one record an attempt and one finish a round", error,
            "another process may run this run; look with `umbel runs show`",
        ) from error  # fmt: skip
    except sqlite3.Error as error:
        expected, move = _asks(_code(error), path)
        space = _code(error) in _NO_SPACE
        got = f"{free_bytes(path.parent)} bytes, and {error}" if space else str(error)
        raise StateError(str(path), expected, got, move) from error
    except UnicodeDecodeError as error:  # an error's own text quotes the damage
        raise _damaged(path, "a ledger that can be read", "bytes that are no text") from error
    except OSError as error:
        raise StateError(
            str(path), "a ledger that can be read and written", error.strerror or error,
            "see to the disk and to the file's owner and mode, then resume the run",
        ) from error  # fmt: skip


def check(db: sqlite3.Connection, path: Path) -> None:
    """Read every page of the file, tables and indexes, and compare the schema with ours.

    Raises:
        StateError: A page is damaged, or the schema is another one.
    """
    with watched(path):
        (found,) = db.execute("PRAGMA integrity_check(1)").fetchone()
        schema = _schema(db)
    if found != "ok":
        raise _damaged(path, "sound pages", " ".join(str(found).split()))
    with closing(sqlite3.connect(":memory:")) as own:
        own.executescript(SCHEMA)
        expected = _schema(own)
    if schema != expected:
        raise _damaged(path, "the tables of a ledger", "others")


def _opened(path: Path, mode: str, *, make: bool) -> sqlite3.Connection:
    uri = f"{path.absolute().as_uri()}?mode={mode}"
    db = sqlite3.connect(uri, uri=True, isolation_level=None, timeout=10.0, check_same_thread=False)
    db.text_factory = _text
    try:
        if make:
            db.execute("PRAGMA journal_mode = WAL")
            db.executescript(
                f"BEGIN; {SCHEMA} PRAGMA application_id = {APPLICATION_ID}; "
                f"PRAGMA user_version = {SCHEMA_VERSION}; COMMIT;"
            )
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)")  # a copy of the file alone has its tables
        _check_ours(db, path)
        if mode == "rw":
            db.execute("PRAGMA synchronous = FULL")
    except BaseException:
        db.close()
        raise
    return db


def _check_ours(db: sqlite3.Connection, path: Path) -> None:
    names = ("application_id", "user_version")
    mine = tuple(db.execute(f"PRAGMA {name}").fetchone()[0] for name in names)
    if mine == (0, 0) and not _schema(db):
        raise StateError(
            str(path), "a ledger with a run", "an empty one",
            "copy the run with its -wal file, or start it again if it never began",
        )  # fmt: skip
    if mine != (APPLICATION_ID, SCHEMA_VERSION):
        raise StateError(
            str(path), f"a ledger, version {SCHEMA_VERSION}", f"another file {mine}",
            "move it away, or use the release that wrote it",
        )  # fmt: skip


def _asks(code: int, path: Path) -> tuple[str, str]:
    """Return what was expected and the next move for an error of SQLite."""
    if code in _NO_SPACE:
        move = f"free the disk or see to it, then `umbel runs resume {path.parent.name}`"
        return f"{ROOM_BYTES} bytes free, and a disk that takes the next rows", move
    if code in _NO_ENTRY:
        move = "give this user the directory, or copy the run with its -wal file elsewhere"
        return "a ledger that can be opened", move
    if code in _HELD:
        return "a ledger that no other process holds", "stop that process"
    return "a ledger that can be read", "restore the file from a backup; do not resume from it"


def _text(data: bytes) -> str:
    """Return a text that may have been damaged; the chain tells."""
    return data.decode("utf-8", "backslashreplace")


def _code(error: sqlite3.Error) -> int:
    """Return the primary result code; -1 for an error of Python's module itself."""
    return getattr(error, "sqlite_errorcode", -1) & 0xFF


def _has_wal(path: Path) -> bool:
    wal = path.with_name(path.name + "-wal")
    return wal.exists() and wal.stat().st_size > 0


def _takes_files(path: Path) -> bool:
    """Tell whether a file of SQLite's could be made beside this one: then it was something else."""
    writable = os.access(path.parent, os.W_OK) and not os.statvfs(path).f_flag & os.ST_RDONLY
    return writable and free_bytes(path.parent) >= _SHM_BYTES


def _schema(db: sqlite3.Connection) -> list[tuple[str, ...]]:
    query = "SELECT type, name, tbl_name, sql FROM sqlite_master ORDER BY name"
    return db.execute(query).fetchall()


def _damaged(path: Path, expected: str, got: str) -> StateError:
    move = "restore the file from a backup; do not resume from it"
    return StateError(str(path), expected, got, move)
