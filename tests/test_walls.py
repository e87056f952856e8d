"""A device that is a service trains: within the walls of its unit, and the policy's bounds inside.

The devices' host is a namespace (test_joining.py), and the manager that builds the walls is a real
one in namespaces of its own (test_install.py).
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from contextlib import closing
from pathlib import Path

import pytest

from umbel.clients.unit_file import Unit
from umbel.tests.test_install import MANAGER, Manager
from umbel.tests.test_joining import NODES, POLICY, UP, Hosts, Place, hosts, places, until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        os.geteuid() != 0 or not all(map(shutil.which, ("ip", "nsenter"))) or not MANAGER.exists(),
        reason="a manager of one's own needs root, systemd and namespaces",
    ),
]
__all__ = ["hosts", "places"]  # fixtures
BOUNDS = "[limits]\nmemory = 4000000000\nthreads = 1\ndata_roots = ['/usr/share']\n"
ELSEWHERE = (
    *("User=", "After=", "Wants=", "PrivateTmp=", "ProtectHome="),
    *("ProtectKernelLogs=", "ProtectKernelTunables="),
)
"""What a manager in namespaces cannot build, or would hide the files of this test."""


@pytest.fixture
def tmp_path(on_disk: Path) -> Path:
    """Not in memory, which walls leave to all."""
    return on_disk


def test_a_device_within_the_walls_of_its_service_trains(
    hosts: Hosts,
    places: tuple[Place, tuple[Place, ...]],
    tmp_path: Path,
) -> None:
    server, devices = places
    log = tmp_path / "server.log"
    server.start(log, "server", "up", *UP, "-c", "rounds=3")
    until(lambda: "waits for its nodes" in log.read_text(), "the server", log)
    tokens = dict(re.findall(r"token for (\S+): (\S+)", log.read_text()))
    (tmp_path / "policy.toml").write_text(POLICY + BOUNDS)
    for node, device in zip(NODES, devices, strict=True):
        device.home.mkdir()
        device.call("client", "enrol", tokens[node], "--policy", str(tmp_path / "policy.toml"))
    for device in devices[1:]:
        device.start(tmp_path / "agents.log", "client", "up")
    (place,) = devices[0].home.glob("devices/*")
    unit = Unit(
        federation=place.name, directory=place, home=devices[0].home, python=sys.executable,
        account="umbel", memory="2G", homes=False,
    )  # fmt: skip
    folder = tmp_path / "config" / "systemd" / "user"
    folder.mkdir(parents=True)
    lines = [line for line in unit.text().splitlines() if not line.startswith(ELSEWHERE)]
    (folder / unit.name).write_text("\n".join(lines))
    with closing(Manager(tmp_path, ("ip", "netns", "exec", hosts.device))) as manager:
        manager.run("systemctl", "--user", "daemon-reload")
        done = manager.run("systemctl", "--user", "start", unit.name)
        assert done.returncode == 0, done.stderr
        process = manager.shown(unit.name)["MainPID"]
        status = Path(f"/proc/{process}/status").read_text()
        assert "CapBnd:\t0000000000000000" in status
        assert "Seccomp:\t2" in status
        until(lambda: " is over" in log.read_text(), "the run", log, 180.0)
        assert "round 3/3  3 of 3 clients" in log.read_text()
        assert manager.shown(unit.name)["NRestarts"] == "0"
