"""Clocks that are years off, or jump: a device's, the gateway's, and the lines about them."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from umbel.clients import clock, grpc_session
from umbel.clients.device_files import DeviceFiles
from umbel.protocol import messages_pb2 as pb
from umbel.protocol.certificates import Authority
from umbel.protocol.errors import BadCertificate
from umbel.tests.fault_proxy import FaultProxy
from umbel.tests.federations import DeviceThread, Run, addressed, core, made
from umbel.tests.gateway import Numbers
from umbel.tests.wire_federation import Federation, Machine, key_pem, pem

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from umbel.simulation.dev_federation import DevFederation
    from umbel.tests.wire_federation import Device

DAYS_7 = timedelta(days=7)
T = datetime(2026, 3, 1, 12, tzinfo=UTC)


class Board:
    """A clock that a test sets."""

    def __init__(self, off: timedelta) -> None:
        """Begin so much off."""
        self.off, self.looks = off, 0

    def __call__(self) -> datetime:
        """Return the time by this clock."""
        self.looks += 1
        return datetime.now(UTC) + self.off


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevFederation]:
    """A core service that serves every test of this file."""
    found = made(tmp_path_factory.mktemp("federation"), 4)
    with core(found) as port:
        addressed(found, f"127.0.0.1:{port}")
        yield found


def leaf(begins: datetime, ends: datetime) -> x509.Certificate:
    """Return a certificate of this life."""
    key = ec.generate_private_key(ec.SECP256R1())
    authority = Authority.create("tested", begins)
    return authority.issue_gateway(key.public_key(), ["a"], begins, (ends - begins).days)


# ---- the lines ---------------------------------------------------------------------------------


def test_a_certificate_shows_how_far_a_clock_is_off() -> None:
    found = leaf(T, T + DAYS_7)  # begins five minutes early
    assert clock.misfit("it", found, T) == ""
    assert clock.misfit("it", found, datetime(1970, 1, 1, tzinfo=UTC)) == (
        "it begins 2026-03-01 11:55 UTC, but this device's clock says 1970-01-01 00:00 UTC: it is "
        "at least 56 years behind; set it (NTP)"
    )
    assert clock.misfit("it", found, T - timedelta(hours=3)) == (
        "it begins 2026-03-01 11:55 UTC, but this device's clock says 2026-03-01 09:00 UTC: it is "
        "at least 2 hours behind; set it (NTP)"
    )
    assert clock.misfit("it", found, T + timedelta(days=17)) == (
        "it ended 2026-03-08 12:00 UTC, and this device's clock says 2026-03-18 12:00 UTC, 10 days "
        "later: renew the certificate, or set the clock if it is ahead"
    )


@pytest.mark.parametrize(
    ("theirs", "line"),
    [
        (T, ""),
        (T + timedelta(seconds=119), ""),
        (T - timedelta(seconds=119), ""),
        (
            T + timedelta(hours=30),
            "this device's clock is 30 hours behind the gateway's; set it (NTP)",
        ),
        (
            T - timedelta(minutes=5),
            "this device's clock is 5 minutes ahead of the gateway's; set it (NTP)",
        ),
    ],
)
def test_the_gateways_time_shows_it_too(theirs: datetime, line: str) -> None:
    assert clock.skew(int(theirs.timestamp()), T) == line


@pytest.mark.parametrize("theirs", [0, 2**63, 2**64 - 1])
def test_no_time_and_a_senseless_one_show_nothing(theirs: int) -> None:
    assert clock.skew(theirs, T) == ""


# ---- a device ----------------------------------------------------------------------------------


def started(run: Run, board: Board, index: int = 0) -> DeviceThread:
    """Start a device by this clock, as its ClientApp does: the clock first, then the session."""
    node = run.federation.nodes[index]
    files = replace(DeviceFiles.read(run.federation.device(node.name)), clock=board)
    device = DeviceThread(files, run.trainer, index, log=Mended(board))
    files.settle_clock(device.log.append)
    return device.start(run.name, run.ticket(index))


def test_a_board_without_a_battery_joins_as_soon_as_its_clock_is_set(
    federation: DevFederation, tmp_path: Path
) -> None:
    run, board = Run(federation, tmp_path, "battery"), Board(timedelta(days=-20_000))
    threading.Timer(1.5, setattr, (board, "off", timedelta(0))).start()
    device = started(run, board)
    run.joined(1)
    run.core.goodbye()
    assert device.join().reason == pb.REASON_GOODBYE
    assert len(device.log) == 2
    assert device.log[0].startswith("tls.pem begins ")
    assert "54 years behind; set it (NTP); waiting 60 s for that" in device.log[0]
    assert device.log[1] == "this device's clock has been set"
    assert board.looks < 40  # two a second while it waits
    run.close()


@pytest.mark.parametrize("off", [timedelta(days=-20_000), timedelta(days=4000)])
def test_a_clock_that_stays_wrong_ends_in_one_line(
    federation: DevFederation, monkeypatch: pytest.MonkeyPatch, off: timedelta
) -> None:
    monkeypatch.setattr(clock, "PATIENCE_S", 1.0)
    files = replace(DeviceFiles.read(federation.device("edge-0")), clock=Board(off))
    said: list[str] = []
    began = time.monotonic()
    files.settle_clock(said.append)
    with pytest.raises(BadCertificate) as caught:
        files.tls(files.clock())
    ahead = off > timedelta(0)
    assert len(said) == (0 if ahead else 1)  # what may be an old certificate is not waited for
    assert (time.monotonic() - began < 0.9) is ahead
    line = str(caught.value)
    assert "\n" not in line
    assert ("10 years later: renew" if ahead else "at least 54 years behind; set it (NTP)") in line


def test_a_clock_that_is_hours_off_joins_and_says_so(
    federation: DevFederation, tmp_path: Path
) -> None:
    board = Board(timedelta(hours=30, seconds=9))
    run = Run(federation, tmp_path, "hours", rounds=1)
    devices = [
        started(run, board if index == 0 else Board(timedelta(0)), index) for index in (0, 1, 2)
    ]
    run.joined(3)
    run.coordinator.begin(time.monotonic())
    run.pump(lambda: run.coordinator.done)
    run.core.goodbye()
    assert [device.join().rounds for device in devices] == [2, 2, 2]
    line = "this device's clock is 30 hours ahead of the gateway's; set it (NTP)"
    assert [device.log for device in devices] == [[line], [], []]
    run.close()


class Jumping(Numbers):
    """Training in which a clock is set wrongly, once, in round 2."""

    def __init__(self, board: Board) -> None:
        """Take the clock."""
        super().__init__()
        self.board, self.jumped = board, False

    def train(self, arrays, site, settings):  # type: ignore[no-untyped-def]
        """Set the clock of device 0."""
        if site.index == 0 and settings.round == 2 and not self.jumped:
            self.jumped, self.board.off = True, timedelta(days=4000)
        return super().train(arrays, site, settings)


class Mended(list[str]):
    """A device's log, whose reader sets the clock when it says that a round was refused."""

    def __init__(self, board: Board) -> None:
        """Take the clock."""
        super().__init__()
        self.board = board

    def append(self, line: str) -> None:
        """Read a line."""
        super().append(line)
        if line.startswith("refused: "):
            self.board.off = timedelta(0)


