"""A whole Flower federation on this machine: what `umbel up` starts, in which order, and how.

    core service ─┬─ all answer ─► nodes registered ─► SuperNodes ─► all online ─► run submitted
    SuperLink  ───┤                                  (an app of ours is submitted before the nodes:
    front, SuperExec                                  its ServerApp starts beside them)

TLS and node authentication are on, everything listens on the loopback interface, every port is
free when it is taken. SuperNodes dial the front, as on other machines they would have to. Nothing
sleeps for a fixed time: waiting looks at what is waited for, and at the programs
(flower_programs.py), so that one that ends is named at once.

A SuperNode that was killed is refused with its own key for a minute unless a signed DeactivateNode
frees it first (clients/flower_node.py): that is done before each restart.
"""

from __future__ import annotations

import shutil
import time
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import sha256
from typing import TYPE_CHECKING, Self

from . import flower_programs
from .dev_federation import Client, prepare, write_devices
from ..clients.device_files import DeviceFiles
from ..clients.flower_launcher import remove_left, write_launcher
from ..clients.flower_node import deactivate, remember
from ..host import process_tree
from ..host.processes import Supervisor
from ..host.programs import free_port
from ..host.waiting import wait_until
from ..protocol.errors import StateError
from ..server import flower_programs as servers
from ..server.federation_files import place
from ..server.flower_control import ONLINE, Control, answers, build_bundle
from ..server.flower_programs import SERVERS, SUPEREXEC, SUPERLINK, Place, flwr_home
from ..server.run_directory import sweep

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from ..host.processes import Happening
    from ..host.programs import Program
    from ..server.run_config import Value

CONNECTION = "umbel"
"""Name of the connection in the config.toml of the federation's client."""
LOOPBACK = "127.0.0.1"
START_S = 90.0
"""How long SuperLink, core and SuperNodes may take to come up."""
_TASKS_S = 0.5


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What is to be brought up."""

    app: Path
    edge: int
    gpu: int
    home: Path
    """Umbel's state directory."""
    name: str = "dev"
    secure: bool = True
    rounds: int = 1
    """Rounds that the run needs of a device in a day."""
    settings: Mapping[str, Value] = field(default_factory=dict)
    """Settings of the run that the app does not declare in its run-config."""
    init: Path | None = None
    """A safetensors file with the initial model; None for the app's own."""
    resume: str = ""
    """The run of ours that goes on; nothing for a new one."""
    core: bool = True
    """Whether the core service is started; an app of plain Flower does without."""
    ranks: int = 0
    """Processes of the core service that add up."""

    @property
    def clients(self) -> tuple[Client, ...]:
        """The clients in the order of their partitions: edge devices first."""
        edge = [Client(name=f"edge-{i}") for i in range(self.edge)]
        return (*edge, *(Client(name=f"gpu-{i}", ddp=2) for i in range(self.gpu)))

    @property
    def folder(self) -> Path:
        """The federation's directory."""
        return place(self.home, self.name)

    @property
    def place(self) -> Place:
        """Where its servers find what they need."""
        return Place(home=self.home, folder=self.folder)


