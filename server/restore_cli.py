"""`umbel server restore`: the server of a federation, out of a backup."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path  # noqa: TC003 - typer evaluates it
from typing import Annotated

import typer

from . import care_options as options
from .restore import Restored, restore
from ..host.answer_form import Form, Format
from ..host.places import umbel_home

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command(epilog="Example: umbel server restore wards.umbel --passphrase-file pass.txt")
def restore_(
    file: Annotated[Path, typer.Argument(help="What `umbel server backup` wrote.")],
    federation: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Federation directory to make [its name, at home]."),
    ] = None,
    passphrase_file: options.PassphraseFile = None,
    passphrase: options.Passphrase = False,
    form: Form = Format.TEXT,
) -> None:
    """Check a backup, and put a federation's server where there is none.

    Nodes go on with it by themselves. Those that were enrolled after the backup must be enrolled
    anew; those that were removed after it must be removed again.
    """
    secret = options.passphrase_of(passphrase_file, ask=passphrase, twice=False)
    made = restore(
        file, umbel_home(), federation, passphrase=secret, say=options.told_on_stderr("restore")
    )
    if form is Format.JSON:
        typer.echo(json.dumps({**asdict(made), "folder": str(made.folder)}))
    else:
        typer.echo("\n".join(_lines(made)))


def _lines(made: Restored) -> list[str]:
    lines = [
        f"{made.folder}: federation {made.name} as of {made.made}, {len(made.nodes)} nodes, "
        f"{len(made.runs)} runs",
        f"nodes: {', '.join(made.nodes) or 'none'}",
        "enrol anew who joined after that; remove again whom you removed after it",
    ]
    if made.revoked:
        lines.append(f"tokens revoked: {', '.join(made.revoked)}; make new ones")
    lines += made.notes
    lines.append("next: umbel server up")
    return lines
