"""From nothing to a device that trains, on two hosts: one command there, two on each device.

The server's host is a network namespace behind a wire, with ports of its own; the devices are here,
and in one test the first of them is a service within the walls of its unit.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from umbel.clients.status_file import read_agent
from umbel.clients.unit_file import Unit
from umbel.tests.test_install import MANAGER, Manager
from umbel.tests.test_namespaces import Namespace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).resolve().parents[1]
NAMES = ("press-17", "press-18", "press-19")
FRONT, GATEWAY = 8443, 8444
POLICY = "[secure]\nmin_members = 3\nmin_survivors = 3\n"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        os.geteuid() != 0 or shutil.which("ip") is None or shutil.which("ss") is None,
        reason="network namespaces need root, ip and ss",
    ),
]


class Host:
    """The server's host: a namespace, and what its one command has printed."""

    def __init__(self, home: Path) -> None:
        self._wire = Namespace()
        self.address = f"10.213.77.{self._wire.hops}"
        self.home, self._log = home, home / "server.out"
        self._environment = os.environ | {"UMBEL_HOME": str(home / "umbel")}
        self._process: subprocess.Popen[bytes] | None = None

    def up(self, app: Path) -> None:
        """Bring the federation up: the one command."""
        words = ["server", "up", str(app), "--names", self.address, "--clients", str(len(NAMES))]
        words += [word for name in NAMES for word in ("--token", name)]
        words += ["-c", "min-members=3", "-c", "min-survivors=3", "-c", "rounds=3"]
        command = [*self._wire.command, sys.executable, "-m", "umbel", *words, "--format", "json"]
        with open(self._log, "wb") as log:
            self._process = subprocess.Popen(
                command, stdout=log, stderr=log, env=self._environment, start_new_session=True
            )

    def ready(self) -> None:
        """Bring it up, and wait until devices can come."""
        self.up(ROOT / "examples" / "digits")
        self.until(lambda: len(self.tokens()) == len(NAMES), 60, "the tokens")
        self.until(lambda: {FRONT, GATEWAY} <= self.listening(), 90, "front and gateway")
        self.until(lambda: "waits for its nodes" in self.lines(), 90, "the server")

    def said(self) -> list[dict[str, Any]]:
        """Return what it has printed."""
        lines = self._log.read_text().splitlines()
        return [json.loads(line) for line in lines if line.startswith("{")]

    def lines(self) -> str:
        """Return its lines for people."""
        return "\n".join(str(one.get("line", "")) for one in self.said())

    def tokens(self) -> dict[str, str]:
        """Return the tokens by the names of the nodes."""
        return {one["node"]: one["token"] for one in self.said() if "token" in one}

    def listening(self) -> set[int]:
        """Return the ports on which anything listens on that host."""
        found = subprocess.run(
            [*self._wire.command, "ss", "-Hltn"], capture_output=True, text=True, check=True
        )
        return {int(line.split()[3].rpartition(":")[2]) for line in found.stdout.splitlines()}

    def until(self, true: Callable[[], object], seconds: float, what: str) -> None:
        """Wait until something holds."""
        end = time.monotonic() + seconds
        while not true():
            ended = self._process is not None and self._process.poll() is not None
            assert not ended, self._log.read_text()
            assert time.monotonic() < end, f"{what}: {self._log.read_text()}"
            time.sleep(0.2)

    def close(self) -> None:
        """End the server, and its host."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(90)
            except subprocess.TimeoutExpired:
                self._process.send_signal(signal.SIGTERM)
                self._process.wait(30)
        self._wire.close()


class Device:
    """A device here, in a home of its own."""

    def __init__(self, home: Path, policy: Path) -> None:
        home.mkdir(mode=0o700)
        self.home, self._policy = home, policy
        self._environment = {
            name: text for name, text in os.environ.items() if not name.startswith("UMBEL")
        } | {"UMBEL_HOME": str(home)}
        self._agent: subprocess.Popen[bytes] | None = None

    @property
    def place(self) -> Path:
        """Its directory."""
        return self.home / "devices" / "fleet"

    def enrol(self, token: str) -> str:
        """Use a token: the first command."""
        done = subprocess.run(
            [sys.executable, "-m", "umbel", "client", "enrol", "--policy", str(self._policy)],
            input=token, capture_output=True, text=True, check=False, env=self._environment,
            timeout=120,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    def up(self) -> None:
        """Run its agent: the second command."""
        with open(self.home / "agent.out", "wb") as log:
            self._agent = subprocess.Popen(
                [sys.executable, "-m", "umbel", "client", "up"],
                stdout=log, stderr=log, env=self._environment, start_new_session=True,
            )  # fmt: skip

    def close(self) -> None:
        """End its agent."""
        if self._agent is not None:
            self._agent.terminate()
            self._agent.wait(30)


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    (tmp_path / "s").mkdir()
    found = Host(tmp_path / "s")
    yield found
    found.close()


@pytest.fixture
def devices(tmp_path: Path) -> Iterator[dict[str, Device]]:
    """Three devices that agree to rounds of three; none is enrolled."""
    policy = tmp_path / "policy.toml"
    policy.write_text(POLICY)
    with ExitStack() as stack:
        found = {name: Device(tmp_path / name, policy) for name in NAMES}
        for device in found.values():
            stack.callback(device.close)
        yield found


def test_one_command_there_and_two_here_and_only_two_doors_are_open(
    host: Host, devices: dict[str, Device]
) -> None:
    host.ready()
    for name, device in devices.items():
        assert f"this device is {name}" in device.enrol(host.tokens()[name])
        device.up()
    _only_two_doors(host, devices[NAMES[0]].place / "ca.pem")
    host.until(lambda: "is over" in host.lines(), 180, "the run")
    assert "round 3/3  3 of 3 clients" in host.lines()
    for device in devices.values():
        found = read_agent(device.place)
        assert found is not None
        assert (found.state, found.restarts) == ("up", 0)


# What a manager in namespaces of its own cannot build, or would hide these tests' files.
_ELSEWHERE = (
    *("User=", "After=", "Wants=", "PrivateTmp=", "ProtectHome="),
    *("ProtectKernelLogs=", "ProtectKernelTunables="),
)


@pytest.mark.skipif(
    not MANAGER.exists() or shutil.which("nsenter") is None,
    reason="a manager of one's own needs systemd and namespaces",
)
def test_a_device_within_the_walls_of_its_service_trains(
    host: Host, devices: dict[str, Device], tmp_path: Path
) -> None:
    """Without a capability, with the unit's system calls and the policy's own bounds inside."""
    host.ready()
    bounded = f"{POLICY}[limits]\nmemory = 4000000000\nthreads = 1\ndata_roots = ['/usr/share']\n"
    (tmp_path / "policy.toml").write_text(bounded)
    for name, device in devices.items():
        device.enrol(host.tokens()[name])
    first, *others = devices.values()
    for device in others:
        device.up()
    unit = Unit(
        federation="fleet", directory=first.place, home=first.home, python=sys.executable,
        account="umbel", memory="2G", homes=False,
    )  # fmt: skip
    lines = [line for line in unit.text().splitlines() if not line.startswith(_ELSEWHERE)]
    folder = tmp_path / "config" / "systemd" / "user"
    folder.mkdir(parents=True)
    (folder / unit.name).write_text("\n".join(lines))
    manager = Manager(tmp_path)
    try:
        manager.run("systemctl", "--user", "daemon-reload")
        done = manager.run("systemctl", "--user", "start", unit.name)
        assert done.returncode == 0, done.stderr
        process = manager.shown(unit.name)["MainPID"]
        status = Path(f"/proc/{process}/status").read_text()
        assert "CapBnd:\t0000000000000000" in status
        assert "Seccomp:\t2" in status
        host.until(lambda: "is over" in host.lines(), 180, "the run")
        assert "round 3/3  3 of 3 clients" in host.lines()
        assert manager.shown(unit.name)["NRestarts"] == "0"
    finally:
        manager.close()


def _only_two_doors(host: Host, ca: Path) -> None:
    """Of all ports of the other host only the front's and the gateway's answer from here."""
    known = host.listening()
    assert len(known) > 2, "the SuperLink listens somewhere"
    open_ = set()
    for port in known:
        try:
            socket.create_connection((host.address, port), 5.0).close()
            open_.add(port)
        except OSError:
            pass
    assert open_ == {FRONT, GATEWAY}
    trust = ssl.create_default_context(cafile=str(ca))
    with httpx.Client(verify=trust, base_url=f"https://{host.address}:{FRONT}") as client:
        assert client.get("/healthz").status_code == 200
        for path in ("/v1/control/list-runs", "/v1/runtime/pull-tasks", "/docs", "/openapi.json"):
            assert client.get(path).status_code == 404
            assert client.post(path, content=b"").status_code == 404
