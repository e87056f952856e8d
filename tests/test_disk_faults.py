"""A disk that is full, fails or turns read-only under a run: one line each, and the run goes on."""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import time
from functools import partial
from multiprocessing import get_context
from typing import TYPE_CHECKING

import numpy as np
import pytest

from umbel.cli import main
from umbel.protocol.errors import StateError
from umbel.server.ledger import Ledger
from umbel.server.round_folder import MODEL_FILE
from umbel.server.run_check import verify
from umbel.server.run_directory import RunDirectory
from umbel.server.write_behind import WriteBehind
from umbel.tests.damage import RUN, finish, flip, made
from umbel.tests.small_disk import bound, fill, limited, mounted, remount

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

SHAPE = (1 << 16,)
"""A quarter of a megabyte."""


def said(work: Callable[[], object]) -> str:
    """Return the line of the error that `work` ends with."""
    try:
        work()
    except StateError as error:
        return str(error)
    return "nothing"


def in_order(home: Path, newest: int) -> None:
    """Check that the run can go on from round `newest`, and goes on."""
    with RunDirectory.resume(home, RUN) as run:
        assert run.resumed is not None
        assert run.resumed.newest is not None
        assert run.resumed.newest.number == newest
        assert run.resumed.lost == ()
        assert set(run.resumed.newest.arrays["w"].tolist()) == {newest}
        assert verify(run).wrong == ()
        finish(run, newest + 1)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A tmpfs of 8 MiB with a run of three rounds."""
    with mounted(tmp_path / "disk", "size=8m") as place:
        made(place)
        yield place


def test_a_full_disk_is_said_with_both_numbers_before_a_byte_is_written(disk: Path) -> None:
    fill(disk / "ballast", 2 << 20)
    with RunDirectory.resume(disk, RUN) as run:
        line = said(partial(finish, run, 4))
        assert sorted(p.name for p in run.folders()) == ["000001", "000002", "000003"]
    needed = 64 + 65536 + (4 << 20)  # a model of 16 bytes fills one line of 64
    found = re.search(rf"runs/{RUN}: expected {needed} bytes free for this round, got (\d+)", line)
    assert found is not None
    assert 0 < int(found[1]) <= 2 << 20
    assert line.endswith(f"; free the disk, then `umbel runs resume {RUN}`")
    (disk / "ballast").unlink()
    in_order(disk, 3)


def test_a_disk_without_room_for_another_file(tmp_path: Path) -> None:
    """The bytes are free, and what is missing shows only when the folder is made."""
    with mounted(tmp_path / "disk", "size=16m", "nr_inodes=24") as place:
        made(place)
        with RunDirectory.resume(place, RUN) as run:
            while True:
                try:
                    os.mkdir(place / f"ballast-{len(list(place.iterdir()))}")
                except OSError:
                    break
            line = said(partial(finish, run, 4))
        assert re.search(
            r"rounds/000004: expected \d+ bytes free .* got \d+ bytes, and No space left", line
        )
        assert line.endswith(f"free the disk, then `umbel runs resume {RUN}`")
        for ballast in place.glob("ballast-*"):
            ballast.rmdir()
        in_order(place, 3)


def test_a_file_that_may_grow_no_further(tmp_path: Path) -> None:
    """The kernel refuses a write in the middle of the model's file."""
    made(tmp_path)

    def work() -> str:
        with RunDirectory.resume(tmp_path, RUN) as run:
            line = said(partial(finish, run, 4, 4, SHAPE))
            assert sorted(p.name for p in run.folders()) == ["000001", "000002", "000003"]
        return line

    line = limited(200_000, work)
    assert re.search(
        r"rounds/000004: expected \d+ bytes free .* got \d+ bytes, and .*too large", line
    )
    in_order(tmp_path, 3)


def test_a_ledger_on_a_full_disk(disk: Path) -> None:
    with RunDirectory.resume(disk, RUN) as run:
        finish(run, 4)
        fill(disk / "ballast")
        line, rows = "nothing", run.ledger.verify()
        while line == "nothing":  # its -wal file may have a page of room
            line, rows = said(partial(_event, run.ledger)), rows + (line == "nothing")
        expected = "ledger.sqlite: expected 1048576 bytes free, and a disk that takes the next rows"
        assert f"{expected}, got " in line
        assert line.endswith(
            f"database or disk is full; free the disk or see to it, then `umbel runs resume {RUN}`"
        )
        assert said(partial(_event, run.ledger)) == line
        with Ledger(run.ledger.path, read_only=True) as reader:
            assert reader.verify() == run.ledger.verify()
        (disk / "ballast").unlink()
        _event(run.ledger)  # the connection has taken no harm
        run.ledger.verify()
    in_order(disk, 4)


def _event(ledger: Ledger) -> None:
    ledger.event("warning", round=4, attempt=0, code="x" * 1000)


def test_a_ledger_whose_disk_fails_to_write(tmp_path: Path) -> None:
    """SQLite's I/O error: the kernel refuses the write for another reason than space."""
    made(tmp_path)

    def work() -> str:
        with RunDirectory.resume(tmp_path, RUN) as run:
            for _ in range(200):
                if (line := said(partial(_event, run.ledger))) != "nothing":
                    return line
        return "nothing"

    line = limited(100_000, work)
    assert re.search(r"ledger.sqlite: expected .* got \d+ bytes, and disk I/O error; free", line)
    in_order(tmp_path, 3)


