"""`umbel client pause`: this device takes no part until it is resumed."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from datetime import datetime
from typing import Annotated

import typer

from .options import Device, own_place
from .pause import Pause, moment, span, write_pause
from ..host.answer_form import Form, Format
from ..protocol.errors import SettingsError

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command(epilog="Example: umbel client pause --for 2h")
def pause(
    for_: Annotated[
        str | None, typer.Option("--for", help="How long: 90m, 2h, 3d, 1w.", metavar="TIME")
    ] = None,
    until: Annotated[
        str | None, typer.Option(help="Until then: 18:00, or 2027-01-31T08:00.", metavar="TIME")
    ] = None,
    now: Annotated[
        bool, typer.Option("--now", help="Break off the round in progress; else it ends first.")
    ] = False,
    device: Device = None,
    form: Form = Format.TEXT,
) -> None:
    """Take no part in rounds until `umbel client resume`, or until the time is over."""
    if for_ is not None and until is not None:
        raise SettingsError("pause", "--for or --until", "both", "say one")
    place = own_place(device)
    at = time.time()
    end = 0.0
    if for_ is not None:
        end = at + span(for_)
    elif until is not None:
        end = moment(until, datetime.now().astimezone())
    said = Pause(since=at, until=end, now=now)
    write_pause(place, said)
    if form is Format.JSON:
        typer.echo(json.dumps({"device": str(place), **asdict(said)}))
    elif now:
        typer.echo(f"{said}; what is in progress is broken off")
    else:
        typer.echo(f"{said}; a round in progress ends first (--now breaks it off)")
