"""`umbel client doctor`: what keeps this device from taking part, and what mends it.

Exit status 0 without a problem, 2 with one. It changes nothing, here or at the server.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from . import doctor
from .doctor_files import FILES
from .options import ENVIRONMENT, Device, devices
from ..host.answer_form import Form, Format
from ..host.doctor import run, show, told_on_stderr
from ..host.doctor_machine import other_user
from ..host.timeouts import listed
from ..protocol.errors import SettingsError

app = typer.Typer(add_completion=False, rich_markup_mode=None)

_PARTS = ("clients", "host", "protocol")


@app.command(epilog="Example: umbel client doctor --format json")
def doctor_(
    device: Device = None,
    form: Form = Format.TEXT,
    times: Annotated[
        bool,
        typer.Option("--times", help="List how long a device waits for what; look at nothing."),
    ] = False,
) -> None:
    """Say what keeps this device from taking part, and what mends it."""
    if times:
        listed(_PARTS, form.value)
        return
    place = _place(device)
    if place is None or not place.is_dir():
        line = f"{place or devices()}: no device was enrolled here"
        show([FILES("device.missing", line, "umbel client enrol TOKEN")], form.value)
    elif other := other_user(place, "umbel client doctor --device"):
        show([other], form.value)
    else:
        show(run(doctor.probes(place), told_on_stderr), form.value)


def _place(given: Path | None) -> Path | None:
    """Return the device's directory, however little is in it; None where there is none.

    Raises:
        SettingsError: There are several.
    """
    named = given or os.environ.get(ENVIRONMENT)
    if named:
        return Path(named).absolute()
    found = sorted(path for path in devices().glob("*") if path.is_dir())
    if len(found) > 1:
        names = ", ".join(map(str, found))
        raise SettingsError("--device", "one of several devices", "nothing", f"name one: {names}")
    return found[0] if found else None
