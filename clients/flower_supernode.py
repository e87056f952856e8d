"""The start of a device's SuperNode: `flower_supernode DIR PORT`, which becomes it.

It frees the node's key first, which a predecessor that was killed still holds at the SuperLink
(flower_node.py). It does so at each start and needs cryptography and flwr for it; then it executes
the SuperNode in its place, so that nothing of this stays in memory, and no other process waits.

The SuperNode finds our launcher (flower_launcher.py) and the slim SuperExec (flower_slim.py) before
Flower's own on its PATH. It tries to reach the front for ever.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from .device_files import ENVIRONMENT, DeviceFiles
from .flower_launcher import QUIET, write_launcher
from .flower_node import deactivate
from .flower_slim import SUPERNODE, write_superexec
from ..host.programs import environment
from ..host.spawned import module_command
from ..protocol.errors import SettingsError, UmbelError

HOME = "agent"
"""Below the device's directory: what belongs to its agent."""


def main(directory: Path, port: str) -> int:
    """Become the device's SuperNode; returns only where it cannot be started.

    Args:
        directory: The device's own.
        port: Of the loopback interface, for its own ClientApps.
    """
    try:
        command, variables = prepared(directory, port)
    except UmbelError as error:
        print(f"umbel: {error}", file=sys.stderr, flush=True)
        return 2
    os.execve(command[0], command, variables)  # noqa: S606 - our own interpreter


def prepared(directory: Path, port: str) -> tuple[list[str], dict[str, str]]:
    """Free the node's key, write the launchers, and return the SuperNode's command and variables.

    Raises:
        SettingsError: The device's files are not what they should be.
    """
    files = DeviceFiles.read(directory)
    root = Path(str(files.policy.ca))
    if not files.superlink:
        raise SettingsError(str(directory / "device.toml"), "the key superlink", "nothing")
    deactivate(files.superlink, root, files.flower_key)  # no harm if there is nothing to free
    home = directory / HOME
    programs = home / "bin"
    write_launcher(programs)
    write_superexec(programs)
    command = module_command(sys.executable, str(__package__), "flower_slim", SUPERNODE)
    command += ["--superlink", files.superlink, "--root-certificates", str(root), "--port", port]
    command += ["--auth-supernode-private-key", str(files.flower_key)]
    variables = environment() | QUIET | {ENVIRONMENT: str(directory)}
    variables |= {"FLWR_HOME": str(home / "flower")}
    variables["PATH"] = f"{programs}{os.pathsep}{variables['PATH']}"
    return command, variables


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2]))
