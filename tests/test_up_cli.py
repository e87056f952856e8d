"""`umbel up` as a person meets it: a secure run with a death in it, --keep, a crash.

test_up_endings.py has Ctrl-C, at every stage.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil  # type: ignore[import-untyped]
import pytest

from umbel import cli
from umbel.host import process_tree
from umbel.host.processes import read_state
from umbel.tests.flower_hello import hello

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

DIGITS = Path(__file__).resolve().parents[1] / "examples" / "digits"
UMBEL = (sys.executable, "-m", "umbel")
QUICK = ("--secure", "off", "--edge", "2")


@pytest.fixture
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A state directory in which nothing runs at the end."""
    folder = tmp_path_factory.mktemp("h")
    yield folder
    _umbel(folder, "down")


def _env(home: Path) -> dict[str, str]:
    return os.environ | {"UMBEL_HOME": str(home)}


def _umbel(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*UMBEL, *arguments], env=_env(home), cwd=home, capture_output=True, text=True,
        check=False, timeout=200,
    )  # fmt: skip


def _state(home: Path) -> dict[str, Any] | None:
    folder = home / "federations" / "dev"
    return read_state(folder) if folder.is_dir() else None


def _front(state: dict[str, Any]) -> int:
    return next((p["pid"] for p in state["programs"] if p["program"]["name"] == "front"), 0)


def _until(holds: Callable[[], Any], seconds: float = 60.0) -> Any:
    end = time.monotonic() + seconds
    while not (found := holds()):
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.05)
    return found


def _left(home: Path) -> list[str]:
    """Return the command lines of processes that belong to this home, dead ones included."""
    found = []
    for process in psutil.process_iter():
        try:
            mine = process.environ().get("UMBEL_HOME") == str(home)
        except (psutil.Error, OSError):
            continue
        if mine and process.pid != os.getpid():
            found.append(" ".join(process.cmdline()))
    return found


def test_a_secure_run_in_which_a_client_dies_and_returns(home: Path) -> None:
    done = _umbel(
        home, "up", str(DIGITS), "--edge", "5", "--rounds", "4", "--drop", "1", "--format", "json"
    )
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["security"] == "on (development CA)"
    assert answer["outcome"] == "completed"
    (victim,) = answer["killed"]
    assert (victim["name"], victim["again"]) == ("edge-4", 4)
    assert 2 <= victim["round"] <= 3
    assert victim["back_s"] < 60
    dead = answer["clients"]["edge-4"]
    rounds = [r for r in answer["rounds"] if r["outcome"] == "finished"]
    assert [(r["round"], r["phase"]) for r in rounds] == [
        (1, "train"), (2, "train"), (3, "train"), (4, "train"), (4, "evaluate"),
    ]  # fmt: skip
    assert dead in rounds[0]["survivors"]
    assert dead not in rounds[2]["survivors"]
    assert len(rounds[3]["survivors"]) == 5
    assert "edge-4 was killed" in done.stderr
    assert Path(answer["model"]).is_file()
    assert answer["accuracy"] > 0.9
    assert _state(home) is None
    assert _left(home) == []


def test_kept_crashed_and_ended(home: Path, tmp_path: Path) -> None:
    app = str(hello(tmp_path))
    kept = _umbel(home, "up", app, *QUICK, "--keep")
    assert kept.returncode == 0, kept.stderr
    assert "final 1.0" in kept.stdout
    assert "\x1b" not in kept.stdout  # a pipe gets no colours
    assert "secure aggregation: off" in kept.stdout
    assert f"FLWR_HOME={home}/federations/dev/flower/client flwr run . umbel" in kept.stdout
    state = _until(lambda: _state(home))
    keeper = psutil.Process(state["supervisor"]["pid"])
    assert process_tree.alive(keeper)
    again = _umbel(home, "up", app, *QUICK)
    assert (again.returncode, again.stdout) == (2, "")
    assert "umbel down" in again.stderr
    pid = _front(state)
    os.kill(pid, signal.SIGKILL)  # the keeper starts it again
    _until(lambda: (s := _state(home)) and _front(s) not in {0, pid})
    keeper.kill()
    left = _left(home)
    assert any("flower-superlink" in line for line in left)
    down = _umbel(home, "down")
    assert (down.returncode, down.stdout) == (
        0,
        "ended: edge-0, edge-1, front, superexec, superlink\n",
    )
    assert _left(home) == []


def test_a_wrong_flag_is_one_line_before_anything_starts(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("UMBEL_HOME", str(home))
    assert cli.main(["up", str(DIGITS), "--edge", "2"]) == 2
    assert capsys.readouterr().err == ("umbel: --edge: expected 3 or more clients in all, got 2\n")
    assert cli.main(["up", str(home)]) == 2
    assert list(home.iterdir()) == []
