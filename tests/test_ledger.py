"""The ledger: what goes in comes out, the chain tells any change, and nothing private fits."""

import hashlib
import math
import os
import sqlite3
import stat
import struct
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import fields, replace
from pathlib import Path
from types import MappingProxyType

import pytest

from umbel.protocol.errors import SettingsError, StateError
from umbel.server.ledger import Event, Ledger, RoundRecord

A, B, C = ("aa" * 16, "bb" * 16, "cc" * 16)
ROUND = RoundRecord(
    round=1,
    attempt=2,
    phase="train",
    outcome="finished",
    roster=(A, B, C),
    survivors=(A, C),
    model="5e" * 32,
    metrics={"test.accuracy": 0.9375, "test.loss": 0.25},
    seconds={"training": 1.5, "unmasking": 0.125},
    bytes_up=1234,
    bytes_down=5678,
)


def edit(path: Path, statements: str) -> None:
    """Change a file behind the ledger's back."""
    with closing(sqlite3.connect(path)) as db:
        db.executescript(statements)


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    made = Ledger(tmp_path / "ledger.sqlite")
    made.create_run("digits-1", "2026-01-02T03:04:05Z", {"lr": 0.1, "rounds": 3}, "off")
    made.event("lost", round=1, attempt=1, node=B, code="task failed", detail={"bytes": 17})
    made.event("quorum", round=1, attempt=2, detail={"ready": 3}, at="2026-01-02T03:05:00Z")
    made.commit_round(ROUND)
    yield made
    made.close()


def test_what_goes_in_comes_out(ledger: Ledger) -> None:
    ledger.close()
    with Ledger(ledger.path, read_only=True) as again:
        run = again.run()
        assert (run.run, run.created, run.security) == ("digits-1", "2026-01-02T03:04:05Z", "off")
        assert run.config == {"lr": 0.1, "rounds": 3}
        assert again.rounds() == (ROUND,)
        assert again.events() == (
            Event(
                kind="lost", round=1, attempt=1, node=B, code="task failed", detail={"bytes": 17}
            ),
            Event(
                kind="quorum", round=1, attempt=2, detail={"ready": 3}, at="2026-01-02T03:05:00Z"
            ),
        )
        assert again.verify() == 4


def test_the_file_is_private_and_durable(ledger: Ledger) -> None:
    assert stat.S_IMODE(ledger.path.stat().st_mode) == 0o600
    with closing(sqlite3.connect(ledger.path)) as db:
        assert db.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert ledger._db.execute("PRAGMA synchronous").fetchone() == (2,)  # FULL


def test_the_first_link_by_hand(tmp_path: Path) -> None:
    # canonical(): entries sorted by key, each lp(key) lp(tag) lp(value); lp = 8-byte LE length.
    def entry(key: str, tag: str, value: str) -> bytes:
        parts = [text.encode() for text in (key, tag, value)]
        return b"".join(struct.pack("<Q", len(part)) + part for part in parts)

    with Ledger(tmp_path / "l.sqlite") as ledger:
        ledger.create_run("r", "t", {"lr": 0.5}, "on")
        head = ledger.head()
    row = b"".join(
        [
            entry("config", "s", '{"lr":0.5}'),
            entry("created", "s", "t"),
            entry("run", "s", "r"),
            entry("security", "s", "on"),
            entry("seq", "i", "1"),
            entry("table", "s", "run"),
        ]
    )
    assert head == (1, hashlib.sha256(bytes(32) + row).hexdigest())


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE round SET survivors = roster",
        "UPDATE round SET metrics = replace(metrics, '0.9375', '0.9999')",
        "UPDATE event SET node = '' WHERE kind = 'lost'",
        "UPDATE run SET security = 'on'",
        "UPDATE run SET hash = zeroblob(32)",
        "DELETE FROM event WHERE kind = 'lost'",
        "DELETE FROM event WHERE kind = 'lost'; UPDATE event SET seq = 2; UPDATE round SET seq = 3",
        "UPDATE event SET seq = 9 WHERE seq = 2; UPDATE event SET seq = 2 WHERE seq = 3; "
        "UPDATE event SET seq = 3 WHERE seq = 9",
        "INSERT INTO event SELECT 5, at, kind, round, attempt, node, code, detail, hash FROM event "
        "WHERE seq = 3",
    ],
)
def test_any_change_breaks_the_chain(ledger: Ledger, change: str) -> None:
    assert ledger.verify() == 4
    edit(ledger.path, change)
    with pytest.raises(StateError, match=r"ledger\.sqlite: expected row \d as it was written"):
        ledger.verify()


