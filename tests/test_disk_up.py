"""A disk that fills under `umbel up`: the run, Flower's server and every log are on it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from umbel.server.run_check import verify
from umbel.server.run_directory import RunDirectory, list_runs
from umbel.tests.small_disk import fill, mounted

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
DIGITS = Path(__file__).resolve().parents[1] / "examples" / "digits"
UMBEL = (sys.executable, "-m", "umbel")
SOON_S = 60.0
"""Five seconds of a full disk, and what the end of every process takes on a busy machine."""


def rounds_of(home: Path) -> int:
    for run in list_runs(home):
        with RunDirectory.open(home, run) as reader:
            return max(reader.committed())
    return 0


def at_round(home: Path, number: int, process: subprocess.Popen[str]) -> None:
    end = time.monotonic() + 180
    while rounds_of(home) < number:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end, "no round finishes"
        time.sleep(0.2)


def started(home: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*UMBEL, *arguments], env=os.environ | {"UMBEL_HOME": str(home)}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip


def test_umbel_up_ends_with_one_line_and_is_resumed() -> None:
    with (
        tempfile.TemporaryDirectory(prefix="up-") as folder,  # a socket's name must be short
        mounted(Path(folder) / "home", "size=160m") as home,
    ):
        up = started(home, "up", str(DIGITS), "--edge", "3", "--gpu", "0", "--rounds", "9000")
        at_round(home, 3, up)
        fill(home / "ballast")
        _, err = up.communicate(timeout=SOON_S)
        assert up.returncode == 2, err
        (line,) = err.splitlines()
        assert re.search(r"expected \d+ bytes free .*got \d+ bytes.*free the disk", line)
        (run,) = list_runs(home)
        assert line.endswith(("then resume", f"then `umbel runs resume {run}`"))
        (home / "ballast").unlink()
        with RunDirectory.open(home, run) as reader:
            assert verify(reader).wrong == ()
            before = max(reader.committed())
        again = started(home, "runs", "resume", run)
        at_round(home, before + 3, again)
        again.send_signal(signal.SIGINT)
        again.communicate(timeout=120)
        with RunDirectory.open(home, run) as reader:
            found = verify(reader)
            finished = [r.round for r in reader.ledger.rounds() if r.outcome == "finished"]
        assert (found.wrong, found.lost) == ((), ())
        assert finished == list(range(1, len(finished) + 1))