def test_a_clock_that_jumps_costs_a_device_its_rounds_only_while_it_is_wrong(
    federation: DevFederation, tmp_path: Path
) -> None:
    board = Board(timedelta(0))
    run = Run(federation, tmp_path, "jumps", trainer=Jumping(board), rounds=3, attempts=2,
              final_evaluation=False)  # fmt: skip
    devices = [started(run, board if i == 0 else Board(timedelta(0)), i) for i in range(4)]
    run.joined(4)
    run.coordinator.begin(time.monotonic())
    run.pump(lambda: run.coordinator.done)
    run.core.goodbye()
    ends = [(r.round, r.outcome, len(r.survivors)) for r in run.records]
    assert ends == [(1, "finished", 4), (2, "aborted", 0), (2, "finished", 4), (3, "finished", 4)]
    assert [device.join().reason for device in devices] == [pb.REASON_GOODBYE] * 4
    assert any("refused: member list: expired" in line for line in devices[0].log)
    jump = "this device's clock is 10 years ahead of the gateway's; set it (NTP)"
    assert jump in devices[0].log
    run.close()


# ---- the gateway's certificate -----------------------------------------------------------------


def test_a_gateways_certificate_that_does_not_hold_yet_is_said_with_the_difference(
    federation: DevFederation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To a device two days behind the gateway's certificate looks as this one does to ours."""
    monkeypatch.setattr(grpc_session, "AWAY_S", 30.0)
    folder = federation.folder
    ca = x509.load_pem_x509_certificate((folder / "ca.pem").read_bytes())
    ca_key = load_pem_private_key((folder / "ca.key").read_bytes(), None)
    assert isinstance(ca_key, ec.EllipticCurvePrivateKey)
    key, later = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC) + timedelta(hours=49)
    early = Authority("tested", ca, ca_key).issue_gateway(key.public_key(), ["127.0.0.1"], later)
    server = grpc.server(ThreadPoolExecutor(1))
    credentials = grpc.ssl_server_credentials([(key_pem(key), pem(early))], pem(ca), True)
    proxy = FaultProxy(server.add_secure_port("127.0.0.1:0", credentials))
    server.start()
    run = Run(federation, tmp_path, "early")
    device = run.devices()[0]
    device.files = replace(device.files, gateway=f"127.0.0.1:{proxy.port}")
    device.start(run.name, run.ticket(0))
    end = time.monotonic() + 10
    while not device.log:
        assert time.monotonic() < end
        time.sleep(0.05)
    time.sleep(3.0)
    (line,) = device.log
    assert line.startswith("gateway: the gateway's certificate begins ")
    assert line.endswith("it is at least 2 days behind; set it (NTP); trying again")
    assert len(proxy.connections) < 12  # each try, and one look at the certificate
    server.stop(0)
    proxy._target = ("127.0.0.1", json.loads((folder / "core.json").read_text())["port"])
    run.joined(1)  # as it does when its clock is set
    run.core.goodbye()
    assert device.join().reason == pb.REASON_GOODBYE
    run.close()
    proxy.close()


