"""`umbel up` while its servers are killed one after another; and what goes on later."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil  # type: ignore[import-untyped]
import pytest

from umbel.host.processes import read_state
from umbel.host.programs import command_path, direct
from umbel.protocol.errors import StateError
from umbel.server.flower_control import Control
from umbel.server.run_directory import RunDirectory, list_runs
from umbel.server.run_feed import RunFeed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
DIGITS = Path(__file__).resolve().parents[1] / "examples" / "digits"
UMBEL = (sys.executable, "-m", "umbel")
ROUNDS = 100
CLIENTS = ("--edge", "3", "--gpu", "0")


@pytest.fixture
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A state directory in which nothing runs at the end."""
    folder = tmp_path_factory.mktemp("h")
    yield folder
    subprocess.run([*UMBEL, "down"], env=_env(folder), check=False, capture_output=True)


def _env(home: Path) -> dict[str, str]:
    return os.environ | {"UMBEL_HOME": str(home)}


def _started(home: Path, *arguments: str) -> subprocess.Popen[str]:
    with (home / "stderr").open("a") as errors:
        return subprocess.Popen(
            [*UMBEL, *arguments], env=_env(home), cwd=home, text=True, start_new_session=True,
            stdout=subprocess.PIPE, stderr=errors,
        )  # fmt: skip


def _until(holds: Callable[[], Any], seconds: float = 120.0) -> Any:
    end = time.monotonic() + seconds
    while not (found := holds()):
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)
    return found


def _finished(home: Path) -> int:
    """Return the newest training round of the one run that is finished."""
    for run in list_runs(home):
        with suppress(StateError), RunDirectory.open(home, run) as directory:  # being made now
            return max(directory.committed())
    return 0


def _pid(home: Path, name: str) -> int | None:
    """Return the pid of a program, or of the ServerApp."""
    state = read_state(home / "federations" / "dev")
    assert state is not None
    pids = {item["program"]["name"]: int(item["pid"]) for item in state["programs"]}
    if name != "serverapp":
        return pids[name]
    with suppress(psutil.Error):
        for child in psutil.Process(pids["superexec"]).children():
            if any("flwr-serverapp" in part for part in child.cmdline()):
                return int(child.pid)
    return None


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


def _each_round_once(home: Path) -> None:
    """Check that every round is finished exactly once, in order, and the record is whole."""
    (run,) = list_runs(home)
    with RunDirectory.open(home, run) as directory:
        directory.ledger.verify()
        done = [r for r in directory.ledger.rounds() if r.outcome == "finished"]
        directory.read_round(ROUNDS)  # every byte is hashed again
    assert [r.round for r in done if r.phase == "train"] == list(range(1, ROUNDS + 1))
    assert [r.round for r in done if r.phase == "evaluate"] == [ROUNDS]
    assert {len(r.survivors) for r in done} == {3}


def test_a_run_outlives_its_servers(home: Path) -> None:
    kills = ("core", "serverapp", "front", "superlink", "superexec")
    with _started(
        home, "up", str(DIGITS), *CLIENTS, "--rounds", str(ROUNDS), "--format", "json"
    ) as up:
        for place, name in enumerate(kills, start=1):
            _until(lambda place=place: _finished(home) >= 15 * place or up.poll() is not None)  # type: ignore[misc]
            pid = _until(lambda name=name: _pid(home, name))  # type: ignore[misc]
            before = _finished(home)
            os.kill(pid, signal.SIGKILL)
            _until(lambda pid=pid, name=name: _pid(home, name) not in {pid, None})  # type: ignore[misc]
            _until(lambda before=before: _finished(home) > before + 3 or up.poll() is not None)  # type: ignore[misc]
        said, _ = up.communicate(timeout=200)
    assert up.returncode == 0, (home / "stderr").read_text()
    answer = json.loads(said)
    assert answer["outcome"] == "completed"
    ended = [item["name"] for item in answer["restarted"]]
    # A ServerApp ends with its SuperExec.
    assert ended == ["core", "serverapp", "front", "superlink", "superexec", "serverapp"]
    assert {item["what"] for item in answer["restarted"][:5]} == {"was killed by signal 9"}
    _each_round_once(home)
    shown = (home / "stderr").read_text()
    for line in (
        "core restarted",
        "front restarted",
        "superlink restarted",
        "serverapp restarted: digits-",
    ):
        assert line in shown
    assert _left(home) == []


