"""Logs of programs that write without an end: bounded, whole lines, private, on a full disk too."""

from __future__ import annotations

import stat
import sys
import time
from typing import TYPE_CHECKING

from umbel.host import log_files
from umbel.host.log_files import bound
from umbel.host.processes import Supervisor
from umbel.host.programs import Program
from umbel.tests.small_disk import fill, mounted

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

LINES, LIMIT = 20_000, 100_000
TALK = f"""
import os, sys, time
for n in range({LINES}):
    if n % 5000 == 4999 or n == {LINES} - 100:
        sys.stdout.flush()  # whoever bounds it may be slower than it talks
        while os.fstat(1).st_size > {LIMIT}:  # and what comes between copy and cut is lost
            time.sleep(0.01)
    sys.stdout.write(f'line {{n:06d}} ' + 'x' * 100 + chr(10))
while True:
    sys.stdout.write('over' + chr(10))
    sys.stdout.flush()
    time.sleep(0.05)
"""


def numbers(path: Path) -> list[int]:
    """Return the numbers of a log's lines; every line is whole."""
    lines = [line for line in path.read_text().splitlines() if line != "over"]
    assert all(len(line) == 112 and line.startswith("line ") for line in lines)
    return [int(line.split()[1]) for line in lines]


def test_a_program_that_never_stops_talking(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_files, "LOG_BYTES", LIMIT)
    with Supervisor(tmp_path) as supervisor:
        supervisor.start(Program(name="talker", command=(sys.executable, "-c", TALK)))
        log, most = supervisor.log("talker"), 0
        older = log.with_name("talker.log.1")
        end = time.monotonic() + 60
        while "over" not in log.read_text() + (older.read_text() if older.exists() else ""):
            assert time.monotonic() < end, "it does not come to an end"
            supervisor.watch()
            most = max(most, older.stat().st_size if older.exists() else 0)
        assert 0 < most <= LIMIT + (1 << 20)  # it goes on talking while its log is copied
        kept = numbers(older) + numbers(log)
        assert kept == sorted(set(kept))
        assert kept[-1] == LINES - 1
        assert stat.S_IMODE(older.stat().st_mode) == 0o600
        assert sorted(p.name for p in log.parent.iterdir()) == ["talker.log", "talker.log.1"]


def test_a_log_within_its_bound_is_left_alone(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_text("one\ntwo\n")
    bound(tmp_path, 8)
    assert [p.name for p in tmp_path.iterdir()] == ["a.log"]
    log.write_text("one\ntwo\nthree\n")
    bound(tmp_path, 8)
    assert (log.read_text(), (tmp_path / "a.log.1").read_text()) == ("", "three\n")


def test_a_full_disk_costs_the_older_lines(tmp_path: Path) -> None:
    with mounted(tmp_path / "disk", "size=1m") as place:
        log = place / "a.log"
        log.write_bytes(b"line\n" * 120_000)
        (place / "a.log.1").write_text("old\n")
        fill(place / "ballast")
        bound(place, 500_000)
        assert sorted(p.name for p in place.iterdir()) == ["a.log", "ballast"]
        assert log.stat().st_size == 0
