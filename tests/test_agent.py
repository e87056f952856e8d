"""The agent of a device: a real SuperNode, a server that is away, an owner who says something."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING

import psutil  # type: ignore[import-untyped]
import pytest

from umbel.clients.pause import LEFT, Pause, remove_pause, write_pause
from umbel.clients.sd_notify import Notifier
from umbel.clients.status_file import AgentStatus, read_agent
from umbel.tests.federations import made

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

HEAVY = ("numpy", "cryptography", "flwr", "grpc", "httpx", "torch", "typer")
WAIT_S = 30.0


class Running:
    """`umbel client up` of a device whose server is away, and what it says to systemd."""

    def __init__(self, device: Path, home: Path) -> None:
        self.device = device
        self.log = home / "agent.out"
        self._line = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._line.bind(str(home / "notify"))
        self._line.setblocking(False)
        self.said: list[str] = []
        self._environment = os.environ | {
            "UMBEL_HOME": str(home / "umbel"),
            "NOTIFY_SOCKET": str(home / "notify"),
            "WATCHDOG_USEC": "2000000",
        }
        self.start()

    def start(self) -> None:
        """Start it, as a shell would."""
        command = [sys.executable, "-m", "umbel", "client", "up", "--device", str(self.device)]
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                command, stdout=log, stderr=log, env=self._environment, start_new_session=True
            )

    def status(self) -> AgentStatus:
        """Return what it says of itself."""
        found = read_agent(self.device)
        return found or AgentStatus(state="starting")

    def until(self, true: Callable[[], object]) -> None:
        """Wait until something holds."""
        end = time.monotonic() + WAIT_S
        while not true():
            self.heard()
            assert time.monotonic() < end, f"{self.status()}\n{self.log.read_text()}"
            time.sleep(0.05)

    def heard(self) -> list[str]:
        """Return every datagram so far."""
        while True:
            try:
                self.said.append(self._line.recv(4096).decode())
            except BlockingIOError:
                return self.said

    def node(self) -> psutil.Process | None:
        """Return its SuperNode, if one runs."""
        number = self.status().program
        return psutil.Process(number) if number and psutil.pid_exists(number) else None

    def slim(self) -> bool:
        """Tell whether the SuperNode is past its start, and has its SuperExec."""
        node = self.node()
        return node is not None and any("flower-superexec" in line for line in lines_of(node))

    def close(self) -> None:
        """End it, and whatever it left."""
        if self.process.poll() is None:
            self.process.terminate()
            self.process.wait(20)
        self._line.close()
        number = self.status().program
        if number and psutil.pid_exists(number):
            psutil.Process(number).kill()


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Running]:
    device = made(tmp_path / "federation", 1).device("edge-0")
    found = Running(device, tmp_path)
    yield found
    found.close()


@pytest.mark.slow
def test_an_agent_keeps_a_supernode_and_obeys_its_owner(agent: Running) -> None:
    """In one life: killed SuperNodes, a pause, a second agent, a kill of its own, the end."""
    agent.until(agent.slim)
    first = agent.node()
    assert first is not None
    heavy = [line for line in _maps(agent.process.pid) if any(f"/{h}/" in line for h in HEAVY)]
    assert heavy == []
    assert not any("/sqlalchemy/" in line for line in _maps(first.pid))
    family = first.children(recursive=True)
    first.kill()
    agent.until(lambda: agent.status().restarts == 1 and agent.node())
    assert agent.status().program != first.pid
    assert not any(_runs(child) for child in family)

    write_pause(agent.device, Pause(since=time.time()))
    agent.until(lambda: agent.status().state == "paused" and not agent.status().program)
    assert not any("flower_slim" in line for line in lines_of(psutil.Process(agent.process.pid)))
    second = subprocess.run(
        agent.process.args, capture_output=True, text=True, timeout=30, check=False
    )
    assert second.returncode == 2
    assert "one that runs" in second.stderr
    remove_pause(agent.device)
    agent.until(agent.slim)

    left = agent.node()
    agent.process.kill()
    agent.process.wait()
    assert left is not None
    assert _runs(left)
    agent.start()
    agent.until(lambda: agent.node() and agent.status().pid == agent.process.pid)
    assert not _runs(left)
    agent.until(agent.slim)

    agent.process.terminate()
    agent.until(lambda: agent.process.poll() is not None)
    assert agent.process.returncode == 0
    assert agent.status().state == "ending"
    assert _nodes_of(agent.device) == []
    said = agent.heard()
    assert {"READY=1", "WATCHDOG=1", "STOPPING=1"} <= set(said)
    assert any(line.startswith("STATUS=paused") for line in said)
    log = agent.log.read_text()
    assert "killed by signal 9" in log
    assert "an agent before this one left running" in log


@pytest.mark.slow
def test_a_device_rests_outside_of_its_policys_hours(agent: Running) -> None:
    agent.until(lambda: agent.status().program)
    policy = agent.device / "policy.toml"
    before = policy.read_text()
    policy.write_text(before + "hours = []\n")  # [limits] is the last table
    agent.until(lambda: agent.status().state == "resting" and not _nodes_of(agent.device))
    policy.write_text(before)
    agent.until(lambda: agent.status().program)


def test_a_device_that_left_ends_its_agent(agent: Running) -> None:
    agent.until(lambda: agent.status().program)
    (agent.device / LEFT).write_text("")
    assert agent.process.wait(20) == 0
    assert "left its federation" in agent.log.read_text()


def test_ctrl_c_ends_it_and_a_damaged_device_is_one_line(agent: Running) -> None:
    agent.until(lambda: agent.status().program)
    agent.process.send_signal(signal.SIGINT)
    assert agent.process.wait(20) == 130
    (agent.device / "device.toml").write_text("no TOML")
    done = subprocess.run(
        agent.process.args, capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1


def _maps(pid: int) -> list[str]:
    with open(f"/proc/{pid}/maps") as file:
        return file.read().splitlines()


def _runs(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def lines_of(process: psutil.Process) -> list[str]:
    """Return the command lines of everything that a process has started."""
    found = []
    with suppress(psutil.Error):
        for child in process.children(recursive=True):
            with suppress(psutil.Error):
                found.append(" ".join(child.cmdline()))
    return found


def _nodes_of(device: Path) -> list[str]:
    """Return the command lines of this machine that name the device."""
    lines = [" ".join(p.info["cmdline"] or []) for p in psutil.process_iter(["cmdline"])]
    return [line for line in lines if "flower" in line and str(device) in line]


def test_what_is_said_to_systemd_is_said_by_this_process_alone(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as line:
        line.bind(str(tmp_path / "s"))
        environment = {
            "NOTIFY_SOCKET": str(tmp_path / "s"),
            "WATCHDOG_USEC": "30000000",
            "WATCHDOG_PID": str(os.getpid()),
            "PATH": "/bin",
        }
        notifier = Notifier(environment)
        assert environment == {"PATH": "/bin"}
        assert notifier.watchdog == 30.0
        notifier.ready()
        notifier.status("one\nline")
        assert line.recv(100) == b"READY=1"
        assert line.recv(100) == b"STATUS=one line"
    notifier.alive()  # whoever listened is gone: nothing happens
    other = {"NOTIFY_SOCKET": "@nobody", "WATCHDOG_USEC": "1", "WATCHDOG_PID": "1"}
    assert Notifier(other).watchdog == 0.0
    assert Notifier({}).watchdog == 0.0
