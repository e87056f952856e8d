"""The option that the commands of a device have in common: which device.

The device is that of `--device DIR`, else of `$UMBEL_DEVICE`, else the only one below
`$UMBEL_HOME/devices/`. Where there are several or none, one line says so. One that has left its
federation counts only where there is no other.
"""

from __future__ import annotations

import os
import pwd
from pathlib import Path
from typing import Annotated

import typer

from .pause import has_left
from ..host.places import umbel_home
from ..protocol.errors import SettingsError

ENVIRONMENT = "UMBEL_DEVICE"
FILE = "device.toml"


Device = Annotated[
    Path | None,
    typer.Option(
        "--device",
        metavar="DIR",
        help="The device's directory; $UMBEL_DEVICE, or the only one of this user.",
    ),
]


def devices() -> Path:
    """Return the directory below which devices are enrolled by default."""
    return umbel_home(writes=False) / "devices"


def device_place(given: Path | None) -> Path:
    """Return the directory of the device that is meant, absolute.

    Raises:
        SettingsError: There is none, or there are several.
    """
    named = given or os.environ.get(ENVIRONMENT)
    if named:
        place = Path(named).absolute()
        if not (place / FILE).is_file():
            where = "--device" if given else ENVIRONMENT
            raise SettingsError(where, "a device's directory", str(place), "enrol the device first")
        return place
    found = sorted(path.parent for path in devices().glob(f"[!.]*/{FILE}"))
    found = [path for path in found if not has_left(path)] or found
    if not found:
        move = "`umbel client enrol TOKEN` makes one"
        raise SettingsError("--device", f"a device in {devices()}", "none", move)
    if len(found) > 1:
        names = ", ".join(str(path) for path in found)
        raise SettingsError("--device", "one of several devices", "nothing", f"name one: {names}")
    return found[0]


def own_place(given: Path | None) -> Path:
    """Return the directory of the device that is meant, if it is this user's.

    What another user, root too, would write there its agent could not read.

    Raises:
        SettingsError: As `device_place`, or it is another user's.
    """
    place = device_place(given)
    owner = place.stat().st_uid
    if owner != os.geteuid():
        try:
            name = pwd.getpwuid(owner).pw_name
        except KeyError:
            name = f"'#{owner}'"
        move = f"sudo -u {name} umbel client ..."
        raise SettingsError(str(place), f"its owner, user {name}", f"user {os.geteuid()}", move)
    return place
