"""The device's own record on disk: what is written is read, within bounds, whatever happens."""

from __future__ import annotations

import os
import signal
import sqlite3
import stat
import subprocess
import sys
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from umbel.clients import history
from umbel.clients.history import History
from umbel.clients.history_file import (
    CONTRIBUTED,
    ENDED,
    FILE,
    INTERRUPTED,
    REFUSED,
    Asked,
    Entry,
    Totals,
    read_forgotten,
    read_history,
    read_totals,
)
from umbel.protocol.errors import StateError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    Opened = Callable[..., History]

ATTEMPT = Entry(
    kind="attempt", at=10.0, until=10.0, run="r-1", round=3, phase="train", app="ab" * 32,
    scheme="A",
)  # fmt: skip


@pytest.fixture
def opened() -> Iterator[Opened]:
    """Open records, which are closed at the end; one that is told of no log must say nothing."""
    records: list[History] = []

    def make(directory: Path, log: Callable[[str], None] = pytest.fail) -> History:
        records.append(History(directory, log))
        return records[-1]

    yield make
    for record in records:
        record.close()


def test_a_row_is_there_before_its_attempt_is_over(tmp_path: Path, opened: Opened) -> None:
    record = opened(tmp_path)
    row = record.add(ATTEMPT)
    assert read_history(tmp_path) == [ATTEMPT]
    record.change(row, until=11.0, members=20, bytes_up=5)
    record.change(row, until=12.0, survivors=19, outcome=CONTRIBUTED, bytes_down=7)
    record.close()
    expected = replace(
        ATTEMPT, until=12.0, members=20, survivors=19, outcome=CONTRIBUTED, bytes_up=5, bytes_down=7
    )
    assert os.listdir(tmp_path) == [FILE]
    assert stat.S_IMODE((tmp_path / FILE).stat().st_mode) == 0o600
    assert read_history(tmp_path) == [expected]


def test_nothing_is_there_before_anything_happened(tmp_path: Path) -> None:
    assert read_history(tmp_path) == []
    assert os.listdir(tmp_path) == []


def test_what_a_lost_process_left_open_was_interrupted(tmp_path: Path, opened: Opened) -> None:
    opened(tmp_path).add(ATTEMPT)
    done = opened(tmp_path)
    done.change(done.add(ATTEMPT), outcome=CONTRIBUTED)
    opened(tmp_path).settle()
    assert [e.outcome for e in read_history(tmp_path)] == [INTERRUPTED, CONTRIBUTED]


def test_filters(tmp_path: Path, opened: Opened) -> None:
    record = opened(tmp_path)
    for at, run in ((10.0, "a"), (20.0, "b"), (30.0, "a")):
        record.change(record.add(replace(ATTEMPT, at=at, run=run)), until=at + 5, outcome=REFUSED)
    found = {
        "run": read_history(tmp_path, Asked("a")),
        "since": read_history(tmp_path, Asked(since=25.0)),
        "before": read_history(tmp_path, Asked(before=30.0)),
        "newest": read_history(tmp_path, newest=2),
    }
    assert {name: [e.at for e in of] for name, of in found.items()} == {
        "run": [10.0, 30.0], "since": [20.0, 30.0], "before": [10.0, 20.0], "newest": [20.0, 30.0]
    }  # fmt: skip


def test_sums_are_those_of_each_run(tmp_path: Path, opened: Opened) -> None:
    assert read_totals(tmp_path) == {}
    assert Totals.of([]) == read_forgotten(tmp_path) == Totals()
    record = opened(tmp_path)
    done = replace(ATTEMPT, outcome=CONTRIBUTED, bytes_up=2, bytes_down=3)
    for run in ("b", "a", "b"):
        record.add(replace(done, run=run))
    record.refuse("limits", "k", "why", run="a")
    record.refuse("limits", "k", "why", run="a")
    b = Totals(entries=2, attempts=2, contributed=2, bytes_up=4, bytes_down=6)
    a = Totals(entries=2, attempts=1, contributed=1, refused=2, bytes_up=2, bytes_down=3)
    assert list(read_totals(tmp_path).items()) == [("b", b), ("a", a)]
    assert read_totals(tmp_path, Asked("a")) == {"a": a}
    assert Totals.of([a, b]) == Totals(
        entries=4, attempts=3, contributed=3, refused=2, bytes_up=6, bytes_down=9
    )


def test_what_repeats_the_row_before_is_counted_there(tmp_path: Path, opened: Opened) -> None:
    record = opened(tmp_path)
    for number in range(50):
        record.refuse("plain refused", "secure.required", "the run is plain")
        row = record.add(replace(ATTEMPT, round=number))
        record.change(row, until=20.0 + number, outcome=REFUSED, code="policy", reason="too few")
        record.add(Entry(kind="session", at=1.0, until=2.0, outcome=ENDED, code="policy"))
    record.refuse("plain refused", "secure.required", "the run is plain")
    record.refuse("plain refused", "secure.required", "the run is plain")
    entries = read_history(tmp_path)
    assert len(entries) == 151
    assert entries[-1].times == 2
    for number in range(50, 90):
        row = record.add(replace(ATTEMPT, round=number, bytes_up=10))
        record.change(row, until=20.0 + number, outcome=REFUSED, code="policy", reason="too few")
    *_, last = read_history(tmp_path)
    assert len(read_history(tmp_path)) == 152
    assert (last.round, last.until, last.times, last.bytes_up) == (50, 109.0, 40, 400)


