"""Sessions on bad networks: cuts, idle proxies, half-open lines, slow and far ones.

The core service, the devices and all that travels are real; between them stands a proxy of our own
(fault_proxy.py). Sizes and times are scaled, so that the file shares one core and takes little:
what counts are frames and rounds.
"""

from __future__ import annotations

import itertools
import json
import math
import signal
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from umbel.clients import grpc_session
from umbel.protocol import messages_pb2 as pb
from umbel.protocol.frames import PAYLOAD
from umbel.server import grpc_gateway, sessions
from umbel.strategies.trainer import TrainResult
from umbel.tests.core_stage import CoreStage
from umbel.tests.fault_proxy import FaultProxy
from umbel.tests.federations import DeviceThread, Run, addressed, core, made, taken
from umbel.tests.gateway import Numbers
from umbel.tests.process_host import Host
from umbel.tests.test_core_deaths import Core

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    from umbel.simulation.dev_federation import DevFederation
    from umbel.strategies.task import Site
    from umbel.strategies.trainer import Settings

THREE = 3
SIX = (0, 1, 2, 3, 4, 5)
MOST = 15.0
"""Seconds within which a dead peer is noticed, whatever way it died."""


class Table(Numbers):
    """A model of any size, and training that takes its time."""

    def __init__(self, size: int = 40, seconds: float = 0.0) -> None:
        """Take the number of parameters, and what a round of training takes."""
        super().__init__()
        self.size, self.seconds = size, seconds

    def arrays(self, seed: int = 0) -> dict[str, NDArray[Any]]:
        """Return the initial model."""
        return {"w": np.full(self.size, 0.5, np.float32)}

    def train(
        self, arrays: Mapping[str, NDArray[Any]], site: Site, settings: Settings
    ) -> TrainResult:
        """Return the same delta everywhere: 0.01, 0.02, 0.03, their mean 0.02."""
        time.sleep(self.seconds)
        delta = np.full(self.size, self.scale * (site.index + 1), np.float32)
        return TrainResult({"w": delta}, self.weight, {"eval.loss": 0.5})


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevFederation]:
    """A core service that serves every test of this file."""
    found = made(tmp_path_factory.mktemp("federation"), len(SIX))
    with core(found, flags=("--host", "::")) as port:
        addressed(found, f"127.0.0.1:{port}")
        yield found


@pytest.fixture
def proxied(federation: DevFederation) -> Iterator[Callable[..., FaultProxy]]:
    """Makes a proxy in front of the gateway."""
    port = int(json.loads((federation.folder / "core.json").read_text())["port"])
    found: list[FaultProxy] = []

    def make(**faults: Any) -> FaultProxy:
        found.append(FaultProxy(port, **faults))
        return found[-1]

    yield make
    for proxy in found:
        proxy.close()


NAMES = (f"net-{number}" for number in itertools.count())


class Stage:
    """Three devices of a run, the first of them behind a proxy."""

    def __init__(
        self, federation: DevFederation, home: Path, proxy: FaultProxy, trainer: Table, **own: Any
    ) -> None:
        """Let all join."""
        settings = {"rounds": 1, "final_evaluation": False, "deadline": 400.0, "trip": 90.0, **own}
        self.run = Run(federation, home, next(NAMES), trainer=trainer, **settings)
        self.proxy, self.devices = proxy, self.run.devices()[:THREE]
        for index, device in enumerate(self.devices):
            if index == 0:
                there = f"127.0.0.1:{proxy.port}"
                device.files = replace(device.files, gateway=there)
            device.start(self.run.name, self.run.ticket(index))
        self.run.joined(THREE)

    @property
    def first(self) -> DeviceThread:
        """The device behind the proxy."""
        return self.devices[0]

    def play(self, wait: float = 60.0, cut: Callable[[], bool] | None = None) -> None:
        """Play the run, and check that every round took everybody, at its first attempt.

        Where the line is held, `cut` says when what came through has been taken: it breaks then.
        """
        coordinator = self.run.coordinator
        coordinator.begin(time.monotonic())
        if cut is not None:
            self.run.pump(cut, wait)
            self.proxy.up_to = self.proxy.down_to = math.inf
            self.proxy.cut()
        self.run.pump(lambda: coordinator.done, wait)
        self.leave()
        ends = [(r.outcome, len(r.survivors), r.attempt) for r in self.run.records]
        assert ends == [("finished", THREE, 0)] * len(ends)
        mean = 0.5 + 0.02 * len(ends)
        np.testing.assert_allclose(coordinator.model["w"], mean, atol=1e-4 * len(ends))

    def leave(self) -> None:
        """Say goodbye, and check that everybody hears it."""
        self.run.core.goodbye()
        assert [device.join().reason for device in self.devices] == [pb.REASON_GOODBYE] * THREE
        self.run.close()


