"""The service of a device: its unit as systemd reads it, and a real user manager that runs it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from umbel.cli import main
from umbel.clients import install as service
from umbel.clients.unit_file import Unit
from umbel.protocol.errors import SettingsError
from umbel.tests.federations import made

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

ANALYZE = shutil.which("systemd-analyze")
MANAGER = Path("/usr/lib/systemd/systemd")
needs_analyze = pytest.mark.skipif(ANALYZE is None, reason="systemd-analyze is not installed")
WORST = 1.5
"""Exposure level of a unit of the system, of 10, that `systemd-analyze security` calls OK."""


def unit(**changed: Any) -> Unit:
    values: dict[str, Any] = {
        "federation": "wards",
        "directory": Path("/var/lib/umbel/devices/wards"),
        "home": Path("/var/lib/umbel"),
        "python": sys.executable,
        "account": "daemon",
    }
    return Unit(**(values | changed))


def analyzed(folder: Path, unit: Unit, *words: str) -> str:
    """Return what systemd-analyze says of a unit; it is to end well."""
    file = folder / unit.name
    file.write_text(unit.text())
    environment = os.environ | {"XDG_RUNTIME_DIR": str(folder)}
    done = subprocess.run(
        ["systemd-analyze", *words, str(file)],
        capture_output=True, text=True, check=False, env=environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@needs_analyze
@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"gpu": True, "memory": "2G"},
        {"homes": False},
        {"account": ""},
        {"directory": Path('/var/lib/um bel/100%h $HOME/a"b\\c'), "home": Path("/a b/%u$X")},
    ],
)
def test_systemd_understands_every_line(tmp_path: Path, changed: dict[str, Any]) -> None:
    one = unit(**changed)
    words = [*([] if one.account else ["--user"]), "verify", "--man=no"]
    assert analyzed(tmp_path, one, *words) == ""


@needs_analyze
def test_a_unit_of_the_system_is_shut_in(tmp_path: Path) -> None:
    said = analyzed(tmp_path, unit(), "--no-pager", "security", "--offline=true")
    level = float(said.rpartition("service: ")[2].split()[0])
    assert level <= WORST


def test_what_keeps_it_alive_and_bounded_is_in_both_units() -> None:
    for one in (unit(), unit(account="")):
        lines = one.text().splitlines()
        for line in ("Type=notify", "Restart=always", "StartLimitIntervalSec=0", "MemoryMax=80%"):
            assert line in lines
        assert any(line.startswith("WatchdogSec=") for line in lines)
    assert "User=daemon" in unit().text()
    assert "User=" not in unit(account="").text()
    assert "PrivateDevices=yes" in unit().text()
    assert "PrivateDevices" not in unit(gpu=True).text()
    assert unit().name == "umbel-wards.service"
    assert unit(directory=Path("/srv/two of %i")).name == "umbel-wards-two_of__i.service"
    for bad in ("lots", "0", "2 G", "101%", "1G\nUser=root"):
        with pytest.raises(SettingsError, match="--memory"):
            unit(memory=bad)
    with pytest.raises(SettingsError, match="printable"):
        unit(directory=Path("/a\nUser=root"))


def test_root_is_no_account_for_an_apps_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    device = made(tmp_path / "federation", 1).device("edge-0")
    monkeypatch.setenv("UMBEL_DEVICE", str(device))
    assert main(["client", "install", "--user", "--print"]) == 0
    assert f'"{device}"' in capsys.readouterr().out
    if os.geteuid() == 0:
        assert main(["client", "install", "--print"]) == 2
        assert "owner other than root" in capsys.readouterr().err
    monkeypatch.setattr(service, "BOOTED", tmp_path / "none")
    assert main(["client", "install", "--user"]) == 2
    assert "umbel client up" in capsys.readouterr().err
    assert main(["client", "uninstall", "--user"]) == 2
    assert "umbel client install" in capsys.readouterr().err


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a directory to another account")
def test_an_account_that_cannot_reach_the_device_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "executable", "/usr/bin/env")  # where every account can reach
    monkeypatch.setattr(service, "__file__", "/usr/lib/install.py")
    for folder in (tmp_path, tmp_path.parent, tmp_path.parent.parent):
        folder.chmod(0o755)
    shut = tmp_path / "closed"
    device = made(shut / "federation", 1).device("edge-0")
    for folder in (device.parent, device.parent.parent, shut):
        folder.chmod(0o755)
    shutil.chown(device, "daemon")
    for file in device.iterdir():
        shutil.chown(file, "daemon")
    monkeypatch.setenv("UMBEL_DEVICE", str(device))
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy:3128")
    monkeypatch.setenv("https_proxy", "http://me:secret@proxy:3128")
    assert main(["client", "install", "--print"]) == 0
    text = capsys.readouterr().out
    assert "User=daemon" in text.splitlines()
    assert 'Environment="HTTPS_PROXY=http://proxy:3128"' in text.splitlines()
    assert "secret" not in text
    shut.chmod(0o700)
    assert main(["client", "install", "--print"]) == 2
    assert f"{shut} shut" in capsys.readouterr().err


# ---- a manager that runs -------------------------------------------------------------------------

_MANAGER = """
mount -t tmpfs none /run && mkdir -p /run/systemd/system /run/manager && chmod 700 /run/manager
mount -t tmpfs none /sys/fs/cgroup && mount -t cgroup2 none /sys/fs/cgroup
mkdir -p /sys/fs/cgroup/$1 && echo $$ > /sys/fs/cgroup/$1/cgroup.procs
exec /usr/lib/systemd/systemd --user
"""


class Manager:
    """systemd as a user's own manager, in namespaces of its own: nothing of this machine is its."""

    def __init__(self, home: Path, within: Sequence[str] = ()) -> None:
        self.home, self._group = home, f"umbel-{os.getpid()}"
        self._environment = os.environ | {
            "HOME": str(home), "XDG_CONFIG_HOME": str(home / "config"),
            "XDG_RUNTIME_DIR": "/run/manager", "UMBEL_HOME": str(home / "umbel"),
        }  # fmt: skip
        command = [
            *within,
            "unshare",
            "--mount",
            "--cgroup",
            "bash",
            "-c",
            _MANAGER,
            "-",
            self._group,
        ]
        with open(home / "manager.log", "wb") as log:
            self._process = subprocess.Popen(
                command, stdout=log, stderr=log, env=self._environment, start_new_session=True
            )
        self.until(lambda: "running" in self.run("systemctl", "--user", "status").stdout)

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a command of the manager's user."""
        inside = ["nsenter", "--target", str(self._process.pid), "--mount", "--", *command]
        return subprocess.run(
            inside, capture_output=True, text=True, check=False, env=self._environment, timeout=120
        )

    def shown(self, name: str) -> dict[str, str]:
        """Return what the manager knows of a unit."""
        said = self.run("systemctl", "--user", "show", name).stdout
        return dict(line.split("=", 1) for line in said.splitlines() if "=" in line)

    def until(self, true: Callable[[], object], seconds: float = 30.0) -> None:
        """Wait until something holds."""
        end = time.monotonic() + seconds
        while not true():
            assert time.monotonic() < end, (self.home / "manager.log").read_text()
            time.sleep(0.1)

    def close(self) -> None:
        """End it and all that it started."""
        self.run("systemctl", "--user", "exit")
        try:
            self._process.wait(40)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[Manager]:
    with ExitStack() as stack:
        found = Manager(tmp_path)
        stack.callback(found.close)
        yield found


