"""The server's programs of a federation: their commands, variables and order of ending.

    tier 1  front, SuperExec    nothing new comes in, ServerApps end
    tier 2  SuperLink, issuer
    tier 3  core service        it says goodbye to the sessions

SuperExec, which starts the ServerApps, is a program of ours and no child of the SuperLink
(`--isolation process`): so a ServerApp outlives a SuperLink that dies, whose database knows its
task again, and it gets SuperExec's variables, which say what run it goes on with. Each program of
Flower's has a FLWR_HOME of its own, because its installation of a bundle is not atomic.

Every one is started again when it ends, on the ports and with the files that it had. A supervisor
of host/processes.py holds them: that of `umbel up`, or of `umbel server up`.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..host.programs import Program, command_path

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

CORE, FRONT, SUPERLINK, SUPEREXEC, ISSUER = "core", "front", "superlink", "superexec", "issuer"
SERVERS = (CORE, FRONT, SUPERLINK, SUPEREXEC, ISSUER)
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "GRPC_VERBOSITY": "ERROR",
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.25",
}
"""Variables of every program of Flower's."""
FEDERATION = "UMBEL_FEDERATION"
"""Environment variable: the federation's directory on the server."""
RUN = "UMBEL_RUN"
"""Environment variable: the run's id, given by whoever started it."""
SETTINGS = "UMBEL_SETTINGS"
"""Environment variable: settings that the app does not declare in its run-config, as JSON."""
STARTED = "UMBEL_STARTED"
"""Environment variable: how the federation was started, as JSON; the ledger keeps it."""
PLAIN = "UMBEL_SECURE"
"""Environment variable: `off` allows a plain run, which every device must allow too."""
RESUME = "UMBEL_RESUME"
"""Environment variable: `1` lets the run of this id go on where it was lost, if it exists."""
SERVER_PATIENCE_S = 30.0
"""How long a server that does not stay up is started again: what a minute's waiting heals at a
SuperNode, whose key may be refused, is nothing here, and the devices wait for no longer."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """Where the programs of a federation find what they need."""

    home: Path
    """Umbel's state directory."""
    folder: Path
    """The federation's directory."""

    @property
    def client_home(self) -> Path:
        """The FLWR_HOME with which `flwr run` on this machine finds the federation."""
        return flwr_home(self.folder, "client")

    @property
    def env(self) -> dict[str, str]:
        """The variables by which our programs find the two directories."""
        return {"UMBEL_HOME": str(self.home), FEDERATION: str(self.folder)}


def flwr_home(folder: Path, name: str) -> Path:
    """Return the FLWR_HOME of a program of the federation in `folder`."""
    return folder / "flower" / name


def core(place: Place, listen: str, ranks: int = 0) -> Program:
    """Return the core service, whose gateway listens on `listen`, host:port."""
    command = [sys.executable, "-m", "umbel", "core", "up", "--federation", str(place.folder)]
    command += [*_listen(listen), *(["--ranks", str(ranks)] if ranks else [])]
    return _server(CORE, command, QUIET | place.env, 3)


def issuer(place: Place) -> Program:
    """Return what signs certificates: it alone opens the issuing CA's key."""
    command = [sys.executable, "-m", "umbel", "server", "issuer", "--federation", str(place.folder)]
    return _server(ISSUER, command, place.env, 2)


def superlink(place: Place, address: str) -> Program:
    """Return Flower's SuperLink on `address`, host:port."""
    folder = place.folder
    command = [command_path("flower-superlink"), *_listen(address)]
    command += ["--ssl-certfile", str(folder / "superlink.pem")]
    command += ["--ssl-keyfile", str(folder / "superlink.key")]
    command += ["--ssl-ca-certfile", str(folder / "ca.pem"), "--enable-supernode-auth"]
    command += ["--database", str(folder / "superlink.sqlite"), "--isolation", "process"]
    env = QUIET | place.env | {"FLWR_HOME": str(flwr_home(folder, SUPERLINK))}
    return _server(SUPERLINK, command, env, 2)


def front(place: Place, listen: str, superlink: str) -> Program:
    """Return the front on `listen`, host:port, before the SuperLink on `superlink`."""
    command = [sys.executable, "-m", "umbel", "server", "front", "--superlink", superlink]
    command += ["--federation", str(place.folder), *_listen(listen)]
    return _server(FRONT, command, place.env, 1)


def superexec(place: Place, address: str, env: Mapping[str, str]) -> Program:
    """Return what starts the ServerApps of the SuperLink on `address`, host:port.

    Args:
        place: Of the federation.
        address: Of the SuperLink.
        env: What the ServerApps are told by variables (flower_train.py).
    """
    command = [command_path("flower-superexec"), "--runtime-api-address", address]
    command += ["--root-certificates", str(place.folder / "ca.pem")]
    home = {"FLWR_HOME": str(flwr_home(place.folder, SUPEREXEC))}
    return _server(SUPEREXEC, command, QUIET | place.env | home | dict(env), 1)


def write_connection(place: Place, name: str, address: str) -> None:
    """Let `flwr run . NAME`, with `client_home` as its FLWR_HOME, find the SuperLink.

    Args:
        place: Of the federation.
        name: Of the connection.
        address: `host:port` of the SuperLink.
    """
    lines = [
        "[superlink]",
        f'default = "{name}"',
        f"[superlink.{name}]",
        f'address = "{address}"',
        f"root-certificates = {json.dumps(str((place.folder / 'ca.pem').absolute()))}",
    ]
    place.client_home.mkdir(mode=0o700, parents=True, exist_ok=True)
    (place.client_home / "config.toml").write_text("\n".join(lines) + "\n", encoding="utf-8")


def _listen(address: str) -> list[str]:
    host, _, port = address.rpartition(":")
    return ["--host", host.strip("[]"), "--port", port]


def _server(name: str, command: list[str], env: dict[str, str], tier: int) -> Program:
    return Program(
        name=name, command=tuple(command), env=env, tier=tier, restart=True,
        patience=SERVER_PATIENCE_S,
    )  # fmt: skip
