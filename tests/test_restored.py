"""A running server with three devices: looked at, backed up, lost, restored; its nodes come back.

Everything is real and on this machine: `umbel server up`, three enrolled devices with agents of
their own, which nobody touches while their server is lost and another takes its place.
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
from typing import TYPE_CHECKING, Any

import psutil  # type: ignore[import-untyped]
import pytest

from umbel.host.programs import free_port
from umbel.tests.test_attacks_support import contents

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
DIGITS = Path(__file__).resolve().parents[1] / "examples" / "digits"
NODES = ("press-1", "press-2", "press-3")
POLICY = "[secure]\nmin_members = 3\nmin_survivors = 3\n"
ROUNDS = 2000
"""More than are played: three a second."""


class Stage:
    """The server's home, and the devices'."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.server = folder, folder / "s"
        self.log = folder / "server.log"
        self.log.touch()
        self._children = ExitStack()

    def umbel(self, home: Path, *words: str, status: int = 0) -> str:
        """Run a command to its end and return what it prints."""
        done = subprocess.run(
            [sys.executable, "-m", "umbel", *words], env=self._env(home), capture_output=True,
            text=True, check=False, timeout=90,
        )  # fmt: skip
        assert done.returncode == status, done.stderr
        return done.stdout

    def start(self, home: Path, log: Path, *words: str) -> subprocess.Popen[bytes]:
        """Start a command; what it says is added to a log."""
        with log.open("ab") as out:
            child = subprocess.Popen(
                [sys.executable, "-m", "umbel", *words], env=self._env(home), stdout=out,
                stderr=out,
            )  # fmt: skip
        self._children.callback(_end, child)
        return child

    def up(self) -> subprocess.Popen[bytes]:
        """Start the server with the app."""
        tokens = [word for node in NODES for word in ("--token", node)]
        floors = ["-c", "min-members=3", "-c", "min-survivors=3", "-c", f"rounds={ROUNDS}"]
        return self.start(
            self.server, self.log, "server", "up", str(DIGITS), *tokens, "--clients", "3", *floors
        )

    def join(self) -> None:
        """Enrol every device and start its agent."""
        text = self.until(lambda text: "waits for its nodes" in text, "the server")
        for node, token in re.findall(r"token for (\S+): (\S+)", text):
            home = self.folder / node
            home.mkdir()
            (home / "token").write_text(token)
            (home / "policy.toml").write_text(POLICY)
            given = ("--token-file", str(home / "token"), "--policy", str(home / "policy.toml"))
            self.umbel(home, "client", "enrol", *given)
            self.start(home, self.folder / f"{node}.log", "client", "up")

    def status(self) -> Any:
        """Return what `umbel server status` says."""
        return json.loads(self.umbel(self.server, "server", "status", "--format", "json"))

    def until(self, holds: Callable[[str], object], what: str, seconds: float = 150.0) -> str:
        """Wait for something in the server's log, and return all of it."""
        end = time.monotonic() + seconds
        while not holds(text := self.log.read_text()):
            assert time.monotonic() < end, f"waited in vain for {what}:\n{text}"
            time.sleep(0.2)
        return text

    def lose(self) -> None:
        """Kill every program of the server, and remove its home."""
        for process in psutil.process_iter():
            try:
                if process.environ().get("UMBEL_HOME") == str(self.server):
                    process.kill()
            except (psutil.Error, OSError):
                continue
        time.sleep(1.0)
        shutil.rmtree(self.server)

    def close(self) -> None:
        """End what was started."""
        self._children.close()

    def _env(self, home: Path) -> dict[str, str]:
        return os.environ | {"UMBEL_HOME": str(home)}


def _end(child: subprocess.Popen[bytes]) -> None:
    child.send_signal(signal.SIGTERM)
    try:
        child.wait(60)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


@pytest.fixture
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """Short paths: a Unix socket's may have 107 bytes."""
    made = Stage(tmp_path_factory.mktemp("r"))
    yield made
    made.close()


def check_status(looked: Any) -> None:
    """Everything is up, and every node in a session."""
    assert {server["name"]: server["alive"] for server in looked["servers"]} == dict.fromkeys(
        ("issuer", "core", "superlink", "front", "superexec"), True
    )
    assert [(n["name"], n["state"], n["why"]) for n in looked["nodes"]] == [
        (name, "in session", "") for name in NODES
    ]
    (run,) = looked["runs"]
    assert (run["rounds"], run["sessions"], run["serverapp"]) == (ROUNDS, 3, True)
    assert run["round"] >= run["finished"] >= 3
    assert all(node["rounds"] >= 3 and node["bytes_up"] > 1000 for node in looked["nodes"])


def check_report(stage: Stage, folder: Path) -> None:
    """A line of the issuing CA's key, planted in a log, is in no part."""
    secret = (folder / "issuing.key").read_text().splitlines()[1]
    with (folder / "logs" / "core.log").open("a") as log:
        log.write(f"core: {secret}\n")
    stage.umbel(stage.server, "server", "support", str(stage.folder / "report.zip"))
    parts = contents(stage.folder / "report.zip")
    assert {"doctor.json", "status.json", "logs/core.log"} <= parts.keys()
    assert not [name for name, data in parts.items() if secret.encode() in data]


def test_a_lost_server_is_restored_and_its_nodes_come_back(stage: Stage) -> None:
    ports = [f"127.0.0.1:{free_port()}" for _ in range(3)]
    where = ("--gateway", ports[0], "--front", ports[1], "--superlink", ports[2])
    stage.umbel(stage.server, "server", "init", "--names", "127.0.0.1", *where)
    first = stage.up()
    stage.join()
    stage.until(lambda text: re.search(r"^round +4/", text, re.MULTILINE), "four rounds")

    # While it runs: the status, the report with a secret in a log, the backup.
    looked = stage.status()
    check_status(looked)
    check_report(stage, Path(looked["folder"]))
    (run,) = looked["runs"]
    backup = str(stage.folder / "b.umbel")
    stage.umbel(stage.server, "server", "backup", backup)

    stage.lose()
    first.wait()
    before = stage.log.read_text()
    said = stage.umbel(stage.server, "server", "restore", backup)
    assert "nodes: press-1, press-2, press-3" in said
    stage.up()

    def played(text: str) -> list[int]:
        later = text.removeprefix(before)
        line = rf"^round +(\d+)/{ROUNDS}  3 of 3 clients"
        return [int(n) for n in re.findall(line, later, re.MULTILINE)]

    text = stage.until(lambda text: len(played(text)) >= 5, "five rounds of the next server")
    assert f"{run['run']} goes on" in text.removeprefix(before)
    done = played(text)
    assert done == list(range(done[0], done[0] + len(done)))
    assert done[0] > 4
    again = stage.status()
    assert [node["id"] for node in again["nodes"]] == [node["id"] for node in looked["nodes"]]
    assert [node["state"] for node in again["nodes"]] == ["in session"] * 3
    assert all(node["rounds"] >= done[-1] for node in again["nodes"])
