"""`umbel client resume`: the end of a pause."""

from __future__ import annotations

import json

import typer

from .options import Device, own_place
from .pause import paused, remove_pause
from ..host.answer_form import Form, Format

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command(epilog="Example: umbel client resume")
def resume(device: Device = None, form: Form = Format.TEXT) -> None:
    """Let this device take part again."""
    place = own_place(device)
    was = paused(place) is not None
    remove_pause(place)
    if form is Format.JSON:
        typer.echo(json.dumps({"device": str(place), "paused": False, "was": was}))
    else:
        typer.echo("it takes part again" if was else "it was not paused")
