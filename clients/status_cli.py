"""`umbel client status`: what this device is doing now, and what its owner has to do."""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING, Annotated

import typer

from .options import Device, own_place
from .status import gathered, lines
from ..host.answer_form import Form, Format

if TYPE_CHECKING:
    from .status import Status

app = typer.Typer(rich_markup_mode=None, add_completion=False)

EVERY_S = 1.0
_HOME, _REST, _LINE = "\x1b[H", "\x1b[J", "\x1b[K"
"""To the first line; clear what is below; clear the rest of a line."""


@app.command(epilog="Example: umbel client status --watch")
def status(
    watch: Annotated[
        bool, typer.Option("--watch", help="Show it anew every second, until Ctrl-C.")
    ] = False,
    device: Device = None,
    form: Form = Format.TEXT,
) -> None:
    """Show what this device is doing, until when it may, and what there is to do."""
    place = own_place(device)
    if not watch:
        typer.echo(_text(gathered(place), form))
        return
    screen = sys.stdout.isatty() and form is Format.TEXT
    try:
        while True:
            text = _text(gathered(place), form)
            if screen:
                text = _HOME + text.replace("\n", f"{_LINE}\n") + f"{_LINE}\n{_REST}"
            typer.echo(text, nl=not screen)
            sys.stdout.flush()
            time.sleep(EVERY_S)
    except KeyboardInterrupt:
        return


def _text(found: Status, form: Format) -> str:
    if form is Format.JSON:
        return json.dumps(found.described())
    return "\n".join(lines(found))
