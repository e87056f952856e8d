"""`umbel runs verify`: any byte that is not what was written, while a run is written or after."""

from __future__ import annotations

import json
import random
import re
import shutil
import sqlite3
import threading
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from umbel.cli import main
from umbel.protocol.errors import StateError
from umbel.server.round_folder import MODEL_FILE
from umbel.server.run_check import verify
from umbel.server.run_directory import RunDirectory
from umbel.tests.damage import DAMAGE, RUN, digest, finish, flip, made

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def wrong(home: Path) -> tuple[str, ...]:
    """Return what `verify` says of the run; a ledger that cannot be opened is one line, too."""
    try:
        with RunDirectory.open(home, RUN) as run:
            return verify(run).wrong
    except StateError as error:
        return (str(error),)


def test_a_run_in_order(tmp_path: Path) -> None:
    made(tmp_path, 5)
    with RunDirectory.open(tmp_path, RUN) as run:
        found = verify(run)
        assert found.rounds == {n: digest(n) for n in (3, 4, 5)}
        assert (found.rows, found.head) == (7, run.ledger.head()[1])
    assert (found.wrong, found.lost, found.passed) == ((), (), ())


def test_a_test_of_a_model_that_its_round_has_not_is_named(tmp_path: Path) -> None:
    made(tmp_path, 5)
    with RunDirectory.resume(tmp_path, RUN) as run:
        run.ledger.event("tested", round=2, attempt=0, code=digest(2))  # pruned since
        run.ledger.event("tested", round=5, attempt=0, code=digest(5))
    assert wrong(tmp_path) == ()
    with RunDirectory.resume(tmp_path, RUN) as run:
        run.ledger.event("tested", round=5, attempt=0, code=digest(4))
    (line,) = wrong(tmp_path)
    assert f"expected round 5 with the tested model {digest(4)}" in line


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_round_is_named(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    folder = made(tmp_path) / "rounds" / "000003"
    damage(folder)
    (line,) = wrong(tmp_path)
    assert "rounds/000003" in line
    RunDirectory.resume(tmp_path, RUN).close()
    with RunDirectory.open(tmp_path, RUN) as run:
        after = verify(run)
    assert (after.wrong, after.lost) == ((), (3,))
    assert set(after.rounds) == {1, 2}


@pytest.mark.parametrize("name", [MODEL_FILE, "manifest.json"])
def test_every_byte_of_a_round_counts(tmp_path: Path, name: str) -> None:
    path = made(tmp_path, 1) / "rounds" / "000001" / name
    data = path.read_bytes()
    with RunDirectory.open(tmp_path, RUN) as run:
        for at in range(len(data)):
            for mask in {1, 0x20, 1 + at % 255}:
                changed = bytearray(data)
                changed[at] ^= mask
                path.write_bytes(changed)
                with pytest.raises(StateError, match=f"000001/({MODEL_FILE}|manifest.json): "):
                    run.read(1)
        path.write_bytes(data)
        assert verify(run).wrong == ()


def rows(path: Path) -> list[list[tuple[object, ...]]]:
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as db:
        tables = ("SELECT * FROM run", "SELECT * FROM round", "SELECT * FROM event")
        return [db.execute(query).fetchall() for query in tables]


def _flips(home: Path, count: int | None) -> tuple[int, int]:
    """Flip bytes of the ledger; return how many were found, and how many carry nothing."""
    path = made(home, 3) / "ledger.sqlite"
    data, told = path.read_bytes(), rows(path)
    places = [at for at, byte in enumerate(data) if byte or count is None]
    found = idle = 0
    for at in places if count is None else random.Random(4).sample(places, count):  # noqa: S311
        changed = bytearray(data)
        changed[at] ^= 1 + at % 255
        path.write_bytes(changed)
        for beside in path.parent.glob("ledger.sqlite-*"):
            beside.unlink()
        if wrong(home):
            found += 1
        else:
            assert rows(path) == told, f"byte {at}"
            idle += 1
    return found, idle


def test_a_byte_of_the_ledger_is_found_or_says_nothing(tmp_path: Path) -> None:
    found, idle = _flips(tmp_path, 1200)
    assert found > 1000
    assert idle < 200  # counters of the header, and what rows that moved have left behind


@pytest.mark.slow
def test_every_byte_of_the_ledger_is_found_or_says_nothing(tmp_path: Path) -> None:
    found, idle = _flips(tmp_path, None)
    assert found + idle > 20_000


def test_a_ledger_copied_without_its_wal_is_named_and_nothing_is_dropped(tmp_path: Path) -> None:
    path = made(tmp_path / "a", 1)
    with RunDirectory.resume(tmp_path / "a", RUN) as run:  # its newest rows are in the WAL
        for n in (2, 3):
            finish(run, n)
        shutil.copytree(path, tmp_path / "runs" / RUN)
        assert verify(run).wrong == ()
    assert wrong(tmp_path) == ()
    for beside in (tmp_path / "runs" / RUN).glob("ledger.sqlite-*"):
        beside.unlink()
    expected = r"ledger.sqlite: expected row 4 as it was when round 3 was .*, got only 3 rows; copy"
    (line,) = wrong(tmp_path)
    assert re.search(expected, line)
    with pytest.raises(StateError, match=expected):
        RunDirectory.resume(tmp_path, RUN)
    with RunDirectory.open(tmp_path, RUN) as run:
        assert run.kept() == (0, 1, 2, 3)


def test_a_ledger_of_the_same_run_elsewhere_is_not_this_one(tmp_path: Path) -> None:
    """The same models, the same chain up to the run's row; another history."""
    path, other = made(tmp_path, 2), made(tmp_path / "elsewhere", 0)
    with RunDirectory.resume(tmp_path / "elsewhere", RUN) as run:
        run.ledger.event("warning", round=1, attempt=0, code="x")
        for n in (1, 2):
            finish(run, n)
    shutil.copy(other / "ledger.sqlite", path / "ledger.sqlite")
    (line,) = wrong(tmp_path)
    assert "expected row 3 as it was when round 2 was written, got another row; " in line


def test_it_works_while_the_run_is_written(tmp_path: Path) -> None:
    made(tmp_path, 0)
    stop, seen = threading.Event(), set[int]()

    def write() -> None:
        with RunDirectory.resume(tmp_path, RUN) as run:
            n = 0
            while not stop.is_set():
                n += 1
                finish(run, n)
                run.ledger.event("warning", round=n, attempt=0, code="x")
                run.prune(None)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        with RunDirectory.open(tmp_path, RUN) as reader:
            while len(seen) < 20 and writer.is_alive():
                found = verify(reader)
                assert found.wrong == ()
                seen.add(found.rows)
    finally:
        stop.set()
        writer.join()
    assert len(seen) == 20


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("UMBEL_HOME", str(tmp_path))
    made(tmp_path, 3)
    return tmp_path


def test_the_command(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runs", "verify", RUN]) == 0
    with RunDirectory.open(home, RUN) as run:
        head = run.ledger.head()[1]
    out = capsys.readouterr()
    assert out.out.splitlines() == [
        f"run {RUN}",
        f"ledger: 5 rows, chain intact, head {head}",
        *(f"round {n}: whole, digest {digest(n)}" for n in (1, 2, 3)),
    ]
    assert out.err == ""


def test_the_command_names_what_is_damaged(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for n in (1, 2):
        flip(home / "runs" / RUN / "rounds" / f"{n:06d}" / MODEL_FILE)
    assert main(["runs", "verify", RUN, "--format", "json"]) == 2
    out = capsys.readouterr()
    said = json.loads(out.out)
    assert list(said["rounds"]) == ["3"]
    assert [f"rounds/{n:06d}/{MODEL_FILE}" in said["wrong"][n - 1] for n in (1, 2)] == [True, True]
    assert out.err.startswith(f"umbel: run {RUN}: expected a whole record and whole models, got ")
    assert "000001" in out.err
    assert "(and 1 more)" in out.err
    assert out.err.count("\n") == 1


def test_a_damaged_run_does_not_hide_the_others(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever byte is wrong, `list` and `show` say one line about it."""
    path = made(home, 1, run="bad") / "ledger.sqlite"
    data = path.read_bytes()
    for at in random.Random(5).sample(range(len(data)), 200):  # noqa: S311
        changed = bytearray(data)
        changed[at] ^= 1 + at % 255
        path.write_bytes(changed)
        assert main(["runs", "list", "--format", "json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert [item["run"] for item in found] == ["bad", RUN]
        assert found[1]["last"] == "finished"
        status = main(["runs", "show", "bad"])
        assert (status, capsys.readouterr().err.count("\n")) in {(0, 0), (2, 1)}
