"""One real federation of two SuperNodes, shared by this file: TLS, node keys, deaths, the end."""

from __future__ import annotations

import json
import os
import subprocess
import time
import tomllib
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import psutil  # type: ignore[import-untyped]
import pytest

from umbel.clients.flower_node import deactivate
from umbel.host import process_tree
from umbel.host.programs import command_path
from umbel.protocol.errors import SettingsError, StateError
from umbel.server.flower_control import ONLINE, Control, answers, build_bundle
from umbel.simulation.dev_federation import Client, prepare
from umbel.simulation.flower_up import FlowerUp, Wanted
from umbel.tests.flower_hello import hello

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

# flwr's own, when it bundles an app.
pytestmark = pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short path: a Unix socket's may have 107 bytes."""
    return tmp_path_factory.mktemp("h")


@pytest.fixture(scope="module")
def up(home: Path) -> Iterator[FlowerUp]:
    """The running federation."""
    wanted = Wanted(app=hello(home), edge=2, gpu=0, home=home, secure=False, core=False)
    with FlowerUp(wanted) as federation:
        federation.start_servers()
        federation.start_nodes()
        federation.wait_online()
        yield federation


def _until(up: FlowerUp, holds: Callable[[], Any], seconds: float = 120.0) -> Any:
    end = time.monotonic() + seconds
    while not (found := holds()):
        assert time.monotonic() < end, "waited in vain"
        up.watch()
        time.sleep(0.05)
    return found


def _mark(up: FlowerUp) -> str:
    state = json.loads((up.wanted.folder / "up.json").read_text())
    return str(state["mark"])


def _trains(up: FlowerUp) -> list[Path]:
    """Return where ClientApps are at work."""
    nodes = up.federation.folder / "nodes"
    return list(nodes.glob("*/tasks/*/apps"))


def test_both_are_online_under_their_names(up: FlowerUp) -> None:
    found = up.control.nodes()
    assert {name: state.status for name, state in found.items()} == {
        "edge-0": ONLINE,
        "edge-1": ONLINE,
    }


def test_a_wrong_setting_is_one_line(up: FlowerUp) -> None:
    with pytest.raises(SettingsError, match="SuperLink accepts"):
        up.submit({"colour": "red"})


def test_another_ca_is_not_trusted(up: FlowerUp, tmp_path: Path) -> None:
    stranger = prepare(tmp_path / "other", "dev", [Client(name="x")], datetime.now(UTC))
    with Control(up.address, stranger.ca) as control, pytest.raises(StateError, match="SuperLink"):
        control.nodes()


def test_nodes_are_authenticated(up: FlowerUp, tmp_path: Path) -> None:
    stranger = prepare(tmp_path / "other", "dev", [Client(name="x")], datetime.now(UTC))
    node_id = up.control.nodes()["edge-1"].node_id
    for key in (stranger.device("x"), up.federation.device("edge-0")):
        assert not deactivate(up.address, up.federation.ca, key / "flower", node_id)
    assert up.offline() == []


def test_a_killed_supernode_is_back(up: FlowerUp) -> None:
    before, pid = up.control.nodes()["edge-1"], up.supervisor.pid("edge-1")
    os.kill(pid, 9)
    _until(up, lambda: up.supervisor.pid("edge-1") != pid)
    _until(up, lambda: not up.offline())
    assert up.control.nodes()["edge-1"].node_id == before.node_id


def test_a_killed_clientapp_takes_its_supernode_along(up: FlowerUp) -> None:
    run = up.submit({"sleep": 60})
    pid = up.supervisor.pid("edge-0")
    tasks = up.federation.device("edge-0") / "tasks"
    _until(up, lambda: list(tasks.glob("*/apps")))
    time.sleep(1.5)  # a directory that is just being made belongs to a task that starts

    def launched() -> list[Any]:
        return [
            process
            for name, process in process_tree.marked(_mark(up))
            if name == "edge-0" and "flower_launcher" in " ".join(process.cmdline())
        ]

    (app,) = _until(up, launched)
    app.kill()
    _until(up, lambda: up.supervisor.pid("edge-0") != pid)
    _until(up, lambda: not up.offline())
    # Flower's own loop learns of it at its next look, and not after a minute.
    state = _until(up, lambda: (s := up.control.run(run)).over and s, 50)
    assert state.outcome == "completed"