# ---- cuts --------------------------------------------------------------------------------------


def test_a_transfer_cut_at_ninety_percent_sends_at_most_two_frames_again(
    federation: DevFederation, proxied: Callable[..., FaultProxy], tmp_path: Path
) -> None:
    """100 MB behind 2 Mbit/s take 400 s; here 8 MB take 1 s: the same frames, fewer of them."""
    size = 2_000_000
    proxy = proxied(rate=8e6)
    stage = Stage(federation, tmp_path, proxy, Table(size))
    before, came = proxy.up, taken(federation, 0)
    proxy.up_to = before + 0.9 * 4 * size
    whole = 0.9 * 4 * size - PAYLOAD  # at least: the rest is a frame that has not come to its end
    stage.play(cut=lambda: taken(federation, 0) - came > whole)
    assert len(proxy.connections) == 2
    overhead = 64 << 10  # the handshake, the messages of the round, what is around each frame
    assert 4 * size < proxy.up - before <= 4 * size + 2 * PAYLOAD + overhead
    assert stage.first.log
    assert all(line.startswith("gateway: unavailable: ") for line in stage.first.log)


def test_a_model_that_is_cut_is_fetched_from_where_it_was(
    federation: DevFederation, proxied: Callable[..., FaultProxy], tmp_path: Path
) -> None:
    size = 2_000_000
    proxy = proxied(rate=8e6, down_to=0.9 * 4 * size)
    stage = Stage(federation, tmp_path, proxy, Table(size))
    session = stage.first.session
    assert session is not None
    stage.play(cut=lambda: session._bytes()[1] > 0.9 * 4 * size - PAYLOAD)
    assert len(proxy.connections) == 2
    assert 4 * size < proxy.down <= 4 * size + 2 * PAYLOAD + (64 << 10)


def test_a_line_that_breaks_every_second_loses_no_round(
    federation: DevFederation, proxied: Callable[..., FaultProxy], tmp_path: Path
) -> None:
    rounds = 12
    proxy = proxied()
    stage = Stage(federation, tmp_path, proxy, Table(seconds=0.25), rounds=rounds)
    over = threading.Event()

    def cutting() -> None:
        while not over.wait(1.0):
            proxy.cut()
            while not (proxy.open or over.wait(0.01)):
                pass  # until the device is back: on a slow machine that is no second

    cutter = threading.Thread(target=cutting)
    cutter.start()
    stage.play()
    over.set()
    cutter.join()
    assert len(stage.run.records) == rounds
    assert len(proxy.connections) >= 3


# ---- proxies, half-open lines ------------------------------------------------------------------


def test_a_proxy_that_closes_idle_lines_costs_no_work(
    federation: DevFederation, proxied: Callable[..., FaultProxy], tmp_path: Path
) -> None:
    """Closed after 30 s in a training of 90 s, thirty times faster: before a sign of life."""
    proxy = proxied(idle=1.0)
    stage = Stage(federation, tmp_path, proxy, Table(seconds=3.5))
    stage.play()
    assert len(proxy.connections) >= 3


@pytest.mark.parametrize("share", [0.3, pytest.param(1.0, marks=pytest.mark.slow)])
def test_the_dead_are_noticed_and_named_whatever_way_they_died(
    tmp_path: Path, share: float
) -> None:
    """The network gone, the process stopped, the process killed; and the device notices too.

    In a share of the time, with every time on both sides that share of what it is.
    """
    host, federation = Host(tmp_path), made(tmp_path / "federation", len(SIX))
    times = {"BEAT": grpc_gateway.BEAT, "SILENCE": sessions.SILENCE, "GRACE": sessions.GRACE}
    core = Core(federation, tmp_path / "core.log", {name: share * times[name] for name in times})
    proxy = FaultProxy(int(json.loads((federation.folder / "core.json").read_text())["port"]))
    how: dict[int, dict[str, Any]] = {index: {"share": share} for index in SIX}
    how[1]["gateway"] = f"127.0.0.1:{proxy.port}"
    stage = CoreStage(federation, host, tmp_path, "dead", members=SIX, how=how, rounds=3)
    try:
        stage.hold = 2
        stage.rounds(1)
        log = stage.children[1].log
        proxy.swallow, began = True, time.monotonic()
        stage.children[2].kill(signal.SIGSTOP)
        stage.children[3].kill(signal.SIGKILL)
        noticed: dict[int, float] = {}

        def look() -> bool:
            past = time.monotonic() - began
            here = {stage.index[node] for node in stage.run.coordinator.nodes}
            for index in set(SIX) - here:
                noticed.setdefault(index, past)
            if "trying again" in log.read_text():
                noticed.setdefault(-1, past)
            return len(noticed) == 4

        stage.play(look)
        assert sorted(noticed) == [-1, 1, 2, 3]
        assert all(past <= MOST for past in noticed.values()), noticed
        stage.hold = 3
        stage.rounds(2)
        assert stage.survivors(2) == (0, 4, 5)
        proxy.swallow = False
        stage.children[2].kill(signal.SIGCONT)
        stage.play(lambda: stage.joins[1] == stage.joins[2] == 2)
        stage.hold = 4
        stage.play()
        assert stage.survivors(3) == (0, 1, 2, 4, 5)
    finally:
        stage.close()
        host.close()
        proxy.close()
        core.end()


