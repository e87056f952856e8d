"""`umbel server roll-ca`: a new issuing CA under the root."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path  # noqa: TC003 - typer evaluates it
from typing import Annotated

import typer

from .federation_files import ROOT_KEY, find
from .federation_init import OFFLINE_KEY
from .issuer_wire import ask
from .options import Federation  # noqa: TC001 - typer evaluates it
from .roll_ca import roll
from ..host.answer_form import Form, Format

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command("roll-ca", epilog="Example: umbel server roll-ca --offline-ca /media/key")
def roll_ca(
    offline_ca: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Where the root's key is, if not in the federation."),
    ] = None,
    federation: Federation = None,
    form: Form = Format.TEXT,
) -> None:
    """Make a new issuing CA under the root; old ones stay trusted until they end."""
    folder = find(federation)
    key = folder / ROOT_KEY if offline_ca is None else offline_ca / OFFLINE_KEY
    made = roll(folder, key, datetime.now(UTC))
    said = ask(folder, "refresh")
    ends = made.not_valid_after_utc
    if form is Format.JSON:
        typer.echo(json.dumps({"ends": int(ends.timestamp()), "said": said}))
        return
    typer.echo(f"a new issuing CA signs, until {ends:%F}; nodes get its certificates as they renew")
    for line in said:
        typer.echo(line)
    if offline_ca is not None:
        typer.echo(f"take {offline_ca} away from this machine again")