def test_a_plain_app_from_a_plain_shell_outlives_its_superlink_and_its_front(up: FlowerUp) -> None:
    env = os.environ | {"FLWR_HOME": str(up.client_home), "FLWR_TELEMETRY_ENABLED": "0"}
    config = ["--run-config", "num-server-rounds=2", "--format", "json"]
    done = subprocess.run(
        [command_path("flwr"), "run", ".", "umbel", *config],
        cwd=up.wanted.app, env=env, capture_output=True, text=True, check=False,
    )  # fmt: skip
    answer = json.loads(done.stdout)
    assert answer["success"], done.stdout
    assert answer["fab-hash"] == up.digest[:8]  # the bundle that every device pins
    run = int(answer["run-id"])
    _until(up, lambda: _trains(up))  # before that the ServerApp may not have its task whole
    pid, address = up.supervisor.pid("superlink"), up.address
    os.kill(pid, 9)
    with pytest.raises(StateError, match=f"SuperLink {address}: expected an answer"):
        up.control.run(run)
    _until(up, lambda: up.supervisor.pid("superlink") != pid)  # on the same port and database
    _until(up, up.control.healthy)
    pid = up.supervisor.pid("front")
    os.kill(pid, 9)
    assert not answers(up.front, up.federation.ca, "/healthz")
    _until(up, lambda: up.supervisor.pid("front") != pid)
    _until(up, lambda: answers(up.front, up.federation.ca, "/readyz"))
    # An answer that was on its way to the dead ones may be lost: Flower waits two minutes for it.
    state = _until(up, lambda: (s := up.control.run(run)).over and s, 240)
    assert state.outcome == "completed"
    assert "final 2.0" in "".join(up.control.output(run))


def test_nodes_reach_the_fleet_api_through_the_front_and_nothing_else(up: FlowerUp) -> None:
    for client in up.wanted.clients:
        assert up.front in up.supervisor.program(client.name).command
        about = tomllib.loads((up.federation.device(client.name) / "device.toml").read_text())
        assert about["superlink"] == up.front
    ca = up.federation.ca
    assert answers(up.front, ca, "/readyz")
    with Control(up.front, ca) as control, pytest.raises(SettingsError, match="not found"):
        control.nodes()
    for page in ("/docs", "/health", "/openapi.json"):
        assert answers(up.address, ca, page)
        assert not answers(up.front, ca, page)


def test_every_program_is_private_to_its_node(up: FlowerUp) -> None:
    homes = set()
    for name in ("edge-0", "edge-1", "superlink", "superexec", "front"):
        process = psutil.Process(up.supervisor.pid(name))
        env = process.environ()
        assert os.getsid(process.pid) == process.pid
        if name != "front":  # the one that is no program of Flower's
            homes.add(env["FLWR_HOME"])
            assert env["FLWR_TELEMETRY_ENABLED"] == "0"
        listening = [c.laddr.ip for c in process.net_connections() if c.status == "LISTEN"]
        assert set(listening) <= {"127.0.0.1"}
    assert len(homes) == 4


def test_a_second_up_is_refused(up: FlowerUp) -> None:
    with pytest.raises(StateError, match="umbel down"):
        FlowerUp(up.wanted)


def test_nothing_is_left_at_the_end(up: FlowerUp, monkeypatch: pytest.MonkeyPatch) -> None:
    mark = _mark(up)
    assert (
        len(process_tree.marked(mark)) >= 7
    )  # two nodes, each with its SuperExec, and three servers
    monkeypatch.setattr(process_tree, "GRACE_S", 60.0)  # which a slow machine may need
    up.close()
    assert process_tree.marked(mark) == []
    log = up.supervisor.log("edge-0").read_text()
    assert "terminated gracefully" in log  # asked, not killed: it deactivated itself
    assert not (up.wanted.folder / "up.json").exists()


def test_what_is_no_app_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="Flower app"):
        build_bundle(tmp_path)
