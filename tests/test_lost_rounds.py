"""A newest round that is damaged, gone or of another run: the one before it, never a wrong one."""

from __future__ import annotations

import os
import shutil
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from umbel.protocol.errors import StateError
from umbel.protocol.manifest import Manifest
from umbel.server.round_folder import MODEL_FILE
from umbel.server.run_directory import RunDirectory
from umbel.tests.damage import DAMAGE, RUN, digest, finish, flip, made, model

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.mark.parametrize("damage", DAMAGE)
def test_the_round_before_a_damaged_one_goes_on(
    tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    folder = made(tmp_path) / "rounds" / "000003"
    damage(folder)
    there = os.path.lexists(folder)
    with RunDirectory.resume(tmp_path, RUN) as run:
        assert run.resumed is not None
        assert run.resumed.newest is not None
        assert run.resumed.newest.number == run.latest() == 2
        assert run.resumed.newest.digest.hex() == digest(2)
        assert run.resumed.newest.arrays["w"].tolist() == [2, 2, 2, 2]
        assert run.resumed.newest.manifest == Manifest.of(model(2))
        ((number, cause),) = run.resumed.lost
        assert number == 3
        assert "rounds/000003/" in cause
        finished, lost = run.ledger.rounds()[-2:]
        assert (finished.round, finished.outcome, finished.model) == (3, "finished", digest(3))
        assert (lost.round, lost.attempt, lost.phase, lost.outcome) == (3, 1, "train", "lost")
        assert (lost.model, lost.cause) == (digest(2), cause)
        assert run.committed() == {0, 1, 2}
        assert os.path.lexists(folder.with_name("000003.lost")) == there
        finish(run, 4)
    with RunDirectory.resume(tmp_path, RUN) as again:
        assert again.resumed is not None
        assert again.resumed.newest is not None
        assert (again.resumed.newest.number, again.resumed.lost) == (4, ())
        assert again.ledger.finished("train") == {1, 2, 3, 4}
        assert again.committed() == {0, 1, 2, 4}


def test_a_run_in_order_goes_on_from_its_newest_round(tmp_path: Path) -> None:
    made(tmp_path)
    for _ in range(2):
        with RunDirectory.resume(tmp_path, RUN) as run:
            assert run.resumed is not None
            assert run.resumed.newest is not None
            assert run.resumed.newest.arrays["w"].tolist() == [3, 3, 3, 3]
            assert run.resumed.lost == ()
            assert run.ledger.verify() == 5


def test_several_damaged_rounds_are_all_named_with_those_pruned_between(tmp_path: Path) -> None:
    path = made(tmp_path, 6)  # 4, 5 and 6 are kept
    for n in (4, 5, 6):
        flip(path / "rounds" / f"{n:06d}" / MODEL_FILE)
    with pytest.raises(StateError) as caught:
        RunDirectory.resume(tmp_path, RUN)
    assert "expected a whole round up to 6, got none; " in str(caught.value)
    assert "000006/00000-of-00001.safetensors" in str(caught.value)
    with RunDirectory.open(tmp_path, RUN) as reader:
        assert reader.ledger.verify() == 8  # nothing was recorded
        assert reader.kept() == (4, 5, 6)  # and nothing set aside


def test_the_best_round_serves_where_all_newer_ones_are_gone(tmp_path: Path) -> None:
    path = made(tmp_path, 0)
    with RunDirectory.resume(tmp_path, RUN) as run:
        for n in range(1, 7):
            finish(run, n)
        run.prune(2)
    for n in (4, 5, 6):
        flip(path / "rounds" / f"{n:06d}" / MODEL_FILE)
    with RunDirectory.resume(tmp_path, RUN) as run:
        assert run.resumed is not None
        assert run.resumed.newest is not None
        assert run.resumed.newest.number == 2
        assert [n for n, _ in run.resumed.lost] == [6, 5, 4, 3]
        lost = [r for r in run.ledger.rounds() if r.outcome == "lost"]
        assert [(r.round, r.model) for r in lost] == [(n, digest(2)) for n in (6, 5, 4, 3)]
        assert run.kept() == (2,)
        finish(run, 7)
        run.prune(2)
        assert run.kept() == (2, 7)


def test_an_initial_model_on_which_nothing_was_built_is_drawn_anew(tmp_path: Path) -> None:
    path = made(tmp_path, 0)
    flip(path / "rounds" / "000000" / MODEL_FILE)
    with RunDirectory.resume(tmp_path, RUN) as run:
        assert run.resumed is not None
        assert run.resumed.newest is None
        assert [n for n, _ in run.resumed.lost] == []
        finish(run, 0, 9)
    with RunDirectory.resume(tmp_path, RUN) as run:
        assert run.resumed is not None
        assert run.resumed.newest is not None
        assert run.resumed.newest.arrays["w"].tolist() == [9, 9, 9, 9]


def test_an_initial_model_of_another_run_is_foreign(tmp_path: Path) -> None:
    path = made(tmp_path, 1)
    other = made(tmp_path / "elsewhere", 1, value=5)
    for n in (0, 1):
        shutil.rmtree(path / "rounds" / f"{n:06d}")
        shutil.copytree(other / "rounds" / f"{n:06d}", path / "rounds" / f"{n:06d}")
    with pytest.raises(
        StateError, match=r"whole round up to 1, got none; .*the model of the ledger"
    ):
        RunDirectory.resume(tmp_path, RUN)


def test_a_renamed_run_is_said_before_anything_of_it_is_called_lost(tmp_path: Path) -> None:
    made(tmp_path).rename(tmp_path / "runs" / "other")
    with pytest.raises(StateError, match="expected the name of its run, digits-1, got another"):
        RunDirectory.resume(tmp_path, "other")


def test_a_resume_that_was_killed_in_the_middle_is_made_good(tmp_path: Path) -> None:
    path = made(tmp_path)
    flip(path / "rounds" / "000003" / MODEL_FILE)
    RunDirectory.resume(tmp_path, RUN).close()
    # As if it had died between the row and the rename.
    (path / "rounds" / "000003.lost").rename(path / "rounds" / "000003")
    with RunDirectory.resume(tmp_path, RUN) as run:
        assert run.resumed is not None
        assert run.resumed.newest is not None
        assert (run.resumed.newest.number, run.latest()) == (2, 2)
        assert [r.outcome for r in run.ledger.rounds()].count("lost") == 1
        assert run.kept() == (1, 2)


def test_no_rounds_at_all(tmp_path: Path) -> None:
    shutil.rmtree(made(tmp_path) / "rounds")
    with pytest.raises(StateError, match="expected a whole round up to 3, got none"):
        RunDirectory.resume(tmp_path, RUN)


def test_a_changed_ledger_is_no_ground_to_go_back(tmp_path: Path) -> None:
    path = made(tmp_path)
    with closing(sqlite3.connect(path / "ledger.sqlite")) as db:
        db.executescript("UPDATE round SET model = '00' WHERE round = 3")
    with pytest.raises(StateError, match="row 5 as it was written"):
        RunDirectory.resume(tmp_path, RUN)
    with RunDirectory.open(tmp_path, RUN) as reader:
        assert reader.kept() == (1, 2, 3)


def test_open_rounds_are_no_rounds_and_go_when_a_later_one_has_finished(tmp_path: Path) -> None:
    rounds = made(tmp_path) / "rounds"
    names = ["000002.train.0.open", "000003.evaluate.0.open", "000004.train.5.open"]
    for name in names:
        (rounds / name).mkdir()
        (rounds / name / "sum").write_bytes(b"x")
    with RunDirectory.resume(tmp_path, RUN) as run:
        assert run.kept() == (1, 2, 3)
        run.prune(None)
        left = [p.name for p in run.folders() if p.suffix == ".open"]
        assert sorted(left) == names[1:]  # the final evaluation has the last round's number
        assert (rounds / names[2] / "sum").read_bytes() == b"x"
