"""`umbel server token`: one line for a device that is to join; list and revoke them."""

from __future__ import annotations

import json
import re
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any

import typer

from .federation_files import find
from .issuer_wire import ask
from .options import Federation  # noqa: TC001 - typer evaluates it
from .token_terms import Terms, span
from ..host.answer_form import Form, Format
from ..host.figures import moment
from ..protocol.errors import SettingsError

app = typer.Typer(add_completion=False, rich_markup_mode=None)

_DIGEST = re.compile("[0-9a-f]{64}")


@app.callback(
    invoke_without_command=True,
    no_args_is_help=True,
    epilog="Example: umbel server token --name press-17 --expires 24h --app ./hello",
)
def token(
    context: typer.Context,
    name: Annotated[str, typer.Option(help="Name of the node to be.")] = "",
    site: Annotated[str, typer.Option(help="Its site, O= of its certificates [its name].")] = "",
    expires: Annotated[str, typer.Option(help="How long it may be used: 30m, 24h, 7d.")] = "24h",
    apps: Annotated[
        list[str] | None,
        typer.Option("--app", metavar="DIR|SHA256", help="App that may run on the device at once."),
    ] = None,
    federation: Federation = None,
    form: Form = Format.TEXT,
) -> None:
    """Make a token, the line with which one device joins once; or list or revoke tokens.

    Whoever has the line before it is used can join in the device's place: send it as you would a
    password.
    """
    if context.invoked_subcommand is not None:
        return
    terms = Terms(
        name=name,
        site=site or name,
        seconds=span(expires),
        apps=tuple(_digest(app) for app in apps or ()),
    )
    made = ask(find(federation), "token", terms.dumps())
    if form is Format.JSON:
        typer.echo(json.dumps({**made, "name": terms.name, "site": terms.site}))
        return
    typer.echo(made["token"])
    typer.echo(f"for {name}, once, within {expires}: umbel client enrol TOKEN", err=True)


@app.command("list", epilog="Example: umbel server token list --format json")
def list_tokens(federation: Federation = None, form: Form = Format.TEXT) -> None:
    """Show every token and what became of it; the secrets are kept nowhere."""
    found = ask(find(federation), "tokens")
    if form is Format.JSON:
        typer.echo(json.dumps(found))
        return
    for row in found:
        typer.echo(_row(row))
    if not found:
        typer.echo("no tokens yet")


@app.command("revoke", epilog="Example: umbel server token revoke press-17")
def revoke(
    which: Annotated[str, typer.Argument(metavar="TOKEN", help="Name or id of an open token.")],
    federation: Federation = None,
    form: Form = Format.TEXT,
) -> None:
    """Let a token that nobody has used make no node."""
    name = ask(find(federation), "revoke-token", which)
    typer.echo(json.dumps({"revoked": name}) if form is Format.JSON else f"revoked: {name}")


def _row(row: dict[str, Any]) -> str:
    apps = f", {len(row['apps'])} apps" if row["apps"] else ""
    return f"{row['id']}  {row['state']:8} {row['name']}  until {moment(row['expires'])}{apps}"


def _digest(app: str) -> bytes:
    """Return the SHA-256 of an app's bundle, given as such or as the app's directory."""
    if _DIGEST.fullmatch(app):
        return bytes.fromhex(app)
    if not Path(app).is_dir():
        raise SettingsError("--app", "an app's directory, or 64 lower-case hex digits", app)
    from .flower_control import build_bundle  # noqa: PLC0415 - flwr takes a second

    return sha256(build_bundle(Path(app))).digest()
