"""What a federation of `umbel up` adds to the server's programs (server/flower_programs.py).

Its SuperNodes, each of which finds our launcher before Flower's ClientApp on its PATH, and what
the ServerApps are told, so that the ledger of a run says how its federation was started.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from ..host.programs import Program, command_path, environment
from ..server import flower_programs as servers
from ..server.flower_programs import PLAIN, QUIET, RESUME, RUN, SETTINGS, STARTED, flwr_home
from ..server.initial import INIT

if TYPE_CHECKING:
    from pathlib import Path

    from .dev_federation import Client
    from .flower_up import Wanted

GPUS = "umbel-gpus"
"""Key of a SuperNode's own configuration: processes that train by torch, 0 for none."""
FLOWER_PAUSE_S = 4.0
"""How long a SuperNode stays down in a run of plain Flower: a ServerApp looks every 3 s whether the
node that it waits for is offline, and would wait for hours for one that is back before that."""


def superexec(wanted: Wanted, address: str, run: str) -> Program:
    """Return what starts the ServerApps of the SuperLink on `address`, host:port.

    Args:
        wanted: What is brought up.
        address: Of the SuperLink.
        run: The run of ours that they go on with; nothing for new ones.
    """
    env = {SETTINGS: json.dumps(dict(wanted.settings)), STARTED: json.dumps(started(wanted))}
    env |= {} if wanted.secure else {PLAIN: "off"}
    env |= {INIT: str(wanted.init.absolute())} if wanted.init else {}
    env |= {RUN: run, RESUME: "1"} if run else {}
    return servers.superexec(wanted.place, address, env)


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