def test_a_cut_tail_shows_against_a_kept_head(ledger: Ledger) -> None:
    kept = ledger.head()
    edit(ledger.path, "DELETE FROM round")
    assert ledger.verify() == 3
    assert ledger.head() != kept


def test_a_round_finishes_once(ledger: Ledger) -> None:
    for attempt in (2, 3):
        with pytest.raises(StateError, match="one finish a round"):
            ledger.commit_round(replace(ROUND, attempt=attempt))
    ledger.commit_round(replace(ROUND, attempt=3, outcome="void", cause="masks did not cancel"))
    ledger.commit_round(replace(ROUND, phase="evaluate"))
    assert ledger.verify() == 6


def test_an_outcome_is_one_of_four(ledger: Ledger) -> None:
    with pytest.raises(SettingsError, match="'finished', 'aborted', 'void', 'lost'"):
        ledger.commit_round(replace(ROUND, attempt=9, outcome="done"))


def test_a_run_is_created_once(ledger: Ledger) -> None:
    with pytest.raises(StateError, match="an empty ledger"):
        ledger.create_run("other", "t", {}, "off")
    assert ledger.verify() == 4


def test_no_column_holds_a_number_of_one_client(ledger: Ledger) -> None:
    with closing(sqlite3.connect(ledger.path)) as db:
        columns = {
            row[1]
            for table in ("run", "round", "event")
            for row in db.execute(f"PRAGMA table_info({table})")
        }
    assert columns == {
        *("seq", "hash", "run", "created", "security", "config"),
        *(field.name for field in fields(RoundRecord)),
        *("at", "kind", "node", "code", "detail"),
    }


@pytest.mark.parametrize("key", ["weight", "loss", "num-examples", "saturated", "norm"])
def test_an_event_about_a_node_says_nothing_private(ledger: Ledger, key: str) -> None:
    with pytest.raises(SettingsError, match=key):
        ledger.event("refused", round=1, attempt=1, node=A, detail={key: 3})
    ledger.event("sum", round=1, attempt=1, detail={key: 3})
    assert len(ledger.events()) == 3


def test_numbers_that_are_not_finite_and_odd_mappings(ledger: Ledger) -> None:
    metrics = {"a": math.inf, "b": math.nan, "c": 1e-300}
    record = replace(ROUND, round=2, metrics=MappingProxyType(metrics))
    ledger.commit_round(record)
    got = ledger.rounds()[1].metrics
    assert got["a"] == math.inf
    assert math.isnan(got["b"])
    assert got["c"] == 1e-300
    assert ledger.verify() == 5


def test_a_test_that_comes_later_is_shown_with_the_round_of_just_its_model(ledger: Ledger) -> None:
    plain, other = replace(ROUND, round=2, metrics={"train.loss": 0.5}), "77" * 32
    ledger.commit_round(plain)
    ledger.commit_round(replace(plain, phase="evaluate"))
    ledger.commit_round(replace(plain, round=3, outcome="void"))
    found = {"test.accuracy": 0.8125, "test.loss": math.nan}
    ledger.event("tested", round=2, attempt=0, code=other, detail={"test.loss": 9.0})
    assert ledger.rounds()[1:3] == (plain, replace(plain, phase="evaluate"))
    for number in (2, 3):
        ledger.event("tested", round=number, attempt=0, code=plain.model, detail=found)
    assert ledger.rounds()[0] == ROUND  # an older ledger has them in the round's own entry
    tested = ledger.rounds()[1].metrics
    assert (tested["train.loss"], tested["test.accuracy"]) == (0.5, 0.8125)
    assert math.isnan(tested["test.loss"])
    assert [dict(r.metrics) for r in ledger.rounds()[2:]] == [{"train.loss": 0.5}] * 2
    assert ledger.verify() == 10
    edit(ledger.path, "UPDATE event SET detail = replace(detail, '0.8125', '0.9') WHERE round = 2")
    with pytest.raises(StateError, match="row 9 as it was written"):
        ledger.verify()