def test_who_is_not_of_the_federation_is_no_evidence(
    federation: DevFederation, tmp_path: Path
) -> None:
    files = DeviceFiles.read(federation.device("edge-0"))
    assert clock.gateway_leaf(files.gateway, files.root()) is not None
    other = DeviceFiles.read(made(tmp_path / "other").device("edge-0"))
    assert clock.gateway_leaf(files.gateway, other.root()) is None
    assert clock.gateway_leaf("127.0.0.1:1", files.root()) is None


# ---- the server's clock ------------------------------------------------------------------------


@pytest.mark.parametrize("hours", [-30, 30])
def test_a_jump_of_the_servers_clock_ends_no_session_and_no_ticket(hours: int) -> None:
    async def play() -> None:
        async with Federation() as there, there.device() as device:
            await device.hello()
            there.core.wall = lambda: datetime.now(UTC) + timedelta(hours=hours)
            there.core.tick()
            await device.send(b"one")
            assert (await there.heard.wait("message"))[2] == b"one"
            device.call.cancel()
            down = await device.hello(resume=True)
            assert down.welcome.epoch == 2
            assert abs(down.welcome.time - time.time() - 3600 * hours) < 60
            assert there.core.sessions.count() == 1

    asyncio.run(play())


def test_a_certificate_that_ends_ends_its_session_whatever_the_clock_says_meanwhile() -> None:
    async def play() -> None:
        async with Federation() as there:
            machine = Machine(there.authority, 1, datetime.now(UTC) - timedelta(days=6), 7)
            async with _device(there, machine) as device:
                await device.hello()
                there.core.wall = lambda: datetime.now(UTC) - timedelta(days=2)
                there.core.tick()
                assert there.core.sessions.count() == 1
                there.ahead += 24 * 3600 + 60  # what has passed, not what the clock says
                there.core.tick()
                assert there.core.sessions.count() == 0
                assert there.said("a certificate expired")

    asyncio.run(play())


def _device(there: Federation, machine: Machine) -> Device:
    device = there.device()
    return type(device)(there, machine)