@pytest.mark.slow
@pytest.mark.skipif(
    os.geteuid() != 0 or not MANAGER.exists() or shutil.which("nsenter") is None,
    reason="a manager of one's own needs root, systemd and namespaces",
)
def test_a_users_manager_starts_a_killed_or_silent_agent_again(
    manager: Manager, tmp_path: Path
) -> None:
    device = made(tmp_path / "federation", 1).device("edge-0")
    umbel = [sys.executable, "-m", "umbel", "client"]
    done = manager.run(*umbel, "install", "--user", "--memory", "1G", "--device", str(device))
    assert done.returncode == 0, done.stderr
    name = "umbel-tested-edge-0.service"
    first = manager.shown(name)
    assert (first["ActiveState"], first["Type"], first["NRestarts"]) == ("active", "notify", "0")

    def program() -> int:
        return int(json.loads((device / "agent.json").read_text())["program"])

    manager.until(program)
    manager.until(lambda: manager.shown(name)["StatusText"].startswith("up"))
    os.kill(int(first["MainPID"]), signal.SIGKILL)
    manager.until(
        lambda: (now := manager.shown(name))["NRestarts"] == "1" and now["ActiveState"] == "active",
        seconds=5.0,
    )
    second = manager.shown(name)["MainPID"]
    assert second not in {"0", first["MainPID"]}

    drop = tmp_path / "config" / "systemd" / "user" / f"{name}.d"
    drop.mkdir()
    (drop / "quick.conf").write_text("[Service]\nWatchdogSec=2\n")
    manager.run("systemctl", "--user", "daemon-reload")
    manager.run("systemctl", "--user", "restart", name)
    third = int(manager.shown(name)["MainPID"])
    time.sleep(4.0)  # the agent's words keep it alive
    assert manager.shown(name)["MainPID"] == str(third)
    os.kill(third, signal.SIGSTOP)
    manager.until(lambda: manager.shown(name)["MainPID"] not in {"0", str(third)}, seconds=15.0)

    done = manager.run(*umbel, "uninstall", "--user", "--device", str(device))
    assert done.returncode == 0, done.stderr
    assert manager.shown(name)["LoadState"] == "not-found"
    assert json.loads((device / "agent.json").read_text())["state"] == "ending"
