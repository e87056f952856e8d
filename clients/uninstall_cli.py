"""`umbel client uninstall`: systemd no longer runs this device's agent."""

from __future__ import annotations

from typing import Annotated

import typer

from .install import said, uninstall
from .options import Device, device_place
from .unit_file import unit_name

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command(name="uninstall", epilog="Example: sudo umbel client uninstall")
def uninstall_(
    user: Annotated[bool, typer.Option("--user", help="The service of this user.")] = False,
    device: Device = None,
) -> None:
    """End the service and remove its unit. The device stays enrolled; `leave` ends that."""
    place = device_place(device)
    federation, _ = said(place)
    typer.echo(f"removed {uninstall(unit_name(federation, place), user=user)}")
