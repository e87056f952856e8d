"""`umbel server issuer`: the issuing CA of one federation, until it is told to stop.

A process of its own, and an account of its own where the operator gives it one: it alone reads
`issuing.key`. SIGTERM and SIGINT end it when the requests that it has are answered.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path  # noqa: TC003 - typer evaluates it
from typing import TYPE_CHECKING, Annotated

import typer

from . import service
from .core_log import Lines, console
from .federation_files import ROOT, find
from .issuer import Issuer
from .issuer_socket import Service, listen
from .issuer_wire import SOCKET
from .server_toml import ServerSettings

if TYPE_CHECKING:
    from .registrar import Registrar

app = typer.Typer(no_args_is_help=False, add_completion=False, rich_markup_mode=None)


@app.command(epilog="Example: umbel server issuer --federation DIR")
def issuer(
    federation: Annotated[
        Path | None, typer.Option(help="Federation directory [the only one of this machine].")
    ] = None,
) -> None:
    """Enrol devices, renew their certificates and sign the member list, until told to stop."""
    from .flower_registration import SuperLinkRegistrar  # noqa: PLC0415 - flwr takes a second

    folder = find(federation)
    service.no_core_dumps()
    settings = ServerSettings.read(folder)
    registrar = SuperLinkRegistrar(settings.superlink, folder / ROOT)
    try:
        asyncio.run(_serve(folder, registrar))
    finally:
        registrar.close()


async def _serve(folder: Path, registrar: Registrar) -> None:
    stop, lines = service.told_to_stop(), Lines(_print, time.monotonic)
    made = Issuer(folder, lambda: datetime.now(UTC), registrar)
    serving = Service(made, lambda line: lines.say("issuer", line))
    listener = listen(folder)
    try:
        await serving.refresh(superlink=False)
        with suppress(OSError):  # its log is on a full disk
            print(f"issuer: listening on {folder / SOCKET}", flush=True)
        await serving.serve(listener, stop)
    finally:
        (folder / SOCKET).unlink(missing_ok=True)


def _print(line: str) -> None:
    console(f"issuer: {line}")
