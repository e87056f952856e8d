"""`issuer.sqlite`: tokens, nodes and the member list, as the issuer keeps them.

One transaction is one change: what it says is on the disk before anything of it leaves (synchronous
FULL, a rollback journal), so that whoever kills the issuer finds the state before or after. Of a
token only the SHA-256 of its secret is here. Times are seconds since 1970.

A transaction holds `issuer.lock` as well: the files that are made of the database are written
under it, by the issuer's process and by commands that work while none runs.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
from contextlib import closing, contextmanager
from functools import cache
from typing import TYPE_CHECKING

from ..protocol.errors import StateError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FILE, LOCK = "issuer.sqlite", "issuer.lock"
APPLICATION_ID = 0x554D4249  # "UMBI"
VERSION = 1
_SCHEMA = """
CREATE TABLE token (hash BLOB PRIMARY KEY, name TEXT NOT NULL, site TEXT NOT NULL,
  apps BLOB NOT NULL, created INTEGER NOT NULL, expires INTEGER NOT NULL,
  state TEXT NOT NULL CHECK (state IN ('open', 'used', 'expired', 'revoked')), node BLOB);
CREATE UNIQUE INDEX one_open ON token (name) WHERE state = 'open';
CREATE TABLE node (id BLOB PRIMARY KEY, name TEXT NOT NULL, site TEXT NOT NULL,
  tls_key BLOB NOT NULL UNIQUE, signing_key BLOB NOT NULL UNIQUE, flower_key BLOB NOT NULL UNIQUE,
  tls TEXT NOT NULL, signing TEXT NOT NULL, flower_node TEXT, enrolled INTEGER NOT NULL,
  renewed INTEGER NOT NULL, about TEXT NOT NULL, skew INTEGER NOT NULL,
  removed INTEGER, cause TEXT);
CREATE UNIQUE INDEX one_live ON node (name) WHERE removed IS NULL;
CREATE TABLE members (one INTEGER PRIMARY KEY CHECK (one = 1), epoch INTEGER NOT NULL,
  issued INTEGER NOT NULL, ca BLOB NOT NULL, signed BLOB NOT NULL);
"""
_PATIENCE_S = 20.0
"""How long a transaction waits for another program that reads the database, a backup say."""


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold a federation's issuer for one piece of work; others wait."""
    with _watched(folder / LOCK):
        handle = os.open(folder / LOCK, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
        except BaseException:
            os.close(handle)
            raise
    try:
        yield
    finally:
        os.close(handle)


@contextmanager
def transaction(folder: Path) -> Iterator[sqlite3.Connection]:
    """Open the database for one change, which is whole or not at all; under `locked`.

    Raises:
        StateError: The database is damaged or of another version, or the disk is full.
    """
    path = folder / FILE
    with _watched(path), closing(_opened(path)) as db:
        db.execute("BEGIN IMMEDIATE")
        try:
            yield db
        except BaseException:
            db.rollback()
            raise
        db.commit()


def _opened(path: Path) -> sqlite3.Connection:
    os.close(os.open(path, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
    db = sqlite3.connect(path, timeout=_PATIENCE_S, isolation_level=None)
    try:
        db.row_factory = sqlite3.Row
        db.execute("PRAGMA synchronous = FULL")
        _check_version(db, path)
    except BaseException:
        db.close()
        raise
    return db


def _check_version(db: sqlite3.Connection, path: Path) -> None:
    """Make the tables of a new database; refuse another program's, or another version's."""
    found = db.execute("PRAGMA application_id").fetchone()[0]
    version = db.execute("PRAGMA user_version").fetchone()[0]
    if (found, version) == (0, 0) and not db.execute("SELECT 1 FROM sqlite_master").fetchone():
        head = f"PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {VERSION};"
        db.executescript(f"BEGIN IMMEDIATE; {_SCHEMA} {head} COMMIT;")
        return
    if (found, version) != (APPLICATION_ID, VERSION):
        got = f"application {found:#x}, version {version}"
        raise StateError(str(path), f"an issuer's database, version {VERSION}", got, _MOVE)
    if _tables(db) != _own_tables():
        raise StateError(str(path), "the issuer's database", "other tables or columns", _MOVE)


def _tables(db: sqlite3.Connection) -> frozenset[str]:
    """Return the statements that made the tables and indices of a database."""
    rows = db.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL")
    return frozenset(row[0] for row in rows)


@cache
def _own_tables() -> frozenset[str]:
    with closing(sqlite3.connect(":memory:")) as db:
        db.executescript(_SCHEMA)
        return _tables(db)


@contextmanager
def _watched(path: Path) -> Iterator[None]:
    """Turn what the database or the disk says into one line with the next move."""
    try:
        yield
    except sqlite3.Error as error:
        raise StateError(str(path), "the issuer's database", error, _MOVE) from error
    except OSError as error:
        raise StateError(str(path), "a file to write", error.strerror or error, _MOVE) from error


_MOVE = "see to the disk, or restore the federation from a backup"
