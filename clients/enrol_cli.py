"""`umbel client enrol`: make this machine a device of a federation, by a token."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from .enrol import Enrolled, enrol
from .options import ENVIRONMENT, devices
from .policy import Policy
from .policy_file import read_owned
from ..host.answer_form import Form, Format
from ..host.places import umbel_home
from ..host.platforms import check_platform
from ..protocol.enrolment_token import Token
from ..protocol.errors import SettingsError

app = typer.Typer(rich_markup_mode=None, add_completion=False)
_LONGEST = 4096


@app.command(name="enrol", epilog="Example: umbel client enrol --token-file token.txt")
def enrol_(
    token: Annotated[
        str | None,
        typer.Argument(metavar="TOKEN", help="As the operator sent it; - or nothing: from stdin."),
    ] = None,
    token_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A file with the token.")
    ] = None,
    device: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Where it is kept; by default below $UMBEL_HOME/devices."),
    ] = None,
    policy: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="What this device agrees to; absent: the strict values."),
    ] = None,
    form: Form = Format.TEXT,
) -> None:
    """Make keys here, get certificates for them, and pin whom this device trusts.

    A token on a command line is seen by everybody on this machine: read it from a file or stdin.
    """
    check_platform()
    found = Token.parse(_line(token, token_file))
    base = Policy() if policy is None else Policy.load(policy.absolute())
    _check_policy(base, found, str(policy))
    done = enrol(found, _place(device, found), base, lambda line: typer.echo(line, err=True))
    typer.echo(json.dumps(_fields(done)) if form is Format.JSON else _words(done))


def _line(token: str | None, file: Path | None) -> str:
    """Return the token's line, from wherever it comes."""
    if token not in {None, "-"} and file is not None:
        raise SettingsError("enrol", "TOKEN or --token-file", "both", "say one")
    if file is not None:
        return read_owned(file.absolute())
    if token not in {None, "-"}:
        return str(token)
    if sys.stdin.isatty():
        return str(typer.prompt("token", hide_input=True))
    return sys.stdin.read(_LONGEST)


def _place(device: Path | None, token: Token) -> Path:
    named = device or os.environ.get(ENVIRONMENT)
    if named:
        return Path(named).absolute()
    umbel_home()
    return devices() / token.federation


def _check_policy(policy: Policy, token: Token, where: str) -> None:
    """Refuse a policy whose trust is not what the token gives."""
    own = {"trust.ca": policy.ca, "trust.gateways": policy.gateways}
    for key, value in own.items():
        if value is not None:
            raise SettingsError(f"{where}: {key}", "what enrolment writes", value, "remove the key")
    if policy.federation not in {None, token.federation}:
        raise SettingsError(f"{where}: trust.federation", token.federation, policy.federation)


def _fields(done: Enrolled) -> dict[str, object]:
    return {
        "device": str(done.directory), "federation": done.federation, "id": done.id.hex(),
        "name": done.name, "site": done.site, "root": done.root.hex(), "front": done.front,
        "gateway": done.gateway, "apps": [app.hex() for app in done.apps], "approve": done.approve,
    }  # fmt: skip


def _words(done: Enrolled) -> str:
    apps = [f"app          {app.hex()} may run" for app in done.apps]
    apps += [] if apps else ["apps         none yet"]
    apps += ["             a new one waits: umbel client apps"] if done.approve else []
    return "\n".join(
        [
            f"federation   {done.federation}, this device is {done.name} of {done.site}",
            f"pinned root  {done.root.hex()}",
            f"gateway      {done.gateway}, front {done.front}",
            *apps,
            f"kept in      {done.directory}",
            "next         umbel client up, or umbel client install for a service",
        ]
    )