# ---- two families ------------------------------------------------------------------------------


def test_one_port_is_reached_by_both_families(federation: DevFederation, tmp_path: Path) -> None:
    """A gateway on `::`; a round among devices that dial IPv4, IPv6 and a name."""
    run = Run(federation, tmp_path, next(NAMES), rounds=1, final_evaluation=False)
    port = int(json.loads((federation.folder / "core.json").read_text())["port"])
    devices = run.devices()[:THREE]
    for index, host in enumerate(("127.0.0.1", "[::1]", "localhost")):
        devices[index].files = replace(devices[index].files, gateway=f"{host}:{port}")
        devices[index].start(run.name, run.ticket(index))
    run.joined(THREE)
    run.coordinator.begin(time.monotonic())
    run.pump(lambda: run.coordinator.done)
    run.core.goodbye()
    assert [device.join().reason for device in devices] == [pb.REASON_GOODBYE] * THREE
    assert [(r.outcome, len(r.survivors)) for r in run.records] == [("finished", THREE)]
    run.close()


def test_a_gateway_of_one_family_is_refused_by_the_other_and_said(
    federation: DevFederation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grpc_session, "AWAY_S", 1.0)
    port = FaultProxy(1)  # IPv4 only
    run = Run(federation, tmp_path, next(NAMES))
    device = run.devices()[0]
    device.files = replace(device.files, gateway=f"[::1]:{port.port}")
    outcome = device.start(run.name, run.ticket(0)).join()
    assert "Connection refused" in outcome.detail
    assert f"[::1]:{port.port}" in outcome.detail.replace("%5B::1%5D", "[::1]")
    port.close()
    run.close()


# ---- slow and far ------------------------------------------------------------------------------


def test_a_line_of_a_satellite_is_joined_at_the_first_try(
    federation: DevFederation, proxied: Callable[..., FaultProxy], tmp_path: Path
) -> None:
    proxy = proxied(latency=0.5, jitter=0.1)  # more than a second there and back, three times
    stage = Stage(federation, tmp_path, proxy, Table())
    stage.leave()
    assert (len(proxy.connections), stage.first.log) == (1, [])


@pytest.mark.slow
@pytest.mark.parametrize(("rate", "size"), [(250e3, 1_000_000), (64e3, 200_000)])
def test_a_slow_line_that_moves_is_never_cut(
    federation: DevFederation,
    proxied: Callable[..., FaultProxy],
    tmp_path: Path,
    rate: float,
    size: int,
) -> None:
    """2 Mbit/s and 512 kbit/s in real time: longer than every time limit of the session."""
    proxy = proxied(rate=rate)
    stage = Stage(federation, tmp_path, proxy, Table(size))
    stage.play(120.0)
    assert (len(proxy.connections), stage.first.log) == (1, [])


class Slowing(Table):
    """Its training done, the line becomes slow."""

    def __init__(self, size: int, proxy: FaultProxy, rate: float) -> None:
        """Take the line, and its bytes a second."""
        super().__init__(size)
        self._proxy, self._rate = proxy, rate

    def train(
        self, arrays: Mapping[str, NDArray[Any]], site: Site, settings: Settings
    ) -> TrainResult:
        """Train as ever."""
        self._proxy.rate = self._rate
        return super().train(arrays, site, settings)


def test_an_upload_that_takes_longer_than_its_part_of_the_deadline_is_waited_for(
    federation: DevFederation, proxied: Callable[..., FaultProxy], tmp_path: Path
) -> None:
    """8 MB in 6.7 s where uploads have 6 s, and may rest for 1.5 s; the round has 60 s."""
    proxy = proxied()
    trainer = Slowing(2_000_000, proxy, 1.2e6)
    stage = Stage(federation, tmp_path, proxy, trainer, deadline=60.0, trip=6.0)
    stage.play()
    assert stage.run.records[0].seconds["summing"] > 6.0
