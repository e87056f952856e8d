"""A device's session against the real gateway: rounds, breaks, and ends."""

from __future__ import annotations

import json
import math
import re
import shutil
import threading
import time
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from umbel.clients import grpc_session
from umbel.clients.device_files import DeviceFiles
from umbel.protocol import messages_pb2 as pb
from umbel.protocol.errors import BadCertificate
from umbel.protocol.frames import PAYLOAD
from umbel.strategies.trainer import TrainResult
from umbel.tests.fault_proxy import FaultProxy
from umbel.tests.federations import DeviceThread, Run, addressed, core, made, taken
from umbel.tests.gateway import Numbers
from umbel.tests.quick_core import SOONER

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    from umbel.simulation.dev_federation import DevFederation
    from umbel.strategies.task import Site
    from umbel.strategies.trainer import Settings


class Big(Numbers):
    """A model of a million numbers."""

    def arrays(self, seed: int = 0) -> dict[str, NDArray[Any]]:
        """Return the initial model."""
        return {"w": np.full(1_000_000, 0.5, np.float32)}

    def train(
        self, arrays: Mapping[str, NDArray[Any]], site: Site, settings: Settings
    ) -> TrainResult:
        """Return the same delta everywhere."""
        delta = np.full(1_000_000, self.scale * (site.index + 1), np.float32)
        return TrainResult({"w": delta}, self.weight, {"eval.loss": 0.5})


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevFederation]:
    """A core service that serves every test of this file."""
    found = made(tmp_path_factory.mktemp("federation"))
    with core(found, times=SOONER) as port:
        addressed(found, f"127.0.0.1:{port}")
        yield found


@pytest.fixture
def proxy(federation: DevFederation) -> Iterator[FaultProxy]:
    """A proxy in front of the gateway, which every device dials."""
    port = int(json.loads((federation.folder / "core.json").read_text())["port"])
    found = FaultProxy(port)
    addressed(federation, f"127.0.0.1:{found.port}")
    yield found
    found.close()
    addressed(federation, f"127.0.0.1:{port}")


@pytest.fixture
def run(federation: DevFederation, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Run]:
    """A run of two secure rounds and the last evaluation."""
    name = re.sub(r"\W+", "-", request.node.name).strip("-")
    opened = Run(federation, tmp_path, name[:60])
    yield opened
    opened.close()


def begun(run: Run) -> list[DeviceThread]:
    """Let every device join."""
    devices = [d.start(run.name, run.ticket(i)) for i, d in enumerate(run.devices())]
    run.joined(len(devices))
    return devices


def finished(run: Run) -> None:
    """Play the run to its end."""
    run.coordinator.begin(time.monotonic())
    run.pump(lambda: run.coordinator.done)
    run.core.goodbye()


def test_two_secure_rounds_and_goodbye(run: Run) -> None:
    devices = begun(run)
    finished(run)
    outcomes = [device.join() for device in devices]
    # Deltas 0.01, 0.02, 0.03 with equal weights: 0.02 a round.
    np.testing.assert_allclose(run.coordinator.model["w"], np.full(40, 0.54), atol=1e-4)
    assert [outcome.reason for outcome in outcomes] == [pb.REASON_GOODBYE] * 3
    assert [outcome.rounds for outcome in outcomes] == [3] * 3  # two, and the evaluation
    assert all(o.bytes_up > 1000 and o.bytes_down > 1000 for o in outcomes)
    assert all(record.outcome == "finished" for record in run.records)


def test_an_upload_cut_at_sixty_percent_goes_on_from_there(
    federation: DevFederation, proxy: FaultProxy, tmp_path: Path
) -> None:
    trainer = Big()
    run = Run(federation, tmp_path, "cut-upload", trainer=trainer, rounds=1, final_evaluation=False)
    devices = begun(run)
    proxy.up_to = proxy.up + 0.6 * 3 * 4_000_000  # three vectors of 4 bytes a number
    before = taken(federation)
    run.coordinator.begin(time.monotonic())
    whole = 0.6 * 3 * 4_000_000 - 3 * PAYLOAD  # at least: each may have a frame on its way
    run.pump(lambda: taken(federation) - before > whole)
    proxy.up_to = math.inf
    proxy.cut()
    run.pump(lambda: run.coordinator.done)
    run.core.goodbye()
    outcomes = [device.join() for device in devices]
    run.close()
    assert [outcome.rounds for outcome in outcomes] == [1] * 3
    np.testing.assert_allclose(run.coordinator.model["w"], np.full(1_000_000, 0.52), atol=1e-4)
    record = run.records[-1]
    assert (record.outcome, len(record.survivors), record.attempt) == ("finished", 3, 0)
    assert proxy.up < 1.5 * 3 * 4_000_000  # from the start again would be 1.6 times


