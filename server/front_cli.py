"""`umbel server front`: the HTTPS port before the SuperLink, until it is told to stop.

It needs the federation directory with `ca.pem`, `front.pem` and `front.key`. SIGTERM and SIGINT end
it when the requests that it has are answered.
"""

from __future__ import annotations

import asyncio
import re
import ssl
import time
from asyncio import sslproto
from contextlib import suppress
from pathlib import Path  # noqa: TC003 - typer evaluates it
from typing import TYPE_CHECKING, Annotated

import typer

from . import service
from .core_log import Lines, console
from .front import Front
from .front_body import LARGEST, MIB, Terms
from .front_door import Certificate, Doors, listening
from .front_pages import pages_of
from .front_places import MOST
from ..protocol.errors import SettingsError, StateError

if TYPE_CHECKING:
    import socket

app = typer.Typer(no_args_is_help=True, add_completion=False, rich_markup_mode=None)

CONNECTIONS = 1500
"""As many as the gateway takes: every member of a large federation."""
TLS_PIECE = 1 << 16
"""Bytes of a connection that TLS takes in at once. asyncio sets 256 KiB aside for each, open or
busy: 1,500 of them would take 400 MiB."""
_ADDRESS = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):([0-9]{1,5})")


@app.command(
    epilog="Example: umbel server front --federation ~/.local/state/umbel/federations/dev "
    "--superlink 127.0.0.1:8000 --host :: --port 443"
)
def front(
    federation: Annotated[Path, typer.Option(help="Federation directory.")],
    superlink: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="The SuperLink, on this machine's loopback.")
    ],
    host: Annotated[
        str, typer.Option(help="Address to listen on; :: is all, of IPv4 too.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port; 0 takes a free one.")] = 0,
    connections: Annotated[int, typer.Option(help="Most connections at once.")] = CONNECTIONS,
    largest: Annotated[
        int, typer.Option(metavar="MIB", help="Most MiB of a request's body, and of an answer's.")
    ] = LARGEST // MIB,
) -> None:
    """Let devices reach the SuperLink's Fleet API, and nothing else of it."""
    service.check_listening(port, connections)
    if largest < 1:
        raise SettingsError("--largest", "1 or more", largest)
    if _ADDRESS.fullmatch(superlink) is None:
        raise SettingsError("--superlink", "host:port", superlink)
    lines = Lines(_print, time.monotonic)
    certificate = Certificate(federation / "front.pem", federation / "front.key", lines)
    trust = _trust(federation / "ca.pem")
    service.raise_file_limit(connections + MOST)
    with listening(host, port) as listener:
        terms = Terms(largest=largest * MIB)
        made = Front(superlink, trust, lines, terms, pages_of(federation, lines))
        doors = Doors(made, certificate, listener, connections, lines)
        asyncio.run(_serve(made, doors, listener))


async def _serve(made: Front, doors: Doors, listener: socket.socket) -> None:
    sslproto.SSLProtocol.max_size = TLS_PIECE
    stop = service.told_to_stop()
    where = service.address(*listener.getsockname()[:2])
    with suppress(OSError):  # its log is on a full disk
        print(f"front: listening on https://{where}", flush=True)
    try:
        await doors.serve(stop)
    finally:
        await made.close()


def _trust(root: Path) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=root)
    except (OSError, ssl.SSLError) as error:
        move = "`umbel up` makes a federation directory"
        raise StateError(str(root), "a CA's certificate", error.strerror, move) from error


def _print(line: str) -> None:
    console(f"front: {line}")
