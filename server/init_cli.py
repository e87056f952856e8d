"""`umbel server init`: a federation's directory, with its CA, certificates and settings."""

from __future__ import annotations

import json
import socket
from datetime import UTC, datetime
from pathlib import Path  # noqa: TC003 - typer evaluates it
from typing import Annotated

import typer
from cryptography.hazmat.primitives.serialization import Encoding

from .federation_files import ROOT, ROOT_KEY, certificate, place
from .federation_init import OFFLINE_KEY, make
from .server_toml import FILE, ServerSettings
from ..host.answer_form import Form, Format
from ..host.places import umbel_home
from ..host.platforms import check_platform
from ..protocol.certificates import fingerprint
from ..protocol.errors import StateError

app = typer.Typer(add_completion=False, rich_markup_mode=None)

NAME = "fleet"
FRONT_PORT, GATEWAY_PORT = 8443, 8444
SUPERLINK = "127.0.0.1:8000"


@app.command(
    no_args_is_help=True,
    epilog="Example: umbel server init --name wards --names fl.example.org --offline-ca /media/key",
)
def init(
    names: Annotated[
        str,
        typer.Option(metavar="NAME,...", help="DNS names and IP addresses that devices dial."),
    ],
    name: Annotated[str, typer.Option(help="Name of the federation, for good.")] = NAME,
    gateway: Annotated[
        str, typer.Option(metavar="HOST:PORT", help=f"The gateway [first name:{GATEWAY_PORT}].")
    ] = "",
    front: Annotated[
        str, typer.Option(metavar="HOST:PORT", help=f"The front [first name:{FRONT_PORT}].")
    ] = "",
    superlink: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Flower's SuperLink, on loopback.")
    ] = SUPERLINK,
    offline_ca: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Where the root's key goes, to be taken away."),
    ] = None,
    federation: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Directory to make [below $UMBEL_HOME/federations]."),
    ] = None,
    form: Form = Format.TEXT,
) -> None:
    """Make a federation: its CA, the certificates of its servers, its settings."""
    check_platform()
    settings = settings_for(name, names.split(","), gateway, front, superlink)
    folder = federation or place(umbel_home(), name)
    make(folder, settings, datetime.now(UTC), offline_ca)
    _tell(folder, settings, offline_ca, form)


def settings_for(
    name: str, names: list[str], gateway: str = "", front: str = "", superlink: str = SUPERLINK
) -> ServerSettings:
    """Return the settings of a federation; what is not given follows from its first name."""
    known = [item.strip() for item in names]
    host = f"[{known[0]}]" if ":" in known[0] else known[0]
    gateway, front = gateway or f"{host}:{GATEWAY_PORT}", front or f"{host}:{FRONT_PORT}"
    everywhere = "[::]" if socket.has_dualstack_ipv6() else "0.0.0.0"  # noqa: S104 - it serves all
    return ServerSettings(
        name=name,
        names=tuple(known),
        gateway=gateway,
        front=front,
        superlink=superlink,
        listen_core=f"{everywhere}:{gateway.rpartition(':')[2]}",
        listen_front=f"{everywhere}:{front.rpartition(':')[2]}",
    )


def _tell(folder: Path, settings: ServerSettings, offline: Path | None, form: Format) -> None:
    root = certificate(folder / ROOT)
    if root is None:
        raise StateError(str(folder / ROOT), "the root that was just made", "nothing")
    key = folder / ROOT_KEY if offline is None else offline / OFFLINE_KEY
    found = {
        "federation": settings.name,
        "directory": str(folder),
        "root_sha256": fingerprint(root.public_bytes(Encoding.DER)).hex(),
        "root_key": str(key),
        "front": settings.front,
        "gateway": settings.gateway,
    }
    if form is Format.JSON:
        typer.echo(json.dumps(found))
        return
    typer.echo(f"federation {settings.name}: {folder}")
    typer.echo(f"devices dial {settings.front} and {settings.gateway}; {FILE} says it")
    typer.echo(f"root CA: SHA-256 {found['root_sha256']}")
    away = "whoever has it can add members: keep a copy elsewhere"
    if offline is not None:
        away = f"take {offline} away from this machine now; `umbel server roll-ca` asks for it"
    typer.echo(f"its key: {key}; {away}")