def test_a_goodbye_while_a_device_computes_is_not_answered_with_another_dial(
    run: Run, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    train, entered = run.trainer.train, threading.Event()

    def slowly(*arguments: Any) -> TrainResult:
        entered.set()
        time.sleep(1.0)
        return train(*arguments)

    monkeypatch.setattr(run.trainer, "train", slowly)
    devices = begun(run)
    run.coordinator.begin(time.monotonic())
    assert entered.wait(60)
    run.core.goodbye()
    assert [device.join().reason for device in devices] == [pb.REASON_GOODBYE] * 3
    assert not any(line.startswith("gateway:") for device in devices for line in device.log)


@pytest.mark.parametrize("moment", [0, 1])
def test_a_broken_line_is_resumed_without_a_loss(
    run: Run, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch, moment: int
) -> None:
    devices = begun(run)
    if moment == 0:
        proxy.cut()  # idle, before the first round
    else:
        train, cut = run.trainer.train, proxy.cut

        def cutting(*arguments: Any) -> TrainResult:
            cut()
            return train(*arguments)

        monkeypatch.setattr(run.trainer, "train", cutting)  # while it trains, every round
    finished(run)
    assert [device.join().reason for device in devices] == [pb.REASON_GOODBYE] * 3
    finished_rounds = [r for r in run.records if r.outcome == "finished"]
    assert [len(r.survivors) for r in finished_rounds] == [3] * len(finished_rounds)
    assert len(finished_rounds) == len(run.records)


def test_a_gateway_that_stays_away_ends_the_session(
    run: Run, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grpc_session, "AWAY_S", 1.0)
    device = run.devices()[0].start(run.name, run.ticket(0))
    run.joined(1)
    proxy.refuse = True
    proxy.cut()
    outcome = device.join()
    assert (outcome.reason, outcome.rounds) == (pb.REASON_UNSPECIFIED, 0)
    assert "no gateway for" in outcome.detail


def test_a_device_that_was_given_up_joins_anew(run: Run, proxy: FaultProxy) -> None:
    device = run.devices()[0].start(run.name, run.ticket(0))
    run.joined(1)
    run.pump(lambda: device.session is not None and device.session._line.epoch > 0)
    proxy.refuse = True
    proxy.cut()
    run.pump(lambda: not run.coordinator.nodes)  # after its grace
    proxy.refuse = False
    run.joined(1)
    run.core.goodbye()
    assert device.join().reason == pb.REASON_GOODBYE
    assert any("joins anew" in line for line in device.log)


def test_the_newest_connection_of_a_node_wins(run: Run, tmp_path: Path) -> None:
    first = run.devices()[0].start(run.name, run.ticket(0))
    run.joined(1)
    copied = run.devices()[0]
    home = tmp_path / "copied"
    others = shutil.ignore_patterns("journal", ".*")  # files that are being written
    shutil.copytree(copied.files.directory, home, ignore=others)
    copied.files = replace(copied.files, directory=home)
    home.chmod(0o700)
    copied.start(run.name, run.ticket(0))
    outcome = first.join()
    assert outcome.reason == pb.REASON_NEW_PROCESS
    assert "a newer connection of this node took over" in outcome.detail
    run.core.goodbye()
    assert copied.join().reason == pb.REASON_GOODBYE


def test_a_ticket_of_another_certificate_admits_nobody(run: Run) -> None:
    device = run.devices()[0].start(run.name, run.ticket(1))
    outcome = device.join()
    assert outcome.reason == pb.REASON_UNSPECIFIED
    assert "the ticket does not admit this certificate" in outcome.detail


def test_a_run_that_is_not_served_admits_nobody(run: Run) -> None:
    outcome = run.devices()[0].start("another-run", run.ticket(0)).join()
    assert (outcome.reason, outcome.bytes_down) == (pb.REASON_UNSPECIFIED, 0)
    assert "no such run" in outcome.detail


def test_a_gateway_of_another_ca_is_not_spoken_to(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grpc_session, "AWAY_S", 1.0)
    other = made(tmp_path / "other")
    addressed(other, run.devices()[0].files.gateway)
    device = run.devices()[0]
    policy = replace(device.files.policy, ca=str(other.ca))
    device.files = replace(device.files, policy=policy)
    with pytest.raises(BadCertificate, match="no path to the pinned root"):
        device.files.identity(datetime.now(UTC))
    stranger = DeviceThread(DeviceFiles.read(other.device("edge-0")), run.trainer, 0)
    outcome = stranger.start(run.name, run.ticket(0)).join()
    assert (outcome.reason, outcome.bytes_down) == (pb.REASON_UNSPECIFIED, 0)
    assert any("handshake" in line.lower() or "ssl" in line.lower() for line in stranger.log)


def test_a_name_that_the_gateways_certificate_does_not_bear_is_refused(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grpc_session, "AWAY_S", 1.0)
    device = run.devices()[0]
    port = device.files.gateway.rpartition(":")[2]
    device.files = replace(device.files, gateway=f"127.0.0.2:{port}")
    outcome = device.start(run.name, run.ticket(0)).join()
    assert (outcome.reason, outcome.bytes_down) == (pb.REASON_UNSPECIFIED, 0)


def test_an_old_session_ends_between_attempts(run: Run) -> None:
    device = run.devices()[0].start(run.name, run.ticket(0), lease=1.0)
    run.joined(1)
    outcome = device.join()
    assert (outcome.reason, outcome.rounds) == (pb.REASON_GOODBYE, 0)
    assert "longest life" in outcome.detail
    run.pump(lambda: not run.coordinator.nodes)
