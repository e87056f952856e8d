"""The files of a device that its owner's commands read: record, pause, what programs say."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from umbel.clients.history import History
from umbel.clients.history_file import (
    FILE,
    REFUSED,
    Entry,
    read_forgotten,
    read_history,
    read_totals,
)
from umbel.clients.leave import Left, read_left
from umbel.clients.pause import LEFT, PAUSED, Pause, paused
from umbel.clients.status_file import (
    AGENT,
    SESSION,
    AgentStatus,
    SessionStatus,
    read_agent,
    read_session,
)
from umbel.protocol.errors import StateError
from umbel.tests.fuzz_files import Spoilt, folder, of
from umbel.tests.fuzzing import Parser

if TYPE_CHECKING:
    from collections.abc import Callable


def _file(name: str) -> Callable[[], Path]:
    return lambda: folder() / name


def _json(value: Any) -> bytes:
    return json.dumps(asdict(value)).encode()


AGENTS = (
    AgentStatus(state="up", program=7, restarts=1),
    AgentStatus(state="waiting", until=9.5, error="no SuperLink", error_at=8.0, move="wait"),
)
JOINED = SessionStatus(
    state="exchanging", run="r-1", gateway="fl.example.org:443", up=True, since=4.5, round=3,
    phase="train", members=20, doing=5.5, rounds=2, bytes_up=1 << 20,
)  # fmt: skip

CELLS = {
    "kind": "attempt", "at": 1.5, "until": 2.5, "times": 3, "run": "r-1", "round": 7,
    "app": "ab" * 32, "members": 20, "bytes_up": 1 << 40, "outcome": "refused", "reason": "a b",
}  # fmt: skip
SUMS = {"entries": 1, "bytes_down": 9}


@cache
def _whole_history() -> bytes:
    """Return a record of two rows, in one file."""
    place = folder() / "whole"
    place.mkdir()
    history = History(place, print)
    for at in (1.0, 2.0):
        history.add(Entry(kind="attempt", at=at, until=at, run="r-1", members=3))
    history.refuse("policy", "secure.required", "the run is plain")
    history.close()
    return (place / FILE).read_bytes()


def _all(place: Path) -> object:
    return read_history(place), read_totals(place), read_forgotten(place)


def _history_bytes(data: bytes) -> object:
    try:
        with Spoilt(folder() / FILE, data):
            return _all(folder())
    finally:
        for left in ("-wal", "-shm", "-journal"):
            Path(f"{folder() / FILE}{left}").unlink(missing_ok=True)


def _history_cells(data: bytes) -> object:
    """Write values into the cells of a record, and read it."""
    try:
        cells = json.loads(data)
    except (ValueError, RecursionError):
        cells = None  # a monster
    place = folder() / "cells"
    place.mkdir(exist_ok=True)
    (place / FILE).write_bytes(_whole_history())
    with closing(sqlite3.connect(place / FILE)) as db:
        for table, known in (("entry", CELLS), ("forgotten", SUMS)):
            for column in known.keys() & cells.keys() if isinstance(cells, dict) else ():
                value = cells[column]
                text = value if isinstance(value, str | int | float) else json.dumps(value)
                try:
                    db.execute(f"UPDATE {table} SET {column} = ?", (text,))  # noqa: S608
                except (sqlite3.Error, OverflowError, UnicodeEncodeError):
                    continue
        db.commit()
    return _all(place)


def _writes(data: bytes) -> None:
    """Let a device write into a damaged record: whatever it is, nothing is raised."""
    place = folder() / "written"
    place.mkdir(exist_ok=True)
    for left in place.iterdir():
        left.unlink()
    (place / FILE).write_bytes(data)
    history = History(place, lambda _: None)
    history.settle()
    for _ in range(2):
        history.change(history.add(Entry(kind="attempt", at=1.0, until=1.0)), outcome=REFUSED)
    history.close()


OWNER = (
    Parser(
        name="history_file.read_history, bytes", errors=(StateError,), parse=_history_bytes,
        make=lambda: [_whole_history()],
    ),
    Parser(
        name="history_file.read_history, cells", form="cells", errors=(StateError,),
        make=lambda: [json.dumps({**CELLS, **SUMS}).encode(), b'{"round":1}'], parse=_history_cells,
    ),
    Parser(
        name="history, written on", errors=(), parse=_writes, make=lambda: [_whole_history()],
    ),
    Parser(
        name="status_file.read_agent", form="json", errors=(StateError,), again=_json,
        make=lambda: list(map(_json, AGENTS)),
        parse=of(_file(AGENT), lambda: read_agent(folder())),
    ),
    Parser(
        name="status_file.read_session", form="json", errors=(StateError,), again=_json,
        make=lambda: [_json(JOINED)], parse=of(_file(SESSION), lambda: read_session(folder())),
    ),
    Parser(
        name="leave.read_left", form="json", errors=(StateError,), again=_json,
        make=lambda: [_json(Left(since=1.5, node="ab" * 16, front="a.b:1", told=True))],
        parse=of(_file(LEFT), lambda: read_left(folder()) or Left(since=2.0)),
    ),
    Parser(
        name="pause.paused", form="json", errors=(), again=_json,
        make=lambda: [_json(Pause(since=1.5)), _json(Pause(since=1.5, until=1e10, now=True))],
        parse=of(_file(PAUSED), lambda: paused(folder(), 2.0) or Pause(since=2.0)),
    ),
)  # fmt: skip
