"""`umbel up --ranks`: a real federation, secure, whose ranks are killed again and again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import psutil  # type: ignore[import-untyped]
import pytest

from umbel.protocol.errors import StateError
from umbel.server.run_check import verify
from umbel.server.run_directory import RunDirectory, list_runs
from umbel.tests.test_disk_up import rounds_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
DIGITS = Path(__file__).resolve().parents[1] / "examples" / "digits"
ROUNDS = 30


def ranks_of(up: psutil.Process) -> dict[int, psutil.Process]:
    """Return the ranks of the core service that `umbel up` has started, by number."""
    processes = up.children(recursive=True)
    found = [one for one in processes if "umbel.server.core.rank" in one.cmdline()]
    return {int(one.cmdline()[-2]): one for one in found}


def test_rounds_go_on_whichever_rank_is_killed() -> None:
    with tempfile.TemporaryDirectory(prefix="up-") as folder:  # a socket's name must be short
        home = Path(folder) / "home"
        command = [sys.executable, "-m", "umbel", "up", str(DIGITS), "--edge", "3", "--gpu", "0"]
        up = subprocess.Popen(
            [*command, "--ranks", "2", "--rounds", str(ROUNDS), "-c", "strategy=fedadam"],
            env=os.environ | {"UMBEL_HOME": str(home)}, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        killed, after, cores = 0, 0, set()
        while up.poll() is None:
            with suppress(psutil.Error, KeyError, StateError):  # none yet, or none any more
                now, rank = rounds_of(home), ranks_of(psutil.Process(up.pid))[killed % 2]
                if now > after:
                    cores.add(rank.ppid())
                    rank.send_signal(signal.SIGKILL)
                    killed, after = killed + 1, now + 1  # one round without, all to themselves
            time.sleep(0.05)
        out, err = up.communicate()
        assert up.returncode == 0, err
        (run,) = list_runs(home)
        with RunDirectory.open(home, run) as reader:
            assert verify(reader).wrong == ()
            records = reader.ledger.rounds()
        log = (home / "federations" / "dev" / "logs" / "core.log").read_text("utf-8")
    assert "secure aggregation: on" in out
    assert [record.outcome for record in records] == ["finished"] * (ROUNDS + 1)
    assert all(len(record.survivors) == 3 for record in records)
    assert len(cores) == 1
    assert killed >= 10
    assert "was killed by SIGKILL: it is started anew, the other ranks go on" in log
