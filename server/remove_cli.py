"""`umbel server remove NODE`: a node is a member no more."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from .federation_files import find
from .issuer_wire import ask
from .options import Federation  # noqa: TC001 - typer evaluates it
from ..host.answer_form import Form, Format

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command(no_args_is_help=True, epilog="Example: umbel server remove press-17")
def remove(
    node: Annotated[str, typer.Argument(metavar="NODE", help="Its name, or its id in hex.")],
    federation: Federation = None,
    form: Form = Format.TEXT,
) -> None:
    """Revoke a node for good: its streams end, the member list says so, it cannot come again."""
    found = ask(find(federation), "remove", node)
    if form is Format.JSON:
        typer.echo(json.dumps(found))
        return
    told = "" if found["superlink"] else "; the SuperLink is away and is told when it is back"
    typer.echo(f"removed: {found['name']} ({found['id']}){told}")