def test_a_sector_that_cannot_be_read(tmp_path: Path) -> None:
    """Reading there gives EIO, of the model's file and of the ledger: page 0 of a process."""
    path, memory = made(tmp_path), f"/proc/{os.getpid()}/mem"
    with bound(memory, path / "rounds" / "000003" / MODEL_FILE, tmp_path):
        with pytest.raises(OSError, match="Errno 5"):
            (path / "rounds" / "000003" / MODEL_FILE).read_bytes()
        with RunDirectory.open(tmp_path, RUN) as run:
            (line,) = verify(run).wrong
        assert "got Input/output error" in line
        with RunDirectory.resume(tmp_path, RUN) as run:
            assert run.resumed is not None
            assert run.resumed.newest is not None
            assert (run.resumed.newest.number, run.resumed.lost[0][0]) == (2, 3)
    with bound(memory, path / "ledger.sqlite", tmp_path):
        for opener in (RunDirectory.open, RunDirectory.resume):
            line = said(partial(opener, tmp_path, RUN))
            assert re.search(
                r"ledger.sqlite: expected .* got \d+ bytes, and disk I/O error; ", line
            )


@pytest.mark.parametrize("how", ["ro", "full"])
def test_a_run_is_read_where_nothing_can_be_written(
    disk: Path, how: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("UMBEL_HOME", str(disk))
    if how == "ro":
        remount(disk, "ro")
    else:
        fill(disk / "ballast")
    for command in (["list"], ["show", RUN], ["verify", RUN]):
        assert main(["runs", *command]) == 0
        out = capsys.readouterr()
        assert (RUN in out.out, out.err) == (True, "")
    if how == "ro":
        line = said(partial(RunDirectory.resume, disk, RUN))
        assert "ledger.sqlite: expected" in line
        assert main(["runs", "export", RUN, "-o", str(disk / "m.safetensors")]) == 2
        assert "a file that can be written, got " in capsys.readouterr().err


def test_rows_in_a_wal_on_a_read_only_disk_are_not_passed_over(tmp_path: Path) -> None:
    with mounted(tmp_path / "disk", "size=8m") as place:
        path = made(tmp_path / "a", 1)
        with RunDirectory.resume(tmp_path / "a", RUN) as run:
            finish(run, 2)
            shutil.copytree(path, place / "runs" / RUN)
        (place / "runs" / RUN / "ledger.sqlite-shm").unlink()
        remount(place, "ro")
        line = said(partial(RunDirectory.open, place, RUN))
        assert line.endswith("or copy the run with its -wal file elsewhere")


# ---- killed at any moment ----------------------------------------------------------------------


def _write_on(home: Path) -> None:
    """Go on with the run, round after round, until somebody kills this process."""
    with RunDirectory.resume(home, RUN) as run, WriteBehind(run) as disk:
        number = max(run.ledger.finished("train"))
        while True:
            number += 1
            arrays = {"w": np.full(SHAPE, number, np.float32)}
            disk.later(finish, run, number, number, SHAPE)
            disk.event("warning", round=number, attempt=0, code="x", node="", at="")
            disk.prune(number - 9)
            disk.flush()
            del arrays


def _gone_on(home: Path, newest: int) -> None:
    """Wait until a round after the newest has finished."""
    end = time.monotonic() + 60
    with Ledger(home / "runs" / RUN / "ledger.sqlite", read_only=True) as ledger:
        while max(ledger.finished("train")) <= newest:
            assert time.monotonic() < end, "no round finishes"
            time.sleep(0.01)


def _kills(home: Path, count: int) -> tuple[int, int]:
    """Kill the writer so often; return the newest round and how many rounds were lost."""
    draw = random.Random(count)  # noqa: S311 - a seeded choice of moments
    path, newest, hurt = made(home), 3, 0
    for life in range(count):
        writer = get_context("fork").Process(target=_write_on, args=(home,))
        writer.start()
        if life == count // 2:  # of one life more than the draw may be left on a slow machine
            _gone_on(home, newest)
        time.sleep(draw.uniform(0.0, 0.12))
        os.kill(writer.pid or 0, signal.SIGKILL)
        writer.join()
        assert writer.exitcode == -signal.SIGKILL
        with RunDirectory.open(home, RUN) as reader:
            if not hurt:
                assert verify(reader).wrong == ()
            finished = max(reader.ledger.finished("train"))
        assert finished >= newest
        with RunDirectory.resume(home, RUN) as run:
            assert run.resumed is not None
            found = run.resumed.newest
            assert found is not None
            assert set(found.arrays["w"].tolist()) == {found.number}
            assert found.number == max(run.committed()) == run.latest()
            assert {n for n, _ in run.resumed.lost} <= {hurt}
            assert set(run.kept()) <= run.committed()
            assert not [p for p in run.folders() if p.name.startswith(".")]
            whole = found.number == finished
        newest, hurt = finished, 0
        if draw.random() < 0.2 and whole:
            hurt = finished
            flip(path / "rounds" / f"{hurt:06d}" / MODEL_FILE)
    with RunDirectory.open(home, RUN) as run:
        return newest, len(run.ledger.finished("train") - run.committed())


def test_a_writer_killed_at_any_moment_leaves_the_last_finished_round(tmp_path: Path) -> None:
    newest, _ = _kills(tmp_path, 12)
    assert newest > 3


@pytest.mark.slow
def test_a_writer_killed_at_any_moment_often(tmp_path: Path) -> None:
    newest, lost = _kills(tmp_path, 150)
    assert newest > 150
    assert lost > 5
