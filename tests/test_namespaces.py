"""Devices in network namespaces: links that go down, addresses that change, real rates.

What a proxy cannot play: packets vanish without a reset, and an interface loses its address while
a connection is open. The core service is in this namespace, the first device in another, behind a
pair of virtual interfaces; the other devices are on loopback.

    gateway ── 10.213.77.1 ══ veth ══ 10.213.77.2 ── device 0 (namespace)
"""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
import time
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING

import pytest

from umbel.simulation import dev_federation
from umbel.tests.core_stage import CoreStage
from umbel.tests.federations import addressed, core, made
from umbel.tests.process_host import Host

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from umbel.simulation.dev_federation import DevFederation

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        os.geteuid() != 0 or shutil.which("ip") is None or shutil.which("tc") is None,
        reason="network namespaces need root, ip and tc",
    ),
]
HERE = "10.213.77.1"
THREE = (0, 1, 2)
MOST = 15.0
"""Seconds within which a dead peer is noticed."""


class Namespace:
    """A network namespace and the pair of interfaces that leads to it."""

    def __init__(self) -> None:
        """Make both; the names carry this process's id."""
        self.name, self._near, self._far = (f"{kind}{os.getpid()}" for kind in ("um", "un", "uf"))
        self.hops = 2
        _ip("netns", "add", self.name)
        self._within("link", "set", "lo", "up")
        _ip("link", "add", self._near, "type", "veth", "peer", "name", self._far)
        _ip("link", "set", self._far, "netns", self.name)
        _ip("addr", "add", f"{HERE}/24", "dev", self._near)
        self.up()
        self._within("addr", "add", f"10.213.77.{self.hops}/24", "dev", self._far)
        self._within("link", "set", self._far, "up")

    @property
    def command(self) -> list[str]:
        """What runs a command in the namespace."""
        return ["ip", "netns", "exec", self.name]

    def down(self) -> None:
        """Lose every packet from now on, and tell nobody."""
        _ip("link", "set", self._near, "down")

    def up(self) -> None:
        """Carry packets again."""
        _ip("link", "set", self._near, "up")

    def move(self) -> None:
        """Give the namespace another address; connections from the old one are dead."""
        self._within("addr", "flush", "dev", self._far)
        self.hops += 1
        self._within("addr", "add", f"10.213.77.{self.hops}/24", "dev", self._far)

    def slow(self, rate: str) -> None:
        """Let the way to the gateway carry so much, and 50 ms of it wait."""
        shape = ["root", "tbf", "rate", rate, "burst", "16kb", "latency", "50ms"]
        subprocess.run([*self.command, "tc", "qdisc", "add", "dev", self._far, *shape], check=True)

    def close(self) -> None:
        """Remove both, the wire first: a namespace goes when its last process has gone."""
        _ip("link", "del", self._near)
        _ip("netns", "del", self.name)

    def _within(self, *words: str) -> None:
        subprocess.run([*self.command, "ip", *words], check=True)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


@pytest.fixture
def away() -> Iterator[Namespace]:
    """A place behind a wire."""
    found = Namespace()
    yield found
    found.close()


@pytest.fixture
def federation(
    away: Namespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[DevFederation]:
    """A core service that listens on the wire."""
    monkeypatch.setattr(dev_federation, "SERVER_NAMES", (HERE, "127.0.0.1"))
    found = made(tmp_path / "federation", len(THREE))
    with core(found, flags=("--host", "::")) as port:
        addressed(found, f"{HERE}:{port}")
        yield found


@pytest.fixture
def hosts(away: Namespace, tmp_path: Path) -> Iterator[tuple[Host, Host]]:
    """What starts devices here, and what starts them in the namespace."""
    found = Host(tmp_path), Host(tmp_path, away.command)
    yield found
    for host in found:
        host.close()


class Stage(CoreStage):
    """A run whose first device is in the namespace."""

    def __init__(
        self, federation: DevFederation, hosts: tuple[Host, Host], home: Path, **own: object
    ) -> None:
        """Start two devices here, the first there, and wait for all."""
        self._away = hosts[1]
        settings = {"members": (1, 2), "deadline": 120.0, "trip": 20.0, **own}
        super().__init__(federation, hosts[0], home, "namespaces", **settings)  # type: ignore[arg-type]
        directory, ticket = federation.device("edge-0"), self.run.ticket(0)
        self.children[0] = self._away.device(directory, self.run.name, ticket, 0, shape=self._shape)
        self.run.joined(len(THREE))


@pytest.fixture
def staged(
    federation: DevFederation, hosts: tuple[Host, Host], tmp_path: Path
) -> Iterator[Callable[..., Stage]]:
    """Makes the run of a test."""
    with ExitStack() as stack:
        yield lambda **own: stack.enter_context(closing(Stage(federation, hosts, tmp_path, **own)))


def test_a_link_that_goes_down_again_and_again_loses_no_round(
    staged: Callable[..., Stage], away: Namespace
) -> None:
    """Packets vanish for a second of every three, in whatever phase; each round takes everybody."""
    rounds = 20
    stage = staged(rounds=rounds)
    over, cuts = threading.Event(), 0

    def cutting() -> None:
        nonlocal cuts
        while not over.wait(2.0):
            away.down()
            time.sleep(1.0)
            away.up()
            cuts += 1

    cutter = threading.Thread(target=cutting)
    cutter.start()
    try:
        for number in range(1, rounds + 1):
            stage.hold = number + 1
            stage.rounds(number)
            later = time.monotonic() + 0.7
            stage.play(lambda later=later: time.monotonic() > later)  # type: ignore[misc]
    finally:
        over.set()
        cutter.join()
    assert cuts >= 4
    ends = [(r.outcome, r.attempt, len(r.survivors)) for r in stage.records]
    assert ends == [("finished", 0, len(THREE))] * rounds


def test_a_device_whose_address_changes_comes_back_from_the_new_one(
    staged: Callable[..., Stage], away: Namespace
) -> None:
    """A phone that leaves one network for another: nothing tells either side."""
    stage = staged(rounds=2)
    stage.hold = 2
    stage.rounds(1)
    away.move()
    began = time.monotonic()
    stage.play(lambda: "trying again" in stage.children[0].log.read_text())
    assert time.monotonic() - began <= MOST
    stage.play(lambda: stage.node(0) in stage.run.coordinator.nodes)
    stage.hold = 3
    stage.play()
    assert stage.survivors(2) == THREE


def test_a_wire_of_two_megabits_carries_an_upload_at_its_rate(
    staged: Callable[..., Stage], away: Namespace
) -> None:
    """4 MB at 2 Mbit/s take 16 s, longer than any wait of the session, and nothing is cut."""
    stage = staged(rounds=1, shape=(1_000_000,))
    away.slow("2mbit")
    assert stage.play(wait=120.0) > 12
    assert stage.survivors(1) == THREE
    assert stage.joins == {0: 1, 1: 1, 2: 1}
