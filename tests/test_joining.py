"""Two hosts, from nothing to devices that train: a server's namespace and the devices'.

    server ── 10.213.78.1 ══ veth ══ 10.213.78.2 ── three devices

One command on the server, two on each device. What the devices' host can reach of the server is
its front and its gateway, and of the front's port nothing but what devices need.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import psutil  # type: ignore[import-untyped]
import pytest

from umbel.host.process_tree import MARK

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        os.geteuid() != 0 or shutil.which("ip") is None,
        reason="network namespaces need root and ip",
    ),
]
DIGITS = Path(__file__).resolve().parents[1] / "examples" / "digits"
HERE, THERE = "10.213.78.1", "10.213.78.2"
NODES = ("press-1", "press-2", "press-3")
POLICY = "[secure]\nmin_members = 3\nmin_survivors = 3\n"
UP = [
    str(DIGITS), "--names", HERE, *(word for node in NODES for word in ("--token", node)),
    "--clients", "3", "-c", "min-members=3", "-c", "min-survivors=3",
]  # fmt: skip
ASKS = """
import socket, ssl, sys, urllib.error, urllib.request
blind = ssl._create_unverified_context()
for target in sys.argv[1:]:
    if target.isdigit():
        try:
            socket.create_connection(("10.213.78.1", int(target)), 5).close()
            print(target, "open")
        except OSError as error:
            print(target, type(error).__name__)
        continue
    try:
        answer = urllib.request.urlopen("https://10.213.78.1:8443" + target, b"", 5, context=blind)
        print(target, answer.status)
    except urllib.error.HTTPError as error:
        print(target, error.code)
"""


class Hosts:
    """Two namespaces and the wire between them."""

    def __init__(self) -> None:
        self.server, self.device = (f"{kind}{os.getpid()}" for kind in ("ums", "umd"))
        for name in (self.server, self.device):
            _ip("netns", "add", name)
            _ip("-n", name, "link", "set", "lo", "up")
        near, far = f"ua{os.getpid()}", f"ub{os.getpid()}"
        _ip("link", "add", near, "netns", self.server, "type", "veth", "peer", "name", far,
            "netns", self.device)  # fmt: skip
        for name, end, address in ((self.server, near, HERE), (self.device, far, THERE)):
            _ip("-n", name, "addr", "add", f"{address}/24", "dev", end)
            _ip("-n", name, "link", "set", end, "up")

    def close(self) -> None:
        """Remove both; the wire goes with them."""
        for name in (self.server, self.device):
            _ip("netns", "del", name)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


class Place:
    """Commands in one namespace, with a home of their own."""

    def __init__(self, namespace: str, home: Path) -> None:
        self.namespace, self.home = namespace, home
        self._within = ["ip", "netns", "exec", namespace]
        self._started = ExitStack()

    def umbel(self, *words: str) -> list[str]:
        """Return what runs a command."""
        return [*self._within, sys.executable, "-m", "umbel", *words]

    @property
    def env(self) -> dict[str, str]:
        """The variables of a command: nothing of the test's own federation."""
        return os.environ | {"UMBEL_HOME": str(self.home)}

    def call(self, *words: str) -> str:
        """Run a command to its end and return what it prints."""
        done = subprocess.run(
            self.umbel(*words), env=self.env, capture_output=True, text=True, check=False,
            timeout=60,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    def start(self, log: Path, *words: str) -> subprocess.Popen[bytes]:
        """Start a command; what it says is added to a log."""
        with log.open("ab") as out:
            child = subprocess.Popen(self.umbel(*words), env=self.env, stdout=out, stderr=out)
        self._started.callback(_end, child)
        return child

    def ask(self, *targets: str) -> dict[str, str]:
        """Return what the server's ports and pages answer to this host."""
        command = [*self._within, sys.executable, "-c", ASKS, *targets]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
        return dict(line.split() for line in done.stdout.splitlines())

    def close(self) -> None:
        """End what was started."""
        self._started.close()


def _end(child: subprocess.Popen[bytes]) -> None:
    child.terminate()
    try:
        child.wait(30)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


def until(holds: Callable[[], object], what: str, log: Path, seconds: float = 90.0) -> None:
    """Wait for something."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, f"waited in vain for {what}:\n{log.read_text()}"
        time.sleep(0.1)


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    found = Hosts()
    yield found
    found.close()


@pytest.fixture
def places(hosts: Hosts, tmp_path: Path) -> Iterator[tuple[Place, tuple[Place, ...]]]:
    """The server's place and the devices', each device with a disk of its own."""
    server = Place(hosts.server, tmp_path / "s")
    devices = tuple(Place(hosts.device, tmp_path / node) for node in NODES)
    yield server, devices
    for place in (*devices, server):
        place.close()


def listening(folder: Path) -> set[int]:
    """Return the ports of the server's namespace on which a program of the federation listens."""
    mark = json.loads((folder / "up.json").read_text())["mark"]
    found = set()
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK, "").startswith(f"{mark}/"):
                text = Path(f"/proc/{process.pid}/net/tcp").read_text()
                text += Path(f"/proc/{process.pid}/net/tcp6").read_text()
                found |= {int(p, 16) for p in re.findall(r":([0-9A-F]{4}) [0-9A-F:]+ 0A", text)}
        except (psutil.Error, OSError):
            continue
    return found


