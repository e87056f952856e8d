"""Removal and renewal for real: an issuer, a core service in a process, devices with mTLS sessions.

Leaves of some seconds are an argument of the issuer. Who invites is `umbel.train` itself, over a
Grid in memory; a device reads its directory anew for each invitation, as a ClientApp does.
"""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
)

import umbel
from umbel.clients import clock, member_file
from umbel.clients.device_files import DeviceFiles
from umbel.clients.enrol import certificates
from umbel.clients.policy import Policy
from umbel.host.whole_file import write_whole
from umbel.protocol import messages_pb2 as pb
from umbel.protocol.certificates import fingerprint
from umbel.protocol.errors import Revoked
from umbel.protocol.members import MemberList
from umbel.server import registry
from umbel.server.federation_files import authority, server_leaf
from umbel.server.federation_init import make
from umbel.server.flower_train import train
from umbel.server.issuer import Issuer
from umbel.server.server_toml import ServerSettings
from umbel.server.token_terms import Terms
from umbel.simulation.dev_federation import DevFederation
from umbel.tests.federations import APP, DeviceThread, Run, core
from umbel.tests.flower_grid import Desk, identified
from umbel.tests.gateway import Numbers
from umbel.tests.issuing import Keys, SuperLink, settings
from umbel.tests.test_flower_train import METRICS, Nodes, Wrapped

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from flwr.app import Message

    from umbel.protocol.enrolment import EnrolAnswer

LIFE_S = 45.0
"""Of a leaf; a device renews it when a third of that has passed."""
DEADLINE_S, ROUNDS = 18.0, 32


def now() -> datetime:
    return datetime.now(UTC)


class Enrolled:
    """A device with a directory of its own, enrolled by the issuer."""

    def __init__(self, federation: Wards, name: str) -> None:
        self.federation, self.keys = federation, Keys()
        self.directory = federation.folder / "nodes" / name
        self.directory.mkdir(mode=0o700, parents=True)
        terms = Terms(name=name, site=name, seconds=3600)
        answer = federation.issuer.enrol(self.keys.enrol(federation.issuer.token(terms)))
        self.id = answer.id
        for file, key in (("tls.key", self.keys.tls), ("signing.key", self.keys.signing)):
            text = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
            write_whole(self.directory / file, text)
        write_whole(self.directory / "ca.pem", federation.issuer.ca())
        self.write(answer)

    def write(self, answer: EnrolAnswer) -> None:
        """Write what the CA granted, as enrolment and renewal do."""
        for name, content in certificates(answer).items():
            write_whole(self.directory / name, content)
        member_file.keep(self.directory, answer.members)

    def renew(self) -> None:
        """Take new leaves for the same keys."""
        self.write(self.federation.issuer.renew(self.keys.renew(self.id)))

    def addressed(self, port: int) -> None:
        """Write where the gateway is, and the policy."""
        lines = {"federation": "wards", "id": self.id.hex(), "gateway": f"127.0.0.1:{port}"}
        text = "".join(f'{key} = "{value}"\n' for key, value in lines.items())
        write_whole(self.directory / "device.toml", text.encode())
        policy = Policy(
            federation="wards", ca=str(self.directory / "ca.pem"), gateways=("127.0.0.1",),
            apps=(APP,), min_members=3, min_survivors=3,
        )  # fmt: skip
        write_whole(self.directory / "policy.toml", policy.dumps().encode())

    def files(self) -> DeviceFiles:
        """Read the directory anew."""
        return DeviceFiles.read(self.directory)


class Wards:
    """A federation with an issuing CA, and devices."""

    def __init__(self, folder: Path, count: int, life: float) -> None:
        self.folder = folder
        make(folder, settings(names=("127.0.0.1", "fl.example.org")), now())
        self.issuer = Issuer(folder, now, SuperLink(), life=timedelta(seconds=life))
        self.devices = [Enrolled(self, f"edge-{place}") for place in range(count)]

    @property
    def members(self) -> bytes:
        """The member list that lies in the folder."""
        return (self.folder / "members.list").read_bytes()

    def addressed(self, port: int) -> None:
        """Tell every device where the gateway is."""
        for device in self.devices:
            device.addressed(port)

    def session(self, place: int, run: Run, ticket: bytes) -> DeviceThread:
        """Begin a session of a device, as its directory is now."""
        files = self.devices[place].files()
        return DeviceThread(files, Numbers(), place).start(run.name, ticket)

    def registered(self) -> DevFederation:
        """Return the registry as a federation of tests."""
        nodes = registry.read(self.folder)
        return DevFederation(folder=self.folder, name="wards", nodes=tuple(nodes.values()))


@pytest.fixture
def lives(request: pytest.FixtureRequest) -> float:
    """How long a leaf lives, in seconds."""
    return float(getattr(request, "param", 3600.0))


