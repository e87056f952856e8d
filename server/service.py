"""What a server of ours does before it listens, and how it is told to stop.

For the commands `umbel core up` (core_cli.py) and `umbel server front` (front_cli.py).
"""

from __future__ import annotations

import asyncio
import resource
import signal
from datetime import UTC, datetime
from email.utils import formatdate
from typing import TYPE_CHECKING

from .. import __version__
from ..protocol.context import PROTOCOL
from ..protocol.errors import SettingsError, StateError

if TYPE_CHECKING:
    from pathlib import Path

    from cryptography import x509

_LAST_PORT = 65535
_OTHER_FILES = 512


def about() -> dict[str, str]:
    """Return what a server says of itself in the headers of a page: its clock and versions.

    A device that is looked at by `umbel client doctor` compares them with its own.
    """
    return {
        "date": formatdate(usegmt=True),
        "umbel-version": __version__,
        "umbel-protocol": str(PROTOCOL),
    }


def check_listening(port: int, connections: int) -> None:
    """Check the two flags of every server.

    Raises:
        SettingsError: One of them is out of its range.
    """
    if not 0 <= port <= _LAST_PORT:
        raise SettingsError("--port", f"0 to {_LAST_PORT}", port)
    if connections < 1:
        raise SettingsError("--connections", "1 or more", connections)


def address(host: str, port: int) -> str:
    """Return `host:port`, an IPv6 address in brackets: `[::]` takes IPv4 too where both exist."""
    return f"[{host.strip('[]')}]:{port}" if ":" in host else f"{host}:{port}"


def check_in_force(leaf: x509.Certificate, file: Path) -> None:
    """Refuse a server's certificate that no device would accept now.

    Raises:
        StateError: It has ended, or begins later.
    """
    begins, ends, now = leaf.not_valid_before_utc, leaf.not_valid_after_utc, datetime.now(UTC)
    if ends <= now:
        move = "issue a new one: no device would connect"
        raise StateError(str(file), "a certificate in force", f"one that ended {ends}", move)
    if begins > now:
        move = "set this machine's clock: by it every device's certificate begins later too"
        raise StateError(str(file), "a certificate in force", f"one that begins {begins}", move)


def raise_file_limit(connections: int) -> None:
    """Let this process hold every connection, and then some files.

    Raises:
        SettingsError: The system does not let it.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + _OTHER_FILES
    if hard != resource.RLIM_INFINITY and wanted > hard:
        most = f"at most {hard - _OTHER_FILES} (ulimit -Hn)"
        raise SettingsError("--connections", most, connections)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def no_core_dumps() -> None:
    """Keep this process's memory, and that of what it starts, out of core files: it has keys."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def told_to_stop() -> asyncio.Event:
    """Return what SIGTERM and SIGINT set from now on."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    return stop
