"""`umbel server doctor`: what is wrong with a federation's server, and what mends it.

Exit status 0 without a problem, 2 with one. It changes nothing.
"""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 - typer evaluates it
from typing import Annotated

import typer

from . import doctor
from .options import Federation  # noqa: TC001 - typer evaluates it
from ..host.answer_form import Form, Format
from ..host.doctor import run, show, told_on_stderr
from ..host.doctor_machine import other_user
from ..host.places import umbel_home
from ..host.timeouts import listed
from ..protocol.errors import SettingsError

app = typer.Typer(add_completion=False, rich_markup_mode=None)

_PARTS = ("server", "server/core", "host", "protocol")


@app.command(epilog="Example: umbel server doctor --federation DIR --format json")
def doctor_(
    federation: Federation = None,
    form: Form = Format.TEXT,
    times: Annotated[
        bool,
        typer.Option("--times", help="List how long a server waits for what; look at nothing."),
    ] = False,
) -> None:
    """Say what is wrong with this federation's server, and what mends it."""
    if times:
        listed(_PARTS, form.value)
        return
    place = _place(federation)
    if other := other_user(place, "umbel server doctor --federation"):
        show([other], form.value)
    show(run(doctor.probes(place), told_on_stderr), form.value)


def _place(given: Path | None) -> Path:
    """Return the federation's directory, however little is in it.

    Raises:
        SettingsError: There is none, or there are several.
    """
    if given is not None:
        if not given.is_dir():
            move = "`umbel server init` makes one"
            raise SettingsError("--federation", "a directory", str(given), move)
        return given.absolute()
    places = umbel_home(writes=False) / "federations"
    found = sorted(path for path in places.glob("*") if path.is_dir())
    if len(found) != 1:
        got = ", ".join(map(str, found)) or "none"
        raise SettingsError("--federation", f"one of those below {places}", got, "name one")
    return found[0]
