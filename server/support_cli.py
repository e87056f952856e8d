"""`umbel server support`: one file about a server for a bug report, without secrets."""

from __future__ import annotations

import json
from pathlib import Path  # noqa: TC003 - typer evaluates it
from typing import Annotated

import typer

from . import support
from .care_options import told_on_stderr
from .federation_files import find
from .options import Federation  # noqa: TC001 - typer evaluates it
from ..host.answer_form import Form, Format
from ..host.places import umbel_home

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command(epilog="Example: umbel server support report.zip")
def support_(
    file: Annotated[Path, typer.Argument(help="The file to write; it must not be there yet.")],
    federation: Federation = None,
    form: Form = Format.TEXT,
) -> None:
    """Gather what a bug report needs: versions, findings, status, settings, logs, records.

    No key, token, model, metric or update is in it. Look at it before you send it.
    """
    bundle = support.gather(find(federation), umbel_home(writes=False), told_on_stderr("support"))
    bundle.write(file)
    about = {"file": str(file.absolute()), "bytes": file.stat().st_size, "parts": bundle.parts}
    if form is Format.JSON:
        typer.echo(json.dumps(about))
    else:
        typer.echo(f"{file}: {len(bundle.parts)} parts, {about['bytes']} bytes, no known secret")
        typer.echo("look at it before you send it: names of nodes and hosts are in it")