def joined(devices: tuple[Place, ...], log: Path) -> None:
    """Let every device join with the token that the server has printed, and take part."""
    until(lambda: "waits for its nodes" in log.read_text(), "the server", log)
    tokens = dict(re.findall(r"token for (\S+): (\S+)", log.read_text()))
    assert set(tokens) == set(NODES)
    for node, device in zip(NODES, devices, strict=True):
        device.home.mkdir()
        (device.home / "token").write_text(tokens[node])
        (device.home / "policy.toml").write_text(POLICY)
        token, policy = str(device.home / "token"), str(device.home / "policy.toml")
        device.call("client", "enrol", "--token-file", token, "--policy", policy)
        device.start(log.with_name(f"{node}.log"), "client", "up")


def refused(place: Place, *words: str) -> str:
    """Return the last line of a command that is refused."""
    done = subprocess.run(
        place.umbel(*words), env=place.env, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 2, done
    return done.stderr.splitlines()[-1]


def test_one_command_on_the_server_and_two_on_a_device(
    places: tuple[Place, tuple[Place, ...]], tmp_path: Path
) -> None:
    (server, devices), log = places, tmp_path / "server.log"
    folder = server.home / "federations" / "fleet"
    running = server.start(log, "server", "up", *UP, "-c", "rounds=3")
    joined(devices, log)

    # Only front and gateway answer, and of the front only what devices need.
    ports = listening(folder)
    assert {8000, 8443, 8444} <= ports
    asked = devices[0].ask(*map(str, sorted(ports)))
    assert {port for port, found in asked.items() if found == "open"} == {"8443", "8444"}
    pages = ("/v1/control", "/v1/control/list-runs", "/v1/runtime", "/docs", "/openapi.json")
    assert devices[0].ask(*pages) == dict.fromkeys(pages, "404")

    until(lambda: "is over" in log.read_text(), "the run", log)
    text = log.read_text()
    assert "secure aggregation on" in text
    rounds = re.findall(r"^round (\d)/3  3 of 3 clients", text, re.MULTILINE)
    assert rounds == ["1", "2", "3"]

    # A token that was used is refused in one line, whoever has it; so is a second server.
    token = str(devices[0].home / "token")
    thief = Place(devices[0].namespace, tmp_path / "thief")
    assert "token used" in refused(thief, "client", "enrol", "--token-file", token)
    assert "no other `umbel up` or `umbel server up`" in refused(server, "server", "up")
    running.send_signal(signal.SIGTERM)
    assert running.wait(90) == 0
    assert not (folder / "up.json").exists()


def test_a_killed_server_finds_everything_again(
    places: tuple[Place, tuple[Place, ...]], tmp_path: Path
) -> None:
    (server, devices), log = places, tmp_path / "server.log"
    command = ("server", "up", *UP, "-c", "rounds=60")
    running = server.start(log, *command)
    joined(devices, log)
    until(lambda: "round  3/60" in log.read_text(), "three rounds", log)
    (run,) = re.findall(r"^(digits-\S+): 3 clients", log.read_text(), re.MULTILINE)
    running.kill()
    running.wait()
    before = log.read_text()

    server.start(log, *command)
    until(lambda: f"{run} is over" in log.read_text(), "the run's end", log, 240.0)
    text = log.read_text().removeprefix(before)
    assert "ended what an earlier server left: core, front, issuer" in text
    assert f"submitted the app digits: {run} goes on" in text
    assert [f"{node} has joined already: no token" in text for node in NODES] == [True] * 3
    done = [int(n) for n in re.findall(r"^round +(\d+)/60  3 of 3 clients", text, re.MULTILINE)]
    assert done == list(range(done[0], 61))
    assert done[0] > 3
