"""`umbel up` ended at every stage: by Ctrl-C, and by SIGKILL, which the next one tidies up."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import psutil  # type: ignore[import-untyped]
import pytest

from umbel.host.processes import read_state

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
DIGITS = Path(__file__).resolve().parents[1] / "examples" / "digits"
UP = (sys.executable, "-m", "umbel", "up", str(DIGITS), "--edge", "3", "--gpu", "0")


@pytest.fixture
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A state directory in which nothing runs at the end."""
    folder = tmp_path_factory.mktemp("h")
    yield folder
    subprocess.run([*UP[:3], "down"], env=_env(folder), check=False, capture_output=True)


def _env(home: Path) -> dict[str, str]:
    return os.environ | {"UMBEL_HOME": str(home)}


def _started(home: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*UP, *arguments], env=_env(home), cwd=home, text=True, start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip


def _programs(home: Path) -> set[str]:
    folder = home / "federations" / "dev"
    state = read_state(folder) if folder.is_dir() else None
    return {item["program"]["name"] for item in state["programs"]} if state else set()


STAGES: dict[str, Callable[[Path], bool]] = {
    "as it starts": lambda home: (home / "federations").exists(),
    "before the nodes": lambda home: _programs(home) == {"core", "front", "superlink", "superexec"},
    "with the nodes": lambda home: "edge-2" in _programs(home),
    "during a round": lambda home: any(home.glob("runs/*/rounds/000002")),
}


def _reach(home: Path, stage: str) -> None:
    end = time.monotonic() + 120
    while not STAGES[stage](home):
        assert time.monotonic() < end, f"waited in vain: {stage}"
        time.sleep(0.02)


def _left(home: Path) -> list[str]:
    """Return the command lines of processes that belong to this home, dead ones included."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            environ = process.environ()
            places = (environ.get("UMBEL_HOME", ""), environ.get("UMBEL_DEVICE", ""))
            if any(place.startswith(str(home)) for place in places):
                found.append(" ".join(process.cmdline()))
    return found


@pytest.mark.parametrize("stage", STAGES)
def test_ctrl_c_leaves_nothing(home: Path, stage: str) -> None:
    with _started(home, "--rounds", "200") as running:
        _reach(home, stage)
        os.killpg(running.pid, signal.SIGINT)  # as a terminal does
        said, _ = running.communicate(timeout=60)
    assert running.returncode == 130
    last, goes_on = said.splitlines()[-1], r"; `umbel runs resume digits-\S+` goes on with it"
    known = stage == "during a round"  # before, there is no run yet
    assert re.fullmatch(f"umbel: interrupted{goes_on if known else ''}", last)
    assert "Traceback" not in said
    assert _left(home) == []
    assert not (home / "federations" / "dev" / "up.json").exists()


def test_ctrl_c_at_the_end_leaves_nothing(home: Path) -> None:
    with _started(home, "--rounds", "2") as running:
        assert running.stdout is not None
        for line in running.stdout:
            if line == "ending every process\n":
                break
        for _ in range(2):
            os.killpg(running.pid, signal.SIGINT)
            time.sleep(0.2)
        said, _ = running.communicate(timeout=60)
    # The second may find the interpreter gone; a shell calls both 130.
    assert running.returncode in {130, -signal.SIGINT}, said
    assert _left(home) == []


@pytest.mark.parametrize("stage", ["before the nodes", "during a round"])
def test_the_next_one_ends_what_a_crash_left(home: Path, stage: str) -> None:
    with _started(home, "--rounds", "200") as running:
        _reach(home, stage)
        running.kill()
    assert _left(home)
    with _started(home, "--rounds", "2") as again:
        said, _ = again.communicate(timeout=200)
    assert again.returncode == 0, said
    assert said.startswith("ended what an earlier `umbel up` left: core, ")
    assert _left(home) == []


def test_of_two_at_once_one_is_refused(home: Path) -> None:
    with _started(home, "--rounds", "2") as one, _started(home, "--rounds", "2") as other:
        outputs = {one.communicate(timeout=200)[0], other.communicate(timeout=200)[0]}
    assert {one.returncode, other.returncode} == {0, 2}
    assert any("expected no other `umbel up`" in said for said in outputs)
    assert _left(home) == []
