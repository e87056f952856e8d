"""`umbel client support`: one file about a device for a bug report, without secrets."""

from __future__ import annotations

import json
import sys
from pathlib import Path  # noqa: TC003 - typer evaluates it
from typing import Annotated

import typer

from .options import Device, own_place
from .support import gather
from ..host.answer_form import Form, Format

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command(epilog="Example: umbel client support report.zip")
def support(
    file: Annotated[Path, typer.Argument(help="The file to write; it must not be there yet.")],
    device: Device = None,
    form: Form = Format.TEXT,
) -> None:
    """Gather what a bug report needs: versions, findings, state, limits, codes.

    No key, no data and nothing that an app has printed is in it. Look at it before you send it.
    """
    bundle = gather(own_place(device), lambda line: print(f"support: {line}", file=sys.stderr))
    bundle.write(file)
    about = {"file": str(file.absolute()), "bytes": file.stat().st_size, "parts": bundle.parts}
    if form is Format.JSON:
        typer.echo(json.dumps(about))
    else:
        typer.echo(f"{file}: {len(bundle.parts)} parts, {about['bytes']} bytes, no known secret")
        typer.echo("look at it before you send it: names of servers are in it")
