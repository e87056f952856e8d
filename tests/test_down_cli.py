"""`umbel down`: of a supervisor that lives, of one that crashed, of nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import psutil  # type: ignore[import-untyped]

from umbel import cli
from umbel.host import process_tree
from umbel.host.processes import read_state

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

# A supervisor with two programs that ends them when it is told to, as `umbel up` does.
SUPERVISING = """
import signal, sys, time
from pathlib import Path
from umbel.host.processes import Supervisor
from umbel.host.programs import Program
def stop(*_):
    raise KeyboardInterrupt
signal.signal(signal.SIGTERM, stop)
sleep = (sys.executable, "-c", "import time; time.sleep(600)")
try:
    with Supervisor(Path(sys.argv[1])) as supervisor:
        supervisor.start(Program(name="link", command=sleep, tier=1))
        supervisor.start(Program(name="node", command=sleep))
        print("up", flush=True)
        time.sleep(600)
except KeyboardInterrupt:
    sys.exit(130)
"""


def _supervise(folder: Path) -> tuple[subprocess.Popen[bytes], list[psutil.Process]]:
    started = subprocess.Popen(
        [sys.executable, "-c", SUPERVISING, str(folder)], stdout=subprocess.PIPE
    )
    assert started.stdout is not None
    with started.stdout as out:
        assert out.readline() == b"up\n"
    state = read_state(folder)
    assert state is not None
    return started, [psutil.Process(item["pid"]) for item in state["programs"]]


def _down(home: Path, monkeypatch: pytest.MonkeyPatch, *more: str) -> int:
    monkeypatch.setenv("UMBEL_HOME", str(home))
    return cli.main(["down", *more])


def test_nothing_was_running(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _down(tmp_path, monkeypatch) == 0
    assert capsys.readouterr().out == "nothing of dev was running\n"


def test_a_living_supervisor_ends_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    started, programs = _supervise(tmp_path / "federations" / "dev")
    assert _down(tmp_path, monkeypatch) == 0
    assert started.wait() == 130
    assert not any(process_tree.alive(program) for program in programs)
    assert capsys.readouterr().out == "ended: link, node\n"


def test_what_a_crashed_one_left_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    started, programs = _supervise(tmp_path / "federations" / "other")
    started.kill()
    started.wait()
    assert _down(tmp_path, monkeypatch) == 0  # of the federation dev, which is another
    assert all(process_tree.alive(program) for program in programs)
    capsys.readouterr()
    assert _down(tmp_path, monkeypatch, "--name", "other", "--format", "json") == 0
    assert not any(process_tree.alive(program) for program in programs)
    answer = json.loads(capsys.readouterr().out)
    assert answer == {"federation": "other", "ended": ["link", "node"]}


def test_a_name_is_no_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _down(tmp_path, monkeypatch, "--name", "../other") == 2
    assert "--name: expected 1 to 63 of a-z" in capsys.readouterr().err