class FlowerUp:
    """The running federation; leaving its block ends everything that it started."""

    def __init__(self, wanted: Wanted, say: Callable[[str], None] = lambda _line: None) -> None:
        """Bundle the app, end what a crashed `up` left, and make the federation's files.

        Args:
            wanted: What is to be brought up.
            say: Called with a line about each step and each program that ended.

        Raises:
            SettingsError: The app cannot be bundled.
            StateError: Another `umbel up` runs this federation, or its files are damaged.
        """
        self.wanted, self._say = wanted, say
        self.bundle = build_bundle(wanted.app)
        self.digest = sha256(self.bundle).hexdigest()
        wanted.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.supervisor = Supervisor(wanted.folder, before=lambda p: free_key(wanted.folder, p))
        self._next_look = 0.0
        try:
            if self.supervisor.leftovers:
                say(
                    f"ended what an earlier `umbel up` left: {', '.join(self.supervisor.leftovers)}"
                )
            clients = wanted.clients
            self.federation = prepare(wanted.folder, wanted.name, clients, datetime.now(UTC))
            self._clear()
            sweep(wanted.home)
            self.address, self.front = (f"{LOOPBACK}:{free_port()}" for _ in range(2))
            self.control = Control(self.address, self.federation.ca)
        except BaseException:
            self.supervisor.close()
            raise

    def __enter__(self) -> Self:
        """Return this federation."""
        return self

    def __exit__(self, *_: object) -> None:
        """End everything."""
        self.close()

    def close(self) -> None:
        """End nodes, SuperLink and core in this order, and sweep up behind a killed ServerApp."""
        process_tree.insist(self._close)

    def _close(self) -> None:
        self.control.close()
        self.supervisor.close()
        sweep(self.wanted.home)

    def start_servers(self) -> None:
        """Start the servers, register every client, and write its device's files.

        Raises:
            StateError: One did not come up; it is named, with the last line of its log.
        """
        gateway, place = f"{LOOPBACK}:{free_port()}", self.wanted.place
        if self.wanted.core:
            self.supervisor.start(servers.core(place, gateway, self.wanted.ranks))
        self.supervisor.start(servers.superlink(place, self.address))
        self.supervisor.start(servers.front(place, self.front, self.address))
        servers.write_connection(place, CONNECTION, self.address)
        write_devices(
            self.federation,
            self.wanted.clients,
            gateway=gateway,
            superlink=self.front,
            app=bytes.fromhex(self.digest),
            secure=self.wanted.secure,
            rounds=self.wanted.rounds,
        )
        self._wait("the SuperLink to answer", self.control.healthy)
        run = self.wanted.resume
        self.supervisor.start(flower_programs.superexec(self.wanted, self.address, run))
        self._wait("the SuperLink to register every client", self._registered)
        if self.wanted.core:
            self._wait("the core service to listen", self._core_listens)
        ca = self.federation.ca
        self._wait("the front to answer", lambda: answers(self.front, ca, "/readyz"))

    def start_nodes(self) -> None:
        """Start every client's SuperNode; they are online some seconds later."""
        for client in self.wanted.clients:
            device = self.federation.device(client.name)
            program = flower_programs.supernode(self.wanted, client, self.front, device)
            self.supervisor.start(program)

    def wait_online(self) -> None:
        """Return when every client is online.

        Raises:
            StateError: They are not within `START_S`.
        """

        def online() -> bool:
            with suppress(StateError):
                return not self.offline()
            return False

        self._wait("every client to be online", online)

    def submit_patiently(self, config: Mapping[str, Value]) -> int:
        """Do what `submit` does, as soon as the SuperLink answers."""
        found: list[int] = []

        def submitted() -> bool:
            with suppress(StateError):  # it is away for a moment
                found.append(self.submit(config))
            return bool(found)

        self._wait("the SuperLink to take the run", submitted)
        return found[0]

    def offline(self) -> list[str]:
        """Return the names of the clients that are not online."""
        states = self.control.nodes()
        names = [node.name for node in self.federation.nodes]
        return [name for name in names if name not in states or states[name].status != ONLINE]

    def submit(self, config: Mapping[str, Value]) -> int:
        """Start the app's run, as `flwr run` would, and return the id that Flower gives it."""
        return self.control.start_run(self.bundle, self.digest, config)

    def resume(self, run: str) -> None:
        """Let the ServerApps that start from now on go on with a run of ours; empty for new runs.

        Whichever runs is ended.
        """
        self.supervisor.replace(flower_programs.superexec(self.wanted, self.address, run))

    def watch(self) -> list[Happening]:
        """Look at every program once; a SuperNode that ended is started again.

        So is one whose ClientApp was killed: it would wait for that for a minute.
        """
        if (now := time.monotonic()) >= self._next_look:
            self._next_look = now + _TASKS_S
            end_bereft(self.supervisor, self.wanted.folder)
        return self.supervisor.watch()

    @property
    def client_home(self) -> Path:
        """The FLWR_HOME with which `flwr run . umbel` finds this federation."""
        return self.wanted.place.client_home

    # -- files and waiting ------------------------------------------------------------------

    def _clear(self) -> None:
        """Remove what Flower and the logs kept of an earlier `up`; nothing of a run is there."""
        folder = self.wanted.folder
        shutil.rmtree(folder / "flower", ignore_errors=True)
        for client in self.wanted.clients:
            shutil.rmtree(self.federation.device(client.name) / "tasks", ignore_errors=True)
            flwr_home(folder, client.name).mkdir(mode=0o700, parents=True)
        for name in (SUPERLINK, SUPEREXEC):
            flwr_home(folder, name).mkdir(mode=0o700)
        for file in (*folder.glob("superlink.sqlite*"), *(folder / "logs").glob("*.log*")):
            file.unlink()
        (folder / "core.json").unlink(missing_ok=True)
        write_launcher(folder / "bin")

    def _registered(self) -> bool:
        """Register the clients that are not yet, and tell whether all are."""
        with suppress(StateError):  # the SuperLink is away for a moment
            known = self.control.nodes()
            for node in self.federation.nodes:
                if node.name in known:
                    node_id = known[node.name].node_id
                else:
                    node_id = self.control.register(bytes.fromhex(node.flower_key), node.name)
                remember(self.federation.device(node.name) / "flower", node_id)
            return True
        return False

    def _core_listens(self) -> bool:
        return (self.wanted.folder / "core.json").exists()

    def _wait(self, what: str, holds: Callable[[], bool]) -> None:
        wait_until(
            holds, what, self.supervisor, watch=self.watch, say=self._say, vital=SERVERS,
            seconds=START_S,
        )  # fmt: skip


def free_key(folder: Path, program: Program) -> None:
    """Free the key of a SuperNode that ended, that the SuperLink may take its successor.

    What its ClientApp left goes too: nobody uses it any more.
    """
    device = folder / "nodes" / program.name
    if device.is_dir():
        shutil.rmtree(device / "tasks", ignore_errors=True)
        superlink = DeviceFiles.read(device).superlink
        deactivate(superlink, device / "ca.pem", device / "flower")


def end_bereft(supervisor: Supervisor, folder: Path) -> None:
    """End the SuperNodes whose ClientApp was killed; the supervisor starts them again."""
    for name in supervisor.names():
        tasks = folder / "nodes" / name / "tasks"
        if tasks.is_dir() and remove_left(tasks):
            supervisor.kill(name)
