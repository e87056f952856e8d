"""`umbel server backup`: one file from which the server of a federation can be restored."""

from __future__ import annotations

import json
from pathlib import Path  # noqa: TC003 - typer evaluates it
from typing import Annotated

import typer

from . import care_options as options
from .backup import backup
from .federation_files import find
from .options import Federation  # noqa: TC001 - typer evaluates it
from ..host.answer_form import Form, Format
from ..host.figures import size
from ..host.places import umbel_home

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command(epilog="Example: umbel server backup wards.umbel --passphrase-file pass.txt")
def backup_(
    file: Annotated[Path, typer.Argument(help="The file to write; it must not be there yet.")],
    federation: Federation = None,
    without_models: Annotated[
        bool, typer.Option("--without-models", help="Runs' records only, not their models.")
    ] = False,
    passphrase_file: options.PassphraseFile = None,
    passphrase: options.Passphrase = False,
    form: Form = Format.TEXT,
) -> None:
    """Write what a federation's server needs to go on into one file, while everything runs.

    It holds the CA's keys: seal it with a passphrase, or keep it as you keep them. Devices' own
    directories are not in it.
    """
    folder = find(federation)
    secret = options.passphrase_of(passphrase_file, ask=passphrase, twice=True)
    made = backup(
        folder, umbel_home(), file, models=not without_models, passphrase=secret,
        say=options.told_on_stderr("backup"),
    )  # fmt: skip
    about = {
        **made.about,
        "file": str(file.absolute()),
        "sealed": secret is not None,
        "members": len(made.members),
        "bytes": file.stat().st_size,
    }
    if form is Format.JSON:
        typer.echo(json.dumps(about))
        return
    kept = "sealed" if secret else "NOT sealed: it holds the CA's keys in clear"
    models = "with models" if about["models"] else "without models"
    typer.echo(
        f"{file}: federation {about['federation']}, {about['runs']} runs {models}, "
        f"{about['members']} files, {size(about['bytes'])}, {kept}"
    )
    if not about["root_key"]:
        typer.echo("the root's key is not in it: it lies where `--offline-ca` put it")
    for line in about["left_out"]:
        typer.echo(f"left out: {line}")
