"""`umbel client install`: let systemd run this device's agent, from each boot on."""

from __future__ import annotations

from typing import Annotated

import typer

from .install import install, unit_of
from .options import Device, device_place
from ..host.platforms import check_platform

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command(name="install", epilog="Example: sudo umbel client install --memory 2G")
def install_(
    user: Annotated[
        bool, typer.Option("--user", help="A service of this user, not root's.")
    ] = False,
    memory: Annotated[
        str, typer.Option(metavar="SIZE", help="Most memory, apps included: 2G, 512M, 50%.")
    ] = "80%",
    gpu: Annotated[bool, typer.Option("--gpu", help="Let apps use graphics cards.")] = False,
    print_: Annotated[
        bool, typer.Option("--print", help="Print the unit, and change nothing.")
    ] = False,
    device: Device = None,
) -> None:
    """Write a systemd unit for `umbel client up`, start it now and at each boot.

    It runs under the account that owns the device's directory. `umbel client uninstall` undoes it.
    """
    check_platform()
    unit = unit_of(device_place(device), user=user, memory=memory, gpu=gpu)
    if print_:
        typer.echo(unit.text(), nl=False)
        return
    file = install(unit, user=user, say=lambda line: typer.echo(line, err=True))
    scope = " --user" if user else ""
    typer.echo(f"{file}\nsystemctl{scope} status {unit.name}")
