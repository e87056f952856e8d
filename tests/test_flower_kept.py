"""The runs of a keeper: which goes on, with which SuperExec, and that the next is a new one."""

from __future__ import annotations

import sys
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import pytest

from umbel.host.processes import Supervisor
from umbel.host.programs import Program
from umbel.server.flower_control import RunState, build_bundle
from umbel.server.flower_programs import SUPEREXEC
from umbel.server.ledger import RoundRecord
from umbel.server.run_directory import RunDirectory
from umbel.simulation import flower_kept
from umbel.simulation.flower_kept import Kept
from umbel.simulation.flower_programs import started
from umbel.simulation.flower_up import Wanted
from umbel.tests.flower_hello import hello

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# flwr's own, when it bundles an app.
pytestmark = pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning")
RUNNING = RunState("running", "", "")
IDLE = (sys.executable, "-c", "import time; time.sleep(600)", "--runtime-api-address", "h:1")


class Superlink:
    """What the SuperLink says about its runs, as told by the test."""

    def __init__(self, address: str, ca: Path) -> None:
        assert (address, ca.name) == ("h:1", "ca.pem")
        self.states = {77: RUNNING}
        self.submitted: list[tuple[str, dict[str, object]]] = []
        self.stopped: list[int] = []
        self.asked = 0

    def runs(self) -> dict[int, RunState]:
        """Return all."""
        self.asked += 1
        return self.states

    def run(self, run_id: int) -> RunState:
        """Return one."""
        return self.states[run_id]

    def stop_run(self, run_id: int) -> None:
        """Note it."""
        self.stopped.append(run_id)
        self.states[run_id] = RunState("finished", "stopped", "")

    def start_run(self, bundle: bytes, digest: str, config: dict[str, object]) -> int:
        """Take it; it begins at some time."""
        assert sha256(bundle).hexdigest() == digest
        self.submitted.append((digest, config))
        number = max(self.states) + 1
        self.states[number] = RunState("pending", "", "")
        return number


class Keeping:
    """A federation with a SuperExec, kept."""

    def __init__(self, folder: Path) -> None:
        self.home, self.said = folder, list[str]()
        self.app = hello(folder)
        place = folder / "federations" / "dev"
        self.supervisor = Supervisor(place)
        env = {"X": "kept"}
        self.supervisor.start(Program(name=SUPEREXEC, command=IDLE, env=env, restart=True))
        self.kept = Kept(self.supervisor, place, self.said.append)
        self.link: Any = self.kept.control

    def recorded(self, *rounds: tuple[str, str], **other: object) -> None:
        """Write the run r-1, which Flower calls 77."""
        wanted = Wanted(app=self.app, edge=3, gpu=0, home=self.home)
        digest = sha256(build_bundle(self.app)).hexdigest()
        about = started(wanted) | {"config": {"lr": 0.5}, "bundle": digest} | other
        with RunDirectory.create(self.home, "r-1") as directory:
            described = {"rounds": 8, "flower-run": "77", "started": about}
            directory.ledger.create_run("r-1", "2030-01-01T00:00:00+00:00", described, "on")
            for number, (phase, outcome) in enumerate(rounds):
                record = RoundRecord(round=8, attempt=number, phase=phase, outcome=outcome)
                directory.ledger.commit_round(record)

    def variables(self) -> dict[str, str]:
        """Return what the next ServerApp gets."""
        return dict(self.supervisor.program(SUPEREXEC).env)


@pytest.fixture
def keeping(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Keeping]:
    """The federation; what it started ends."""
    monkeypatch.setattr(flower_kept, "Control", Superlink)
    made = Keeping(tmp_path)
    yield made
    made.supervisor.close()


def test_a_run_without_its_serverapp_goes_on_and_the_next_is_a_new_one(keeping: Keeping) -> None:
    keeping.recorded(("train", "finished"))
    keeping.kept.look(1.0)
    keeping.kept.look(2.0)
    assert keeping.link.stopped == [77]
    ((digest, config),) = keeping.link.submitted
    assert (digest, config) == (sha256(build_bundle(keeping.app)).hexdigest(), {"lr": 0.5})
    assert keeping.variables() == {"X": "kept", "UMBEL_RUN": "r-1", "UMBEL_RESUME": "1"}
    keeping.kept.look(3.0)
    assert len(keeping.link.submitted) == 1  # it is on its way
    keeping.link.states[78] = RunState("finished", "completed", "")
    keeping.kept.look(4.0)
    assert keeping.variables() == {"X": "kept"}
    assert keeping.said == [
        "serverapp was killed; r-1 is to go on", "serverapp restarted: r-1 goes on", "r-1 is over"
    ]  # fmt: skip
    keeping.kept.look(5.0)
    assert len(keeping.link.submitted) == 1


@pytest.mark.parametrize(
    ("state", "rounds"),
    [
        (RunState("finished", "completed", ""), ()),
        (RunState("finished", "failed", "ServerApp failed with exception: no"), ()),
        (RunState("pending", "", ""), ()),
        (RUNNING, (("train", "finished"), ("evaluate", "finished"))),
    ],
)
def test_other_runs_are_left_alone(
    keeping: Keeping, state: RunState, rounds: tuple[tuple[str, str], ...]
) -> None:
    keeping.recorded(*rounds)
    keeping.link.states[77] = state
    for now in range(5):
        keeping.kept.look(float(now))
    assert (keeping.link.submitted, keeping.said) == ([], [])
    assert keeping.variables() == {"X": "kept"}


def test_a_run_that_keeps_no_record_is_flowers_own(keeping: Keeping) -> None:
    keeping.kept.look(1.0)
    keeping.kept.look(2.0)
    assert (keeping.link.submitted, keeping.said) == ([], [])


def test_a_federation_at_rest_is_not_asked_again_and_again(keeping: Keeping) -> None:
    keeping.link.states.clear()
    for now in range(100):
        keeping.kept.look(float(now))
    assert keeping.link.asked == 1


def test_a_changed_app_is_said_once_and_left(keeping: Keeping) -> None:
    keeping.recorded(bundle="00" * 32)
    for now in range(5):
        keeping.kept.look(float(now))
    (line,) = keeping.said
    assert line.startswith(f"r-1: app {keeping.app}: expected the bundle 0000000000000000 that")
    assert keeping.link.submitted == []


def test_a_run_that_is_killed_again_and_again_is_given_up(keeping: Keeping) -> None:
    keeping.recorded()
    for now in range(0, 400, 5):
        keeping.kept.look(float(now))
        newest = max(keeping.link.states)
        if keeping.link.states[newest].status == "pending":
            keeping.link.states[newest] = RUNNING  # and there is no such process
    assert len(keeping.link.submitted) == 5
    assert keeping.said[-1].startswith("r-1: ServerApp: expected one of 6 to finish a round")
    assert keeping.variables() == {"X": "kept"}
