"""Leases: what trains on a device ends when its server is gone, and frees what it held."""

from __future__ import annotations

import signal
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, cast

import pytest

from umbel.clients import grpc_line, lease
from umbel.clients.child import Child
from umbel.clients.device_files import DeviceFiles
from umbel.clients.lease import Lease
from umbel.protocol import messages_pb2 as pb
from umbel.protocol.errors import Refused
from umbel.server.grpc_gateway import BEAT
from umbel.strategies.app import AppRef
from umbel.strategies.task import Site
from umbel.strategies.trainer import Settings
from umbel.tests.federations import DeviceThread, Run, made
from umbel.tests.process_host import Host
from umbel.tests.rounds import Fixed
from umbel.tests.test_core_deaths import Core

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

    from umbel.strategies.trainer import TrainResult

CODE = """
import os, subprocess, sys, time
import numpy as np
import umbel


class Long(umbel.Task):
    loss = staticmethod(lambda arrays, batch: (0.0, {}))

    def model(self):
        return {"w": np.zeros(2, np.float32)}

    def train_data(self, site):
        helper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        with open(site.config["file"] + ".part", "w") as file:
            file.write(f"{os.getpid()} {helper.pid}")
        os.replace(site.config["file"] + ".part", site.config["file"])
        time.sleep(600)
"""
SOON, OFTEN = 1.0, 1.0
"""Lease of the tests, and how often the gateway says whether a server is there, in seconds."""


@pytest.fixture(scope="module")
def ref(tmp_path_factory: pytest.TempPathFactory) -> AppRef:
    """An app whose training takes ten minutes, and has a process of its own."""
    app = tmp_path_factory.mktemp("app")
    (app / "long_task.py").write_text(CODE)
    return AppRef(app, "long_task:Long")


class Busy(Fixed):
    """The table of rounds.py whose first training is a real child's, and takes ten minutes."""

    def __init__(self, ref: AppRef, file: Path) -> None:
        """Take the app, and where its processes say who they are."""
        super().__init__()
        self.child, self.file, self.long = Child(ref), file, True
        self.interrupt = self.child.interrupt

    def train(
        self, arrays: Mapping[str, NDArray[Any]], site: Site, settings: Settings
    ) -> TrainResult:
        """Train for long, once."""
        if self.long:
            self.long = False
            self.child.train(self.child.arrays(), Site(config={"file": str(self.file)}), settings)
        return super().train(arrays, site, settings)


def processes(file: Path) -> list[int]:
    """Return the process ids of what trains."""
    end = time.monotonic() + 60
    while not file.exists():
        assert time.monotonic() < end, "nothing trains"
        time.sleep(0.02)
    return [int(pid) for pid in file.read_text().split()]


def running(pid: int) -> bool:
    """Tell whether a process is there, and no zombie."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):  # the second between opening and reading
        return False
    return state != "Z"


def gone(pids: list[int], wait: float = 60.0) -> float:
    """Wait until none of them runs, and return the seconds that it took."""
    began = time.monotonic()
    while any(running(pid) for pid in pids):
        assert time.monotonic() - began < wait, f"{pids} still train"
        time.sleep(0.02)
    return time.monotonic() - began


# ---- the lease ---------------------------------------------------------------------------------


def test_a_lease_lapses_once_and_only_without_a_server() -> None:
    lapsed = threading.Event()
    found = Lease(lapsed.set, 3600.0)
    found.held()
    found.lost()
    timer = found._timer
    assert timer is not None
    assert timer.is_alive()
    found.held()
    timer.join(30)  # taken back, it ends without a word
    assert not timer.is_alive()
    assert not lapsed.is_set()
    found.seconds = 0.2
    found.lost()
    begun = found._timer
    found.lost()  # does not begin anew
    assert found._timer is begun
    assert lapsed.wait(30)
    lapsed.clear()
    found.lost()
    assert not lapsed.wait(0.5)
    found.held()
    found.lost()
    assert lapsed.wait(30)


def test_thirty_seconds_after_any_death_nothing_trains() -> None:
    own = dict(grpc_line.OPTIONS)
    silent = own["grpc.keepalive_time_ms"] + own["grpc.http2.ping_timeout_ms"]
    assert max(silent / 1000, BEAT) + lease.LAPSE_S < 30.0


# ---- the child ---------------------------------------------------------------------------------


def test_an_interrupted_child_is_gone_with_all_that_it_started(ref: AppRef, tmp_path: Path) -> None:
    child, file = Child(ref), tmp_path / "pids"
    caught: list[Refused] = []

    def work() -> None:
        site = Site(config={"file": str(file)})
        with pytest.raises(Refused) as error:
            child.train(child.arrays(), site, Settings.of({}))
        caught.append(error.value)

    thread = threading.Thread(target=work)
    thread.start()
    pids = processes(file)
    assert child.interrupt("no server for 15 s")
    gone(pids)
    thread.join(60)
    assert caught[0].reason == pb.REASON_ATTEMPT_CLOSED
    assert "was stopped: no server for 15 s" in str(caught[0])
    assert list(child.arrays()) == ["w"]  # the next call starts another
    assert child.pid not in pids
    child.close()


def test_an_idle_child_is_interrupted_and_reaped(ref: AppRef) -> None:
    with Child(ref) as child:
        assert not child.interrupt("nothing runs yet")
        child.arrays()
        pid = child.pid
        assert pid is not None
        assert child.interrupt("no server")
        assert not Path(f"/proc/{pid}").exists()
        assert not child.interrupt("twice")
        child.arrays()
        assert child.pid != pid


# ---- real deaths -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    """What starts a ServerApp's process."""
    found = Host(tmp_path_factory.mktemp("host"))
    yield found
    found.close()