def test_two_writers_keep_one_chain(ledger: Ledger) -> None:
    with Ledger(ledger.path) as other:
        for number in range(10):
            (ledger, other)[number % 2].event("tick", round=number, attempt=0)
        assert other.verify() == ledger.verify() == 14


def test_a_reader_looks_on_while_the_writer_writes(ledger: Ledger) -> None:
    with Ledger(ledger.path, read_only=True) as reader:
        assert len(reader.rounds()) == 1
        ledger.commit_round(replace(ROUND, round=2))
        assert len(reader.rounds()) == 2
        with pytest.raises(StateError, match="readonly"):
            reader.event("x", round=0, attempt=0)


def _text(path: Path) -> None:
    path.write_text("dear diary " * 100)


def _other_database(path: Path) -> None:
    edit(path, "CREATE TABLE t (x)")


def _newer(path: Path) -> None:
    Ledger(path).close()
    edit(path, "PRAGMA user_version = 2")


@pytest.mark.parametrize("make", [_text, _other_database, _newer])
def test_a_foreign_file_is_named_and_left_alone(
    tmp_path: Path, make: Callable[[Path], None]
) -> None:
    path = tmp_path / "ledger.sqlite"
    make(path)
    before = path.read_bytes()
    with pytest.raises(StateError, match=r"ledger\.sqlite: expected a ledger.*; "):
        Ledger(path)
    assert path.read_bytes() == before


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
@pytest.mark.parametrize("read_only", [True, False])
def test_what_is_no_file_is_named_and_not_waited_for(
    tmp_path: Path, make: Callable[[Path], None], read_only: bool
) -> None:
    path = tmp_path / "ledger.sqlite"
    make(path)
    with pytest.raises(StateError, match=r"ledger\.sqlite: expected a ledger, got no regular file"):
        Ledger(path, read_only=read_only)


def test_a_damaged_file_is_named(ledger: Ledger) -> None:
    ledger.close()
    data = bytearray(ledger.path.read_bytes())
    data[4096 : 4096 * 3] = b"\xaa" * (4096 * 2)
    ledger.path.write_bytes(data)
    with (
        pytest.raises(StateError, match=r"ledger\.sqlite.*restore the file from a backup"),
        Ledger(ledger.path) as again,
    ):
        again.verify()


def test_a_missing_file_is_no_ledger_to_a_reader(tmp_path: Path) -> None:
    with pytest.raises(StateError, match="no such file"):
        Ledger(tmp_path / "none.sqlite", read_only=True)
    assert not list(tmp_path.iterdir())


def test_an_empty_ledger_has_no_run(tmp_path: Path) -> None:
    with Ledger(tmp_path / "l.sqlite") as empty:
        assert empty.verify() == 0
        assert empty.head() == (0, "00" * 32)
        with pytest.raises(StateError, match="expected a run"):
            empty.run()


def test_a_hash_that_is_none_is_damage(ledger: Ledger) -> None:
    ledger.close()
    edit(ledger.path, "UPDATE round SET hash = 7")
    with Ledger(ledger.path, read_only=True) as again:
        with pytest.raises(StateError, match="rows as they were written"):
            again.head()
        with pytest.raises(StateError):
            again.verify()


def test_a_metric_that_no_float_holds_is_damage(ledger: Ledger) -> None:
    ledger.close()
    edit(ledger.path, 'UPDATE round SET metrics = \'{"a": 1' + "0" * 400 + "}'")
    with (
        Ledger(ledger.path, read_only=True) as again,
        pytest.raises(StateError, match="rows as they were written, got int too large"),
    ):
        again.rounds()


@pytest.mark.parametrize(("table", "column"), [("run", "config"), ("round", "roster")])
def test_a_column_of_another_name_is_damage(ledger: Ledger, table: str, column: str) -> None:
    ledger.close()
    edit(ledger.path, f"ALTER TABLE {table} RENAME COLUMN {column} TO other")
    with (
        Ledger(ledger.path, read_only=True) as again,
        pytest.raises(StateError, match="rows as they were written"),
    ):
        again.run() if table == "run" else again.rounds()
