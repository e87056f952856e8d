"""Real sessions over gRPC: what a device writes down of them, and what its owner can stop."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from umbel import cli
from umbel.clients.history_file import (
    CLOSED,
    CONTRIBUTED,
    ENDED,
    FILE,
    INTERRUPTED,
    OPEN,
    REFUSED,
    read_history,
)
from umbel.clients.pause import LEFT, Pause, remove_pause, write_pause
from umbel.clients.status_file import SESSION, alive, read_session
from umbel.protocol import messages_pb2 as pb
from umbel.protocol.errors import Refused
from umbel.tests.federations import APP, Run, addressed, core, made
from umbel.tests.gateway import Numbers

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    from umbel.clients.history_file import Entry
    from umbel.simulation.dev_federation import DevFederation
    from umbel.strategies.task import Site
    from umbel.strategies.trainer import Settings, TrainResult
    from umbel.tests.federations import DeviceThread

FOUR = 4


class Held(Numbers):
    """Training of the first device that ends when the test says so, or when it is interrupted."""

    def __init__(self) -> None:
        """Hold nothing yet."""
        super().__init__()
        self.entered, self.go = threading.Event(), threading.Event()
        self.stopped = ""

    def train(
        self, arrays: Mapping[str, NDArray[Any]], site: Site, settings: Settings
    ) -> TrainResult:
        """Wait, on the first device."""
        if site.index == 0:
            self.entered.set()
            assert self.go.wait(120)
            if self.stopped:
                raise Refused(pb.REASON_TASK_FAILED, self.stopped)
        return super().train(arrays, site, settings)

    def interrupt(self, why: str) -> bool:
        """Stop the training, as a child's process is."""
        self.stopped = self.stopped or why
        self.go.set()
        return True


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevFederation]:
    """A core service that serves every test of this file."""
    found = made(tmp_path_factory.mktemp("federation"), FOUR)
    with core(found) as port:
        addressed(found, f"127.0.0.1:{port}")
        yield found