def test_two_contributions_are_two_rows(tmp_path: Path, opened: Opened) -> None:
    record = opened(tmp_path)
    for _ in range(2):
        record.change(record.add(ATTEMPT), outcome=CONTRIBUTED)
    assert len(read_history(tmp_path)) == 2


def test_old_rows_go_and_their_sums_stay(
    tmp_path: Path, opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "MOST_BYTES", 256 << 10)
    record = opened(tmp_path)
    for number in range(3000):
        entry = replace(ATTEMPT, at=float(number), until=float(number), round=number)
        outcome = CONTRIBUTED if number % 3 else REFUSED
        record.add(replace(entry, outcome=outcome, bytes_up=2, bytes_down=3, reason="x" * 50))
    entries, forgotten = read_history(tmp_path), read_forgotten(tmp_path)
    kept = Totals.of(read_totals(tmp_path).values())
    assert 500 < kept.entries < 3000
    assert entries[-1].round == 2999
    assert kept.entries + forgotten.entries == 3000
    assert kept.contributed + forgotten.contributed == 2000
    assert kept.refused + forgotten.refused == 1000
    assert kept.bytes_up + forgotten.bytes_up == 6000
    assert kept.bytes_down + forgotten.bytes_down == 9000
    record.close()
    assert (tmp_path / FILE).stat().st_size <= 320 << 10


def test_words_are_one_line_of_bounded_length(tmp_path: Path, opened: Opened) -> None:
    opened(tmp_path).refuse("policy", "k", "a\nb\x1b[2J" + "é" * 5000)
    (entry,) = read_history(tmp_path)
    assert entry.reason.startswith("a b\\x1b[2Jéé")
    assert len(entry.reason.encode()) <= 1000


@pytest.mark.parametrize("content", [b"", b"no database" * 500, bytes(8192)])
def test_a_damaged_file_stops_nothing_is_said_and_put_aside(
    tmp_path: Path, opened: Opened, content: bytes
) -> None:
    (tmp_path / FILE).write_bytes(content)
    lines: list[str] = []
    record = opened(tmp_path, lines.append)
    record.add(ATTEMPT)  # may be lost
    record.add(ATTEMPT)
    assert read_history(tmp_path)[-1] == ATTEMPT
    if content:
        assert any("file is not a database" in line for line in lines)
        assert (tmp_path / f"{FILE}.damaged").read_bytes() == content


def test_a_directory_in_its_place_is_said_once(tmp_path: Path, opened: Opened) -> None:
    (tmp_path / FILE).mkdir()
    lines: list[str] = []
    record = opened(tmp_path, lines.append)
    for _ in range(3):
        assert record.add(ATTEMPT) == 0
        record.change(0, outcome=CONTRIBUTED)
    assert len(lines) == 1
    assert "expected a regular file" in lines[0]
    with pytest.raises(StateError, match="expected a regular file"):
        read_history(tmp_path)


def test_a_record_of_a_later_version_is_left_alone(tmp_path: Path, opened: Opened) -> None:
    opened(tmp_path).add(ATTEMPT)
    with sqlite3.connect(tmp_path / FILE) as db:
        db.execute("PRAGMA user_version = 2")
    lines: list[str] = []
    assert History(tmp_path, lines.append).add(ATTEMPT) == 0
    assert "expected a record of version 1, got 2" in lines[0]
    with pytest.raises(StateError, match="update umbel"):
        read_history(tmp_path)


def test_a_full_disk_is_said_and_the_next_row_is_tried(tmp_path: Path, opened: Opened) -> None:
    lines: list[str] = []
    record = opened(tmp_path, lines.append)
    record.add(ATTEMPT)
    db = record._db
    assert db is not None
    db.execute("PRAGMA max_page_count = 1")
    for _ in range(40):
        record.add(replace(ATTEMPT, reason="x" * 900))
    assert any("database or disk is full" in line for line in lines)
    assert len(read_history(tmp_path)) > 20  # opened anew, it went on


WRITING = """
import sys
from pathlib import Path
from umbel.clients.history import History
from umbel.clients.history_file import CONTRIBUTED, Entry
record = History(Path(sys.argv[1]), print)
record.settle()
for number in range(int(sys.argv[2]), 10**9):
    row = record.add(Entry(kind="attempt", at=1.0, until=1.0, run="r", round=number))
    print(number, flush=True)
    record.change(row, outcome=CONTRIBUTED, members=3, bytes_up=number)
"""


def test_a_process_that_is_killed_at_any_moment_leaves_all_it_had_written(tmp_path: Path) -> None:
    told = -1
    for life in range(5):
        program = [sys.executable, "-c", WRITING, str(tmp_path), str(told + 1)]
        writer = subprocess.Popen(program, stdout=subprocess.PIPE, text=True)
        assert writer.stdout is not None
        first = writer.stdout.readline()
        time.sleep(0.01 * life)
        writer.send_signal(signal.SIGKILL)
        lines = [first, *writer.stdout.read().splitlines()]
        writer.stdout.close()
        writer.wait()
        told = max(int(line) for line in lines if line.strip().isdigit())
        entries = read_history(tmp_path)
        rounds = [entry.round for entry in entries]
        assert rounds == list(range(len(rounds)))
        assert rounds[-1] in {told, told + 1}  # it may have died before it told the last
        told = rounds[-1]
        done = entries[:-1]
        assert {e.outcome for e in done} <= {CONTRIBUTED, INTERRUPTED}
        assert all(e.bytes_up == e.round for e in done if e.outcome == CONTRIBUTED)
        assert sum(e.outcome == INTERRUPTED for e in done) <= life
