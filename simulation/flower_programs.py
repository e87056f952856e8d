"""The programs of a federation of `umbel up`: their commands, variables and order of ending.

SuperExec, which starts the ServerApps, is a program of ours and no child of the SuperLink
(`--isolation process`): so a ServerApp outlives a SuperLink that dies, whose database knows its
task again, and it gets SuperExec's variables, which say what run it goes on with. Each program has
a FLWR_HOME of its own, because Flower's installation of a bundle is not atomic; a SuperNode finds
our launcher before Flower's ClientApp on its PATH.

Every one is started again when it ends, on the ports and with the files that it had.
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

from ..host.programs import Program, command_path, environment
from ..server.initial import INIT

if TYPE_CHECKING:
    from pathlib import Path

    from .dev_federation import Client
    from .flower_up import Wanted

CORE, FRONT, SUPERLINK, SUPEREXEC = "core", "front", "superlink", "superexec"
SERVERS = (CORE, FRONT, SUPERLINK, SUPEREXEC)
GPUS = "umbel-gpus"
"""Key of a SuperNode's own configuration: processes that train by torch, 0 for none."""
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "GRPC_VERBOSITY": "ERROR",
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.25",
}
"""Variables of every program of Flower's."""
RUN, RESUME, SETTINGS, STARTED = "UMBEL_RUN", "UMBEL_RESUME", "UMBEL_SETTINGS", "UMBEL_STARTED"
"""Variables of a ServerApp: which run of ours it goes on with; JSON of the settings that it puts
over the app's own, and of how the federation was started, which the ledger keeps."""
FLOWER_PAUSE_S = 4.0
"""How long a SuperNode stays down in a run of plain Flower: a ServerApp looks every 3 s whether the
node that it waits for is offline, and would wait for hours for one that is back before that."""
SERVER_PATIENCE_S = 30.0
"""How long a server that does not stay up is started again: what a minute's waiting heals at a
SuperNode, whose key may be refused, is nothing here, and the devices wait for no longer."""


def flwr_home(folder: Path, name: str) -> Path:
    """Return the FLWR_HOME of a program of the federation in `folder`."""
    return folder / "flower" / name


def core(wanted: Wanted, gateway: str) -> Program:
    """Return the core service, whose gateway listens on `gateway`, host:port."""
    command = [sys.executable, "-m", "umbel", "core", "up", "--federation", str(wanted.folder)]
    command += ["--port", gateway.rpartition(":")[2]]
    command += ["--ranks", str(wanted.ranks)] if wanted.ranks else []
    env = QUIET | _own(wanted)
    return _server(CORE, command, env, 3)


def superlink(wanted: Wanted, address: str) -> Program:
    """Return Flower's SuperLink on `address`, host:port."""
    folder, (host, _, port) = wanted.folder, address.rpartition(":")
    command = [command_path("flower-superlink"), "--host", host, "--port", port]
    command += ["--ssl-certfile", str(folder / "superlink.pem")]
    command += ["--ssl-keyfile", str(folder / "superlink.key")]
    command += ["--ssl-ca-certfile", str(folder / "ca.pem"), "--enable-supernode-auth"]
    command += ["--database", str(folder / "superlink.sqlite"), "--isolation", "process"]
    env = QUIET | _own(wanted) | {"FLWR_HOME": str(flwr_home(folder, SUPERLINK))}
    return _server(SUPERLINK, command, env, 2)


def front(wanted: Wanted, address: str, superlink: str) -> Program:
    """Return the front on `address`, host:port, before the SuperLink on `superlink`."""
    host, _, port = address.rpartition(":")
    command = [sys.executable, "-m", "umbel", "server", "front", "--superlink", superlink]
    command += ["--federation", str(wanted.folder), "--host", host, "--port", port]
    return _server(FRONT, command, _own(wanted), 1)


def superexec(wanted: Wanted, address: str, run: str) -> Program:
    """Return what starts the ServerApps of the SuperLink on `address`, host:port.

    Args:
        wanted: What is brought up.
        address: Of the SuperLink.
        run: The run of ours that they go on with; nothing for new ones.
    """
    folder = wanted.folder
    command = [command_path("flower-superexec"), "--runtime-api-address", address]
    command += ["--root-certificates", str(folder / "ca.pem")]
    env = QUIET | _own(wanted) | {"FLWR_HOME": str(flwr_home(folder, SUPEREXEC))}
    env |= {SETTINGS: json.dumps(dict(wanted.settings))}
    env |= {} if wanted.secure else {"UMBEL_SECURE": "off"}
    env |= {INIT: str(wanted.init.absolute())} if wanted.init else {}
    env |= {STARTED: json.dumps(started(wanted))}
    env |= {RUN: run, RESUME: "1"} if run else {}
    return _server(SUPEREXEC, command, env, 1)


def started(wanted: Wanted) -> dict[str, object]:
    """Return what the ledger of a run keeps, so that its federation can be started again."""
    return {
        "app": str(wanted.app.absolute()),
        "name": wanted.name,
        "edge": wanted.edge,
        "gpu": wanted.gpu,
        "secure": wanted.secure,
        "rounds": wanted.rounds,
        "settings": dict(wanted.settings),
        "init": str(wanted.init.absolute()) if wanted.init else "",
        "ranks": wanted.ranks,
    }


def supernode(wanted: Wanted, client: Client, address: str, device: Path) -> Program:
    """Return a client's SuperNode, which dials the front on `address`.

    Args:
        wanted: What is brought up.
        client: One of its clients.
        address: `host:port` of the front.
        device: The client's own directory.
    """
    clients = wanted.clients
    config = f"partition-id={clients.index(client)} num-partitions={len(clients)}"
    command = [command_path("flower-supernode"), "--superlink", address]
    command += ["--root-certificates", str(device / "ca.pem"), "--port", "{port}"]
    command += ["--auth-supernode-private-key", str(device / "flower")]
    command += ["--node-config", f"{config} {GPUS}={client.ddp}"]
    path = f"{wanted.folder / 'bin'}:{environment()['PATH']}"
    env = QUIET | {"FLWR_HOME": str(flwr_home(wanted.folder, client.name))}
    env |= {"UMBEL_DEVICE": str(device), "PATH": path}
    return Program(
        name=client.name, command=tuple(command), env=env, restart=True,
        pause=0.0 if wanted.core else FLOWER_PAUSE_S,
    )  # fmt: skip


def _server(name: str, command: list[str], env: dict[str, str], tier: int) -> Program:
    return Program(
        name=name, command=tuple(command), env=env, tier=tier, restart=True,
        patience=SERVER_PATIENCE_S,
    )  # fmt: skip


def _own(wanted: Wanted) -> dict[str, str]:
    return {"UMBEL_HOME": str(wanted.home), "UMBEL_FEDERATION": str(wanted.folder)}