class Elsewhere(Fixed):
    """The table, with another initial model."""

    def arrays(self, seed: int = 0) -> dict[str, NDArray[Any]]:
        """Return the initial model."""
        return {name: array + 1 for name, array in super().arrays(seed).items()}


class Stage:
    """A core, a ServerApp and three devices that train, all in processes of their own."""

    settings: ClassVar = {
        "rounds": 2, "final_evaluation": False, "deadline": 60.0, "trip": 5.0,
    }  # fmt: skip

    def __init__(
        self, home: Path, host: Host, ref: AppRef, times: Mapping[str, float] | None = None
    ) -> None:
        """Start everything, and wait until all train."""
        self.federation = made(home / "federation")
        self.core = Core(self.federation, home / "core.log", times)
        self.server = host.server(self.federation, home, "lent", count=3, settings=self.settings)
        tickets = self.server.said("tickets")
        self.trainers = [Busy(ref, home / f"pids-{i}") for i in range(3)]
        self.devices: list[DeviceThread] = []
        for index, node in enumerate(self.federation.nodes):
            files = DeviceFiles.read(self.federation.device(node.name))
            device = DeviceThread(files, cast("Any", self.trainers[index]), index)
            self.devices.append(device.start("lent", bytes.fromhex(tickets[index])))
        self.pids = [pid for trainer in self.trainers for pid in processes(trainer.file)]

    def close(self) -> None:
        """End all."""
        self.core.end(signal.SIGKILL)
        for device in self.devices:
            if device.session is not None:
                device.session._line._lease = 0.0
                device.join(60.0)
        for trainer in self.trainers:
            trainer.child.close()


@pytest.fixture
def stage(tmp_path: Path, host: Host, ref: AppRef) -> Iterator[Stage]:
    """The stage, with its training under way; leases are short."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lease, "LAPSE_S", SOON)
        found = Stage(tmp_path, host, ref, {"BEAT": OFTEN})
        yield found
        found.close()


def test_a_killed_server_app_ends_what_trains_and_its_successor_gets_every_session(
    stage: Stage, tmp_path: Path
) -> None:
    assert len(stage.pids) == 6
    stage.server.kill()
    gone(stage.pids)  # which would train for ten minutes
    own = {**stage.settings, "trainer": Elsewhere()}
    successor = Run(stage.federation, tmp_path / "next", "lent", **own)
    successor.joined(3)
    successor.coordinator.begin(time.monotonic())
    successor.pump(lambda: successor.coordinator.done)
    successor.core.goodbye()
    assert [(r.outcome, len(r.survivors)) for r in successor.records] == [("finished", 3)] * 2
    assert [device.join().reason for device in stage.devices] == [pb.REASON_GOODBYE] * 3
    successor.close()
    for device in stage.devices:
        assert any("no server for 1 s: what trained is stopped" in line for line in device.log)
        assert not any("trying again" in line for line in device.log)  # nobody dialled again


def test_a_killed_core_ends_what_trains(stage: Stage) -> None:
    stage.core.end(signal.SIGKILL)
    gone(stage.pids)
    assert all(device.outcome is None for device in stage.devices)  # they wait for the next core
    for device in stage.devices:
        assert device.session is not None
        device.session._line._lease = 1.0
    assert {device.join().detail.partition(" for ")[0] for device in stage.devices} == {
        "no gateway"
    }


def test_what_trains_for_a_run_that_is_over_is_ended_at_once(stage: Stage) -> None:
    other = Run(stage.federation, stage.core.log.parent / "other", "lent", **stage.settings)
    other.joined(3)  # takes the run over from the ServerApp
    other.core.goodbye()
    gone(stage.pids)
    assert [device.join().reason for device in stage.devices] == [pb.REASON_GOODBYE] * 3
    other.close()


@pytest.mark.slow
@pytest.mark.parametrize("death", ["server killed", "core killed", "core stopped"])
def test_thirty_seconds_after_a_death_nothing_trains_in_real_time(
    tmp_path: Path, host: Host, ref: AppRef, death: str
) -> None:
    stage = Stage(tmp_path, host, ref)
    try:
        if death == "server killed":
            stage.server.kill()
        else:
            kill = death == "core killed"
            stage.core.process.send_signal(signal.SIGKILL if kill else signal.SIGSTOP)
        took = gone(stage.pids, 30.0)
        print(f"{death}: nothing trains after {took:.1f} s")
    finally:
        stage.close()