@pytest.fixture
def opened(
    federation: DevFederation, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[Any]:
    """Open a run; the devices have no record of an earlier one, and no pause."""
    runs = []
    for node in federation.nodes:
        for name in (FILE, SESSION, LEFT):
            (federation.device(node.name) / name).unlink(missing_ok=True)
        remove_pause(federation.device(node.name))

    def make(**own: Any) -> Run:
        name = re.sub(r"\W+", "-", request.node.name).strip("-")[:60]
        runs.append(Run(federation, tmp_path, name, **own))
        return runs[-1]

    yield make
    for run in runs:
        run.close()


def _begun(run: Run) -> list[DeviceThread]:
    devices = [d.start(run.name, run.ticket(i)) for i, d in enumerate(run.devices())]
    run.joined(len(devices))
    return devices


def _finished(run: Run) -> None:
    run.pump(lambda: run.coordinator.done)
    run.core.goodbye()


def _record(device: DeviceThread) -> list[Entry]:
    return read_history(device.files.directory)


def _events(run: Run, kind: str) -> list[tuple[str, str]]:
    names = {node.id: node.name for node in run.federation.nodes}
    events = run.directory.ledger.events()
    return [(names.get(e.node, e.node), e.code) for e in events if e.kind == kind]


def test_every_round_is_written_down(
    opened: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = opened()
    began = time.time()
    devices = _begun(run)
    run.coordinator.begin(time.monotonic())
    _finished(run)
    for device in devices:
        outcome = device.join()
        *rounds, session = _record(device)
        assert [(e.round, e.phase, e.attempt) for e in rounds] == [
            (1, "train", 0), (2, "train", 0), (2, "evaluate", 0)
        ]  # fmt: skip
        for entry in rounds:
            assert (entry.kind, entry.run, entry.scheme) == ("attempt", run.name, "A")
            assert (entry.members, entry.survivors, entry.outcome) == (4, 4, CONTRIBUTED)
            assert entry.app == APP.hex()
            assert began <= entry.at <= entry.until <= time.time()
            assert entry.bytes_up > 300
            assert entry.bytes_down > 300
        assert (session.kind, session.outcome, session.code) == ("session", ENDED, "goodbye")
        assert sum(e.bytes_up for e in [*rounds, session]) == outcome.bytes_up
        assert sum(e.bytes_down for e in [*rounds, session]) == outcome.bytes_down

    monkeypatch.setenv("UMBEL_DEVICE", str(devices[0].files.directory))
    assert cli.main(["client", "history", "--format", "json", "-n", "2"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert [entry["phase"] for entry in said["entries"]] == ["evaluate", ""]
    assert said["totals"]["contributed"] == said["runs"][run.name]["attempts"] == 3
    assert cli.main(["client", "history", "--run", "another", "--day", "today"]) == 0
    assert capsys.readouterr().out == "nothing happened yet\n"
    assert cli.main(["client", "history", "--day", "today"]) == 0
    *_, last, session_line, total = capsys.readouterr().out.splitlines()
    assert f"{run.name}  round 2 evaluate  contributed  4 of 4 members" in last
    assert session_line.split("  ")[2:4] == ["session", "ended: goodbye"]
    assert total.startswith("in all: 3 contributions in 3 attempts, 0 refusals, ")


def test_a_refusal_has_its_code_at_the_server_and_its_reason_here(opened: Any) -> None:
    run = opened(rounds=1, final_evaluation=False)
    devices = run.devices()
    strict = replace(devices[0].files.policy, max_weight=39)
    devices[0].files = replace(devices[0].files, policy=strict)
    for index, device in enumerate(devices):
        device.start(run.name, run.ticket(index))
    run.joined(FOUR)
    run.coordinator.begin(time.monotonic())
    _finished(run)
    for device in devices:
        device.join()
    refused, session = _record(devices[0])
    assert (refused.outcome, refused.code, refused.key) == (REFUSED, "policy", "update.max_weight")
    assert refused.reason == "policy: the run has 40, update.max_weight is 39"
    assert session.code == "goodbye"
    assert _events(run, "refused") == [("edge-0", "REASON_POLICY update.max_weight")]
    assert _record(devices[1])[0].members == 3


def test_a_pause_ends_the_session_between_two_attempts(opened: Any) -> None:
    trainer = Held()
    run = opened(trainer=trainer, rounds=1, final_evaluation=False)
    devices = _begun(run)
    run.coordinator.begin(time.monotonic())
    run.pump(trainer.entered.is_set)
    place = devices[0].files.directory

    def shown() -> bool:
        session = read_session(place)
        assert session is not None
        assert alive(session)
        return (session.state, session.round, session.up) == ("computing", 1, True)

    run.pump(shown)  # soon after it is so
    write_pause(place, Pause(since=time.time()))
    time.sleep(0.7)  # it is seen meanwhile, and breaks nothing off
    assert not trainer.stopped
    trainer.go.set()
    run.pump(lambda: run.coordinator.done)
    outcome = devices[0].join()
    run.core.goodbye()
    for device in devices[1:]:
        device.join()
    assert (outcome.reason, outcome.rounds) == (pb.REASON_PAUSED, 1)
    first, session_row = _record(devices[0])
    assert (first.outcome, first.survivors) == (CONTRIBUTED, 4)
    assert session_row.code == "paused"
    assert "until `umbel client resume`" in session_row.reason
    assert [len(r.survivors) for r in run.records] == [4]


@pytest.mark.parametrize("left", [False, True])
def test_a_pause_at_once_breaks_the_training_off_and_says_so(opened: Any, left: bool) -> None:
    trainer = Held()
    run = opened(trainer=trainer, rounds=1, final_evaluation=False)
    devices = _begun(run)
    run.coordinator.begin(time.monotonic())
    run.pump(trainer.entered.is_set)
    place = devices[0].files.directory
    if left:
        (place / LEFT).touch()
    else:
        write_pause(place, Pause(since=time.time(), now=True))
    _finished(run)
    outcome = devices[0].join()
    for device in devices[1:]:
        device.join()
    assert (outcome.reason, outcome.rounds) == (pb.REASON_PAUSED, 0)
    why = "this device has left its federation" if left else "paused by its owner"
    assert trainer.stopped.startswith(why)
    assert _events(run, "refused") == [("edge-0", "REASON_PAUSED")]
    refused, _ = _record(devices[0])
    assert (refused.outcome, refused.code, refused.members) == (REFUSED, "paused", 0)
    assert [len(r.survivors) for r in run.records] == [3]


def test_a_round_that_the_server_gives_up_is_closed(opened: Any) -> None:
    trainer = Held()
    run = opened(trainer=trainer, rounds=1, final_evaluation=False, deadline=23.0, trip=5.0)
    devices = _begun(run)
    run.coordinator.begin(time.monotonic())
    # Of three seconds for its training the first device takes more, and is too late.
    run.pump(lambda: run.coordinator.done)
    trainer.go.set()
    run.core.goodbye()
    for device in devices:
        device.join()
    late, _ = _record(devices[0])
    assert (late.outcome, late.survivors) == (CLOSED, 0)


SERVING = """
import sys, time
from pathlib import Path
from umbel.clients.device_files import DeviceFiles
from umbel.tests.federations import DeviceThread
from umbel.tests.gateway import Numbers
class Slow(Numbers):
    def train(self, *_):
        time.sleep(600)
device = DeviceThread(DeviceFiles.read(Path(sys.argv[1])), Slow(), 0)
device.start(sys.argv[2], bytes.fromhex(sys.argv[3]))
time.sleep(600)
"""


def test_a_killed_process_leaves_an_open_row_that_the_next_one_settles(opened: Any) -> None:
    run = opened(rounds=1, final_evaluation=False, deadline=30.0)
    device, *others = run.devices()
    place = device.files.directory
    words = [str(place), run.name, run.ticket(0).hex()]
    process = subprocess.Popen([sys.executable, "-c", SERVING, *words])
    try:
        begun = [d.start(run.name, run.ticket(i)) for i, d in enumerate(others, 1)]
        run.joined(FOUR)
        run.coordinator.begin(time.monotonic())
        run.pump(lambda: [e.outcome for e in _record(device)] == [OPEN])
        session = read_session(place)
        assert session is not None
        assert session.pid == process.pid
        assert alive(session)
    finally:
        process.kill()
        process.wait()
    assert not alive(session)
    assert [e.outcome for e in _record(device)] == [OPEN]
    device.start(run.name, run.ticket(0))
    # it may be in the next attempt already, whose row stands beside it
    run.pump(lambda: INTERRUPTED in [e.outcome for e in _record(device)])
    _finished(run)
    for thread in [device, *begun]:
        thread.join()