@pytest.fixture
def wards(tmp_path: Path, lives: float) -> Iterator[Wards]:
    """Four devices, and a core service that reads the issuer's files."""
    found = Wards(tmp_path / "wards", 4, lives)
    log = tmp_path / "core.log"
    with log.open("w") as out, core(found.registered(), out) as port:
        found.addressed(port)
        yield found


# ---- removal -----------------------------------------------------------------------------------


def test_a_removed_device_is_ended_everywhere_and_the_others_finish_the_round(
    wards: Wards, tmp_path: Path
) -> None:
    run = Run(wards.registered(), tmp_path, rounds=2)
    tickets = [run.ticket(place) for place in range(4)]
    first, *others = (wards.session(place, run, ticket) for place, ticket in enumerate(tickets))
    run.joined(4)
    wards.issuer.remove("edge-0")
    run.pump(lambda: len(run.coordinator.nodes) == 3)
    assert first.join().reason == pb.REASON_CERTIFICATE
    assert "this node was removed from the federation" in first.join().detail
    with pytest.raises(Revoked):  # the device knows it too
        wards.devices[0].files().identity(now())
    (wards.devices[0].directory / member_file.FILE).unlink()
    again = wards.session(0, run, tickets[0])  # which admitted it before
    assert again.join().reason == pb.REASON_CERTIFICATE
    run.coordinator.begin(time.monotonic())
    run.pump(lambda: run.coordinator.done)
    gone = wards.devices[0].id.hex()
    assert [r.outcome for r in run.records] == ["finished"] * 3
    assert all(len(r.survivors) == 3 and gone not in r.survivors for r in run.records)
    run.core.goodbye()
    for device in others:
        assert device.join().reason == pb.REASON_GOODBYE
    for enrolled in wards.devices[1:]:  # and they know it, whatever the server says next
        known = enrolled.files().membership(now())
        assert known.revoked() == {wards.devices[0].id}
    run.close()


def test_a_removal_holds_after_the_core_service_and_the_list_have_ended(
    tmp_path: Path,
) -> None:
    wards = Wards(tmp_path / "wards", 3, 3600.0)
    wards.issuer.remove("edge-0")
    signer = authority(wards.folder)
    found = MemberList.open(wards.members, [signer.key.public_key()], "wards")
    ended = now() - timedelta(days=1)
    past = replace(found, issued=ended - timedelta(days=7), expires=ended)
    write_whole(wards.folder / "members.list", past.sign(signer))
    log = tmp_path / "core.log"
    with log.open("w") as out, core(wards.registered(), out) as port:
        wards.addressed(port)
        run = Run(wards.registered(), tmp_path)
        gone = wards.devices[0]
        leaf = x509.load_pem_x509_certificate((gone.directory / "tls.pem").read_bytes())
        print_ = fingerprint(leaf.public_bytes(Encoding.DER)).hex()
        ticket = run.core.tickets([(gone.id.hex(), print_)], 60.0)[gone.id.hex()]
        assert wards.session(0, run, ticket).join().reason == pb.REASON_CERTIFICATE
        run.close()
    assert "is revoked" in log.read_text()
    assert "expired on" in log.read_text()


def test_devices_refuse_an_older_list_and_go_on_by_the_newer(tmp_path: Path) -> None:
    wards = Wards(tmp_path / "wards", 4, 3600.0)
    older = wards.members
    wards.issuer.remove("edge-3")
    newer, logs = wards.members, list[list[str]]()
    for name, shown in (("run-1", newer), ("run-2", older)):  # a server with a backup of before
        write_whole(wards.folder / "members.list", shown)
        with (tmp_path / "core.log").open("a") as out, core(wards.registered(), out) as port:
            wards.addressed(port)
            run = Run(wards.registered(), tmp_path, name, rounds=1)
            devices = [wards.session(place, run, run.ticket(place)) for place in range(3)]
            run.joined(3)
            run.coordinator.begin(time.monotonic())
            run.pump(lambda run=run: run.coordinator.done)  # type: ignore[misc]
            assert [r.outcome for r in run.records] == ["finished"] * 2
            run.core.goodbye()
            assert [device.join().reason for device in devices] == [pb.REASON_GOODBYE] * 3
            run.close()
        assert all(member_file.read(e.directory) == newer for e in wards.devices[:3])
        logs.append([line for device in devices for line in device.log if "older" in line])
    assert [len(lines) for lines in logs] == [0, 3]


# ---- the server's files ------------------------------------------------------------------------


