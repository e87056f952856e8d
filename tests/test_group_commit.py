"""Commits in groups: the models that stay, all rows in order, an error said and nothing after."""

from __future__ import annotations

import shutil
from collections import namedtuple
from typing import TYPE_CHECKING

import numpy as np
import pytest

from umbel.protocol.digest import model_digest
from umbel.protocol.errors import StateError
from umbel.protocol.manifest import Manifest
from umbel.server.group_commit import GroupCommit
from umbel.server.ledger import RoundRecord
from umbel.server.run_directory import RunDirectory

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LONG = 600.0
"""Seconds between two commits: never, in these tests, unless somebody must wait for one."""
MODEL = {"w": np.arange(4, dtype=np.float32)}
MANIFEST = Manifest.of(MODEL)
DIGEST = model_digest(MANIFEST.pack(MODEL))
_Usage = namedtuple("_Usage", "total used free")


@pytest.fixture
def run(tmp_path: Path) -> Iterator[RunDirectory]:
    with RunDirectory.create(tmp_path, "r") as made:
        made.ledger.create_run("r", "2026-01-01T00:00:00Z", {}, "off")
        yield made


def _round(disk: GroupCommit, n: int, best: int | None = None, *held: int) -> None:
    if n:
        disk.ledger.event("note", round=n, attempt=0, node="", code=f"{n}", at="")
    disk.write_round(n, MODEL, MANIFEST, DIGEST, {"n": n})
    if n:
        disk.ledger.commit_round(
            RoundRecord(round=n, attempt=0, phase="train", outcome="finished", model=DIGEST.hex())
        )
        disk.prune(best, *held)


def test_a_group_has_all_rows_and_the_models_that_stay(run: RunDirectory) -> None:
    with GroupCommit(run, LONG) as disk:
        for n in range(8):
            _round(disk, n, 3 if n >= 3 else None, *((5, n - 1) if n >= 6 else ()))
        assert run.kept() == ()
        assert disk.latest() == 7
        assert run.kept() == (3, 5, 6, 7)  # 0 was there until the pruning
    assert run.committed() == set(range(8))
    assert [run.stored_extra(n) for n in (3, 7)] == [{"n": 3}, {"n": 7}]
    codes = [event.code for event in run.ledger.events() if event.kind == "note"]
    assert codes == [str(n) for n in range(1, 8)]
    assert run.ledger.verify() == 1 + 1 + 7 + 7  # run, initial model, notes, rounds


def test_a_round_that_is_not_committed_is_in_no_group(run: RunDirectory) -> None:
    with GroupCommit(run, LONG) as disk:
        _round(disk, 0)
        _round(disk, 1)
        disk.write_round(2, MODEL, MANIFEST, DIGEST, {})
        assert disk.latest() == 1
        assert run.kept() == (0, 1)


def test_moments_are_copied_and_what_is_left_is_written_at_the_end(run: RunDirectory) -> None:
    moment = bytearray(MANIFEST.total_bytes)
    with GroupCommit(run, LONG) as disk:
        _round(disk, 0)
        disk.write_round(1, MODEL, MANIFEST, DIGEST, {}, {"m": memoryview(moment)})
        moment[:] = b"\xff" * len(moment)
        disk.commit_round(
            RoundRecord(round=1, attempt=0, phase="train", outcome="finished", model=DIGEST.hex())
        )
        assert (state := disk.state()) is not None
        assert b"\xff" not in state.path.read_bytes()[-16:]
        disk.event("last", round=1, attempt=0)
    assert [event.kind for event in run.ledger.events()][-1] == "last"


def test_time_brings_a_commit(run: RunDirectory) -> None:
    with GroupCommit(run, 0.01) as disk:
        _round(disk, 0)
        _round(disk, 1)
        while 1 not in run.kept():
            disk.flush()
    assert run.latest() == 1


def test_an_error_is_raised_by_what_comes_next_and_nothing_is_written_after_it(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = GroupCommit(run, LONG)
    _round(disk, 0)
    assert disk.latest() == 0
    monkeypatch.setattr(shutil, "disk_usage", lambda _: _Usage(10**9, 10**9 - 4096, 4096))
    _round(disk, 1)
    for what in (disk.latest, disk.flush, disk.state, lambda: _round(disk, 2)):
        with pytest.raises(StateError, match="bytes free for this round, got 4096 bytes"):
            what()
    with pytest.raises(StateError, match="bytes free"):
        disk.__exit__(None)
    disk.__exit__(KeyError)  # another error on its way is not hidden
    assert run.committed() == {0}


def test_rows_that_belong_together_are_there_together_or_not_at_all(run: RunDirectory) -> None:
    before = run.ledger.head()

    def broken() -> None:
        with run.ledger.together():
            run.ledger.event("lost", round=1, attempt=0)
            raise KeyError

    with pytest.raises(KeyError):
        broken()
    assert run.ledger.head() == before
    with run.ledger.together():
        run.ledger.event("kept", round=1, attempt=0)
        run.ledger.event("kept", round=2, attempt=0)
    assert [event.round for event in run.ledger.events()] == [1, 2]
    assert run.ledger.verify() == 3


def test_what_is_kept_takes_no_longer_to_find_in_a_long_run(run: RunDirectory) -> None:
    """Counted in the steps of SQLite's machine: none for rounds that are not on the disk."""
    counted = []
    for first, last in ((1, 20), (21, 2000)):
        for n in range(first, last + 1):
            with run.ledger.together():
                run.ledger.commit_round(
                    RoundRecord(round=n, attempt=0, phase="train", outcome="finished")
                )
        run.write_round(last, MODEL, MANIFEST, DIGEST, {})
        steps: list[int] = []
        run.ledger._db.set_progress_handler(lambda of=steps: of.append(1), 1)  # type: ignore[misc]
        assert run.latest() == last
        run.prune(None)
        run.ledger._db.set_progress_handler(None, 1)
        counted.append(len(steps))
    assert 0 < counted[1] <= 3 * counted[0]