def test_a_run_that_was_stopped_and_killed_is_resumed(home: Path) -> None:
    with _started(home, "up", str(DIGITS), *CLIENTS, "--rounds", str(ROUNDS)) as up:
        _until(lambda: _finished(home) >= 10)
        up.send_signal(signal.SIGTERM)
        said, _ = up.communicate(timeout=100)
    (run,) = list_runs(home)
    assert up.returncode == 130
    assert f"stopped: SIGTERM; `umbel runs resume {run}` goes on with it" in said
    assert "ending after this round" in said
    assert _left(home) == []
    with RunDirectory.open(home, run) as directory:
        events = [(e.kind, e.code) for e in directory.ledger.events() if e.kind == "stopped"]
        outcomes = {r.outcome for r in directory.ledger.rounds()}
    assert events == [("stopped", "SIGTERM")]
    assert outcomes == {"finished"}  # the round that ran was not broken off
    before = _finished(home)
    with _started(home, "runs", "resume", run) as again:
        _until(lambda: _finished(home) > before + 10)
        again.kill()  # everything else runs on
    with _started(home, "runs", "resume", run, "--format", "json") as last:
        said, _ = last.communicate(timeout=200)
    assert last.returncode == 0, (home / "stderr").read_text()
    assert json.loads(said)["run"] == run
    _each_round_once(home)
    assert "ended what an earlier `umbel up` left: core, " in (home / "stderr").read_text()
    assert _left(home) == []


def _flwr_run(home: Path, app: Path, rounds: int) -> int:
    """Submit the app as `flwr run . umbel` does; return Flower's id of the run."""
    env = _env(home) | {"FLWR_HOME": str(home / "federations" / "dev" / "flower" / "client")}
    done = subprocess.run(
        [command_path("flwr"), "run", ".", "umbel", "-c", f"rounds={rounds}", "--format", "json"],
        cwd=app, env=env | direct(), capture_output=True, text=True, check=False,
    )  # fmt: skip
    answer = json.loads(done.stdout)
    assert answer["success"], done.stdout
    return int(answer["run-id"])


def _feed(home: Path, flower_run: int) -> RunFeed:
    feed = RunFeed(home, flower_run)
    _until(lambda: (feed.poll(), feed.run)[1], 60)
    return feed


def _rounds(feed: RunFeed) -> int:
    feed.poll()
    return sum(r.outcome == "finished" and r.phase == "train" for r in feed.records)


def _is_over(feed: RunFeed) -> bool:
    feed.poll()
    return feed.over


def test_runs_on_a_kept_federation(home: Path, tmp_path: Path) -> None:
    app = tmp_path / "digits"
    shutil.copytree(DIGITS, app)
    with _started(home, "up", str(app), *CLIENTS, "--rounds", "2", "--keep") as up:
        up.communicate(timeout=200)
    assert up.returncode == 0, (home / "stderr").read_text()
    # Two at once: the second waits for the clients that the first has.
    with _feed(home, _flwr_run(home, app, 150)) as first:
        _until(lambda: _rounds(first) >= 3)
        later = _flwr_run(home, app, 2)
        with _feed(home, later) as second:
            _until(lambda: _is_over(second), 200)
        assert _is_over(first)
        assert _rounds(first) == 150
        folder = home / "federations" / "dev"
        about = tomllib.loads((folder / "flower" / "client" / "config.toml").read_text())
        with Control(about["superlink"]["umbel"]["address"], folder / "ca.pem") as control:
            said = "".join(control.output(later))
        assert first.run is not None
        assert f"busy in run {first.run.run}" in said
    # One whose ServerApp is killed.
    with _feed(home, _flwr_run(home, app, 100)) as third:
        _until(lambda: _rounds(third) >= 10)
        pid = _pid(home, "serverapp")
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        _until(lambda: _is_over(third), 200)
        assert [r.round for r in third.records if r.outcome == "finished"] == [
            *range(1, 101), 100
        ]  # fmt: skip
        assert third.run is not None
        name = third.run.run
    log = folder / "logs" / "keeper.log"
    _until(lambda: f"{name} is over" in log.read_text())
    assert f"serverapp restarted: {name} goes on" in log.read_text()
    with _feed(home, _flwr_run(home, app, 2)) as fourth:  # a new one again
        _until(lambda: _is_over(fourth), 100)
        assert fourth.run is not None
        assert fourth.run.run != name
    subprocess.run([*UMBEL, "down"], env=_env(home), check=True, capture_output=True)
    assert _left(home) == []


def test_a_serverapp_that_fails_by_itself_is_not_started_again(home: Path, tmp_path: Path) -> None:
    app = tmp_path / "digits"
    shutil.copytree(DIGITS, app)
    server = app / "digits" / "server_app.py"
    server.write_text("raise RuntimeError('no luck today')\n" + server.read_text())
    with _started(home, "up", str(app), *CLIENTS, "--rounds", "2") as up:
        said, _ = up.communicate(timeout=200)
    assert up.returncode == 2
    assert "no luck today" in (home / "stderr").read_text()
    assert "restarted" not in said
    assert _left(home) == []
