"""`umbel client leave`: the end of this device's membership."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from .history_cli import stamp
from .leave import forget, leave, read_left, stop
from .options import Device, own_place
from ..host.answer_form import Form, Format
from ..protocol.errors import SettingsError, StateError

if TYPE_CHECKING:
    from pathlib import Path

    from .leave import Left

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command(name="leave", epilog="Example: umbel client leave")
def leave_(
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    now: Annotated[
        bool, typer.Option("--now", help="Break off the round in progress; else it ends first.")
    ] = False,
    forget_: Annotated[
        bool, typer.Option("--forget", help="Remove the record, the policy and the rest, too.")
    ] = False,
    device: Device = None,
    form: Form = Format.TEXT,
) -> None:
    """Leave the federation for good: the server removes this node, its keys are destroyed.

    May be called again at any time. To come back takes a new token.
    """
    place = own_place(device)
    before = _before(place)
    if before is None and not yes:
        _ask(place)
    if before is None:
        stop(place, _say, now=now)
    left = before if before is not None and before.told and before.wiped else leave(place, _say)
    if forget_:
        forget(place)
    if form is Format.JSON:
        answer = asdict(left) | {"device": str(place), "forgotten": forget_}
        typer.echo(json.dumps({k: v for k, v in answer.items() if k != "request"}))
        return
    name = left.federation or "its federation"
    typer.echo(f"this device left {name} on {stamp(left.since)}; its keys are gone")
    if left.told:
        typer.echo("the server has removed the node")
    else:
        typer.echo(
            "the server does not know yet: call this again when it can be reached, or tell its "
            f"operator: umbel server remove {left.node or 'NODE'}"
        )
    if not forget_:
        typer.echo(f"its record stays in {place}; --forget removes that too")


def _before(place: Path) -> Left | None:
    try:
        return read_left(place)
    except StateError:  # said, and mended, by `leave`
        return None


def _ask(place: Path) -> None:
    """Ask whoever is at the terminal.

    Raises:
        SettingsError: Nobody is.
        typer.Abort: The answer is no.
    """
    if not sys.stdin.isatty():
        raise SettingsError("leave", "--yes where nobody can be asked", "nothing")
    question = f"{place}: destroy its keys and leave the federation for good?"
    typer.confirm(question, abort=True, err=True)


def _say(line: str) -> None:
    typer.echo(line, err=True)
