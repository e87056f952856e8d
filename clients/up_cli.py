"""`umbel client up`: the agent of this device, in the foreground.

The process becomes the agent (agent.py): what parses the command line is not needed for months.
"""

from __future__ import annotations

import os
import sys

import typer

from .options import Device, device_place
from ..host.spawned import module_command

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command(epilog="Example: umbel client up")
def up(device: Device = None) -> None:
    """Take part: keep this device's SuperNode running, renew its certificates, obey its owner.

    Ends by SIGTERM (status 0) or Ctrl-C (130). `umbel client install` makes a service of it.
    """
    place = device_place(device)
    sys.stdout.flush()
    command = module_command(sys.executable, str(__package__), "agent", str(place))
    os.execv(command[0], command)  # noqa: S606 - our own interpreter