def shown(wards: Wards) -> int:
    """Return the serial number of the leaf that the gateway shows, by the pinned root."""
    files = wards.devices[0].files()
    leaf = clock.gateway_leaf(files.gateway, files.root(), files.issuing())
    assert clock.gateway_leaf(files.gateway, files.root()) is None  # an issuing CA is between
    return 0 if leaf is None else leaf.serial_number


def test_a_running_core_service_shows_a_renewed_leaf_and_none_that_is_no_use(
    wards: Wards, tmp_path: Path
) -> None:
    run, log = Run(wards.registered(), tmp_path), tmp_path / "core.log"
    device = wards.session(0, run, run.ticket(0))
    run.joined(1)
    file, before = wards.folder / "gateway.pem", shown(wards)
    good, names = file.read_bytes(), ServerSettings.read(wards.folder).names_of("gateway")
    write_whole(file, b"-----BEGIN CERTIFICATE-----")
    wait_for(lambda: "what was there before stays in force" in log.read_text())
    assert shown(wards) == before
    write_whole(file, good)
    until = now() + timedelta(days=365)
    assert server_leaf(authority(wards.folder), wards.folder, "gateway", names, until, now())
    wait_for(lambda: shown(wards) not in {0, before})
    write_whole(wards.folder / "members.list", b"no list")
    wait_for(lambda: "umbel/members/1" in log.read_text())
    run.joined(1)  # nothing of it concerned who is here
    run.core.goodbye()
    assert device.join().reason == pb.REASON_GOODBYE
    run.close()


def wait_for(holds: Callable[[], bool]) -> None:
    until = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < until, "nothing came of it"
        time.sleep(0.05)


# ---- renewal -----------------------------------------------------------------------------------


class Slow(Wrapped):
    """A training that takes a moment, so that rounds go on while leaves end."""

    def train(self, arrays: Any, site: Any, settings: Any) -> Any:
        """Return the numbers, later."""
        time.sleep(1.5)
        return super().train(arrays, site, settings)


class Next(DeviceThread):
    """A ClientApp that begins when the one before it on its device has ended."""

    before: DeviceThread | None = None

    def _serve(self, run: str, ticket: bytes, lease: float) -> None:
        if self.before is not None:
            self.before.join()
        super()._serve(run, ticket, lease)


class SuperNodes(Nodes):
    """Nodes that take one message after another, as a SuperNode does."""

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Start the ClientApp of each node that is invited."""
        given = list(messages)
        ids = list(Desk.push_messages(self, given))
        for message in given:
            place = message.metadata.dst_node_id - 101
            invite: Any = message.content["umbel.invite"]
            device = Next(
                DeviceFiles.read(self.federation.device(f"edge-{place}")), self.trainer(), place
            )
            earlier = [one for _, one in self.devices if one.index == place]
            device.before = earlier[-1] if earlier else None
            self.devices.append((message, device.start(invite["run"], invite["ticket"])))
        return ids


class Renewing(threading.Thread):
    """What the agents of all devices do: new leaves after a third of the life of the old ones."""

    def __init__(self, wards: Wards, life: float) -> None:
        super().__init__(daemon=True)
        self.wards, self.life, self.over = wards, life, threading.Event()
        self.count = 0

    def run(self) -> None:
        """Look twice a second."""
        while not self.over.wait(0.5):
            for device in self.wards.devices:
                if (device.files().ends() - now()).total_seconds() < self.life * 2 / 3:
                    device.renew()
                    self.count += 1


@pytest.mark.slow
@pytest.mark.parametrize("lives", [LIFE_S], indirect=True)
def test_renewal_across_the_expiry_of_every_leaf_loses_no_round(
    wards: Wards, lives: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    identified(monkeypatch)
    monkeypatch.setenv("UMBEL_FEDERATION", str(wards.folder))
    monkeypatch.setenv("UMBEL_HOME", str(tmp_path))
    first = max(device.files().ends() for device in wards.devices)
    grid, renewing = SuperNodes(wards.registered(), Slow), Renewing(wards, lives)
    renewing.start()
    try:
        result = train(
            grid, umbel.FedAvg(), initial_arrays=Numbers().arrays(), metrics=METRICS,
            config={"clients": 4, "rounds": ROUNDS, "weight-cap": 40, "deadline": DEADLINE_S},
        )  # fmt: skip
    finally:
        renewing.over.set()
        renewing.join()
    assert now() > first, "no leaf came to its end"
    rounds = [(r.round, r.phase, r.attempt, r.outcome, len(r.survivors)) for r in result.records]
    assert rounds == [
        *((n, "train", 0, "finished", 4) for n in range(1, ROUNDS + 1)),
        (ROUNDS, "evaluate", 0, "finished", 4),
    ]  # fmt: skip
    assert len(grid.devices) >= 8  # each had another session at least
    assert set(grid.ends()) == {pb.REASON_GOODBYE}
