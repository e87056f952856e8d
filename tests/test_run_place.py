"""A run's place: its name, its one writer, and that it begins once."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from umbel.protocol.errors import SettingsError, StateError
from umbel.server.ledger import Ledger
from umbel.server.run_directory import RunDirectory
from umbel.tests.damage import finish, made

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def test_a_run_is_made_once_and_has_a_plain_name(tmp_path: Path) -> None:
    path = made(tmp_path)
    with pytest.raises(StateError, match="choose another id or resume it"):
        RunDirectory.create(tmp_path, "digits-1")
    for name in ("", "..", "a/b", ".hidden", "x" * 65, "a\n"):
        with pytest.raises(SettingsError, match="run id"):
            RunDirectory.create(tmp_path, name)
    for opener in (RunDirectory.open, RunDirectory.resume):
        with pytest.raises(StateError, match="no such run; see `umbel runs list`"):
            opener(tmp_path, "other")
    assert not (tmp_path / "runs" / "other").exists()
    assert path == tmp_path / "runs" / "digits-1"


def _no_ledger(path: Path) -> None:
    (path / "ledger.sqlite").unlink()


def _an_empty_file(path: Path) -> None:
    (path / "ledger.sqlite").write_bytes(b"")


def _no_tables(path: Path) -> None:
    (path / "ledger.sqlite").unlink()
    with closing(sqlite3.connect(path / "ledger.sqlite")) as db:
        db.execute("PRAGMA journal_mode = WAL")


def _no_model(path: Path) -> None:
    """As a run that did not fit on the disk leaves it."""
    with Ledger(path / "ledger.sqlite") as ledger:
        ledger.create_run("r", "t", {"rounds": 7}, "off")
        ledger.event("warning", round=0, attempt=0, code="x")


def _no_folder(path: Path) -> None:
    (path / "rounds").rmdir()


@pytest.mark.parametrize("left", [_no_ledger, _an_empty_file, _no_tables, _no_model, _no_folder])
def test_a_run_that_was_killed_before_its_first_row_is_begun_again(
    tmp_path: Path, left: Callable[[Path], None]
) -> None:
    RunDirectory.create(tmp_path, "r").close()
    left(tmp_path / "runs" / "r")
    with RunDirectory.create(tmp_path, "r") as run:
        run.ledger.create_run("r", "t", {}, "off")
        finish(run, 0)
        assert run.ledger.verify() == 2
    with pytest.raises(StateError, match="choose another id or resume it"):
        RunDirectory.create(tmp_path, "r")


def test_a_model_or_a_ledger_that_cannot_be_read_is_never_taken_over(tmp_path: Path) -> None:
    with RunDirectory.create(tmp_path, "r") as run:
        finish(run, 0)
    (tmp_path / "runs" / "r" / "ledger.sqlite").unlink()
    with pytest.raises(StateError, match="one that exists"):
        RunDirectory.create(tmp_path, "r")
    RunDirectory.create(tmp_path, "s").close()
    (tmp_path / "runs" / "s" / "ledger.sqlite").write_bytes(b"dear diary " * 1000)
    with pytest.raises(StateError, match="one that exists"):
        RunDirectory.create(tmp_path, "s")
