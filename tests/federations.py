"""A federation on this machine for a test: files, a core service in a process, devices in threads.

Everything that travels is real: mTLS on loopback, tickets, journals on disk. Training is a table
of numbers (`gateway.Numbers`), so that the mean that must come out is known by hand.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TextIO

from umbel.clients.device_files import DeviceFiles
from umbel.clients.grpc_session import GatewaySession, Invitation, Outcome
from umbel.clients.journal import FileJournal
from umbel.clients.update import Update
from umbel.protocol.entropy import os_entropy
from umbel.protocol.plan import Params
from umbel.server import core_status
from umbel.server.coordinator import Coordinator
from umbel.server.core_client import CoreClient
from umbel.server.run_directory import RunDirectory
from umbel.server.settings import RunSettings
from umbel.server.surroundings import Surroundings
from umbel.server.write_behind import WriteBehind
from umbel.simulation.dev_federation import Client, DevFederation, prepare, write_devices
from umbel.strategies.task import Site
from umbel.tests.gateway import Numbers
from umbel.tests.quick_core import core_up

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from umbel.server.ledger import RoundRecord
    from umbel.strategies.trainer import Trainer

APP = bytes(range(32))
PARAMS = Params(value_range=0.5, weight_cap=40, min_members=3, min_survivors=3)


def made(folder: Path, count: int = 3, *, secure: bool = True) -> DevFederation:
    """Write a federation of `count` devices; their gateway is not known yet."""
    clients = [Client(name=f"edge-{i}") for i in range(count)]
    federation = prepare(folder, "tested", clients, datetime.now(UTC))
    addressed(federation, "127.0.0.1:1", secure=secure)
    return federation


def addressed(federation: DevFederation, gateway: str, *, secure: bool = True) -> None:
    """Tell every device where the gateway is."""
    clients = [Client(name=node.name) for node in federation.nodes]
    write_devices(
        federation, clients, gateway=gateway, superlink="127.0.0.1:1", app=APP, secure=secure,
        rounds=1000,
    )  # fmt: skip


@contextmanager
def core(
    federation: DevFederation,
    log: TextIO | None = None,
    flags: Sequence[str] = (),
    times: Mapping[str, float] | None = None,
) -> Iterator[int]:
    """Run `umbel core up`, its output in an open file, and give its port.

    `times`, where given, are those of quick_core.py.
    """
    command = core_up(federation.folder, times)
    process = subprocess.Popen([*command, *flags], process_group=0, stdout=log, stderr=log)
    try:
        file = federation.folder / "core.json"
        until = time.monotonic() + 60
        while not file.exists():
            assert process.poll() is None, "the core service ended"
            assert time.monotonic() < until, "the core service does not listen"
            time.sleep(0.05)
        yield int(json.loads(file.read_text())["port"])
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(20)


def taken(federation: DevFederation, index: int | None = None) -> int:
    """Return how many bytes of a device, or of all, the core service has taken so far."""
    found = core_status.ask(federation.folder)
    assert found is not None
    nodes = federation.nodes if index is None else (federation.nodes[index],)
    return sum(int(found["nodes"].get(node.id, {}).get("up", 0)) for node in nodes)


@dataclass
class DeviceThread:
    """One device's session in a thread."""

    files: DeviceFiles
    trainer: Trainer
    index: int
    partitions: int = 10
    seed: int | None = None
    """Makes the rounding repeatable; a device in the field has none."""
    log: list[str] = field(default_factory=list)
    outcome: Outcome | None = None
    session: GatewaySession | None = None

    def start(self, run: str, ticket: bytes, lease: float = 3600.0) -> DeviceThread:
        """Begin the session."""
        self._thread = threading.Thread(target=self._serve, args=(run, ticket, lease), daemon=True)
        self._thread.start()
        return self

    def _serve(self, run: str, ticket: bytes, lease: float) -> None:
        journal = FileJournal(self.files.journal)
        site = Site(partition=self.index, partitions=self.partitions)
        update = Update(self.trainer, site, self.files.policy, entropy=os_entropy, seed=self.seed)
        device = self.files.device(update, journal, APP, self.log.append)
        try:
            self.session = GatewaySession(self.files, device, Invitation(run, ticket, lease))
            self.outcome = self.session.serve()
        finally:
            journal.close()

    def join(self, wait: float = 60.0) -> Outcome:
        """Wait for the end and return what came of it."""
        self._thread.join(wait)
        assert self.outcome is not None, self.log
        return self.outcome


class Run:
    """One run's ServerApp, driven by the test."""

    def __init__(self, federation: DevFederation, home: Path, name: str = "run-1", **own: Any):
        """Open the run at the core; `own` overrides the settings, its `around` the rest.

        `behind` lets a thread write, as `umbel.train` does.
        """
        self.federation, self.name = federation, name
        self.trainer: Trainer = own.pop("trainer", Numbers())
        self.core = CoreClient.open(federation.folder, name, own.get("scheme", "A"))
        self.directory = RunDirectory.create(home, name)
        self.directory.ledger.create_run(name, "2030-01-01T00:00:00+00:00", {}, "on")
        self.records: list[RoundRecord] = []
        changes = own.pop("around", {})
        self.disk = WriteBehind(self.directory) if own.pop("behind", False) else None
        settings = RunSettings(run=name, **{"rounds": 2, "params": PARAMS, **own})
        declared = {phase: self.trainer.declared(phase) for phase in ("train", "evaluate")}
        around = Surroundings(
            verifier=self.core.verifier, ca=self.core.ca, app=APP,
            directory=self.disk or self.directory,
            post=self.core.post, wall=lambda: datetime.now(UTC), test=None,
            observe=self.records.append, traffic=self.core.traffic,
            core=self.core,
        )  # fmt: skip
        around = replace(around, **changes)
        self.coordinator = Coordinator(settings, self.trainer.arrays(), declared, around)

    def devices(self) -> list[DeviceThread]:
        """Return every device, not begun."""
        return [
            DeviceThread(DeviceFiles.read(self.federation.device(node.name)), self.trainer, i)
            for i, node in enumerate(self.federation.nodes)
        ]

    def ticket(self, index: int) -> bytes:
        """Return a ticket for one device."""
        node = self.federation.nodes[index]
        return self.core.tickets([(node.id, node.tls_fingerprint)], 600.0)[node.id]

    def pump(self, until: Callable[[], bool], wait: float = 60.0) -> None:
        """Hand events to the coordinator until something holds."""
        end = time.monotonic() + wait
        while not until():
            assert time.monotonic() < end, "nothing came of it"
            for event in self.core.events(0.05):
                event.give(self.coordinator, time.monotonic())
            self.coordinator.tick(time.monotonic())

    def joined(self, count: int) -> None:
        """Wait until so many devices have a session."""
        self.pump(lambda: len(self.coordinator.nodes) >= count)

    def close(self) -> None:
        """Close connection and directory."""
        self.core.close()
        if self.disk is not None:
            self.disk.__exit__(None)
        self.directory.close()
