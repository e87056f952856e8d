"""When a ServerApp counts as killed, and how often the next one may follow."""

from __future__ import annotations

import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest

from umbel.host.processes import Supervisor
from umbel.host.programs import Program
from umbel.protocol.errors import SettingsError, StateError
from umbel.server.flower_control import RunState
from umbel.server.flower_lives import LIVES, LONGEST_S, Lives, serverapps
from umbel.server.flower_programs import SUPEREXEC

if TYPE_CHECKING:
    from pathlib import Path

RUNNING = RunState("running", "", "")
# Starts what its arguments say and waits for none of them, as SuperExec does.
STARTING = (
    "import subprocess, sys, time\n"
    "for code in sys.argv[1:]:\n"
    "    subprocess.Popen([sys.executable, '-c', code, 'flwr-serverapp'])\n"
    "print('started', flush=True)\n"
    "time.sleep(600)\n"
)
SLEEP = "import time; time.sleep(600)"


class Federation:
    """A SuperExec of the test's, and a Control API that answers as told."""

    def __init__(self, folder: Path) -> None:
        self.supervisor = Supervisor(folder)
        self.control = self
        self.state: RunState | StateError = RUNNING
        self.away = False
        self.runs = [1]
        self.resumed: list[str] = []

    def start(self, *codes: str) -> None:
        """Start SuperExec with these ServerApps."""
        command = (sys.executable, "-c", STARTING, *codes)
        self.supervisor.start(Program(name=SUPEREXEC, command=command, restart=True))
        while "started" not in self.supervisor.log(SUPEREXEC).read_text():
            time.sleep(0.01)

    def run(self, run_id: int) -> RunState:
        """Return what the test says about Flower's newest run."""
        assert run_id == self.runs[-1]
        if isinstance(self.state, StateError):
            raise self.state
        return self.state

    def stop_run(self, run_id: int) -> None:
        """Refuse, as for a run that is over, or be away."""
        assert run_id == self.runs[-1]
        if self.away:
            raise StateError("SuperLink", "an answer", "none")
        raise SettingsError("run", "one that runs", "one that is over")

    def resume(self, run: str) -> None:
        """Note the run that is to go on."""
        self.resumed.append(run)

    def submit(self, config: dict[str, object]) -> int:
        """Return the next run's id."""
        assert config == {"lr": 0.5}
        self.runs.append(self.runs[-1] + 1)
        return self.runs[-1]


@pytest.fixture
def federation(tmp_path: Path) -> Any:
    """The federation; what it started ends."""
    made = Federation(tmp_path)
    yield made
    made.supervisor.close()


def _lives(federation: Any) -> Lives:
    return Lives(federation, {"lr": 0.5}, 1)


def _until_dead(federation: Any) -> None:
    end = time.monotonic() + 10
    while serverapps(federation.supervisor)[0]:
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_run_that_runs_with_a_serverapp_is_alive(federation: Any) -> None:
    federation.start(SLEEP)
    assert _lives(federation).look() == (RUNNING, "")


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("import os; os.kill(os.getpid(), 9)", "was killed by signal 9"),
        ("import os; os._exit(7)", "exited with status 7"),
    ],
)
def test_a_run_that_runs_without_one_has_lost_it(federation: Any, code: str, said: str) -> None:
    federation.start(code)
    _until_dead(federation)
    assert _lives(federation).look() == (RUNNING, said)


def test_a_dead_superexec_takes_the_serverapp_along(federation: Any) -> None:
    federation.start(SLEEP)
    federation.supervisor.kill(SUPEREXEC)
    assert _lives(federation).look() == (RUNNING, "was killed")


@pytest.mark.parametrize("status", ["pending", "starting"])
def test_one_that_is_about_to_start_is_waited_for(federation: Any, status: str) -> None:
    federation.start()
    federation.state = RunState(status, "", "")
    assert _lives(federation).look()[1] == ""


def test_an_end_of_its_own_is_no_loss_and_a_missing_heartbeat_is_one(federation: Any) -> None:
    federation.start()
    lives = _lives(federation)
    for state, said in (
        (RunState("finished", "completed", ""), ""),
        (RunState("finished", "failed", "ServerApp failed with exception: no"), ""),
        (RunState("finished", "stopped", ""), ""),
        (RunState("finished", "failed", "No heartbeat received from the task"), "was killed"),
    ):
        federation.state = state
        assert lives.look() == (state, said)


def test_flowers_words_for_a_missing_heartbeat_are_as_they_were() -> None:
    find = "import flwr.supercore.corestate.sql_corestate as m; print(m.__file__)"
    done = subprocess.run([sys.executable, "-c", find], capture_output=True, text=True, check=True)
    with open(done.stdout.strip(), encoding="utf-8") as file:
        assert '"No heartbeat received from the task"' in file.read()


def test_the_next_one_comes_ever_later_and_a_round_sets_the_count_back(federation: Any) -> None:
    lives, now, pauses = _lives(federation), 100.0, []
    for rounds in (0, 0, 0, 1, 1):
        assert not lives.waiting
        lives.note(rounds, now)
        began = now
        while not lives.again("run-1", now):
            now += 0.5
        pauses.append(now - began)
    assert pauses == [0.0, 1.0, 2.0, 0.0, 1.0]
    assert federation.runs == [1, 2, 3, 4, 5, 6]
    assert federation.resumed == ["run-1"] * 5
    assert LONGEST_S < 60.0  # as long as sessions wait for a successor


def test_what_is_killed_in_the_same_round_again_and_again_is_given_up(federation: Any) -> None:
    lives = _lives(federation)
    for _ in range(LIVES):
        lives.note(3, 0.0)
        assert lives.again("run-1", 1000.0)
    with pytest.raises(StateError, match=r"one of 6 to finish a round, got each was killed"):
        lives.note(3, 0.0)


def test_while_the_superlink_is_away_nobody_is_started(federation: Any) -> None:
    lives = _lives(federation)
    lives.note(0, 0.0)
    federation.away = True
    assert not lives.again("run-1", 1.0)
    assert federation.resumed == []
    federation.away = False
    assert lives.again("run-1", 2.0)
    assert lives.flower_run == 2
