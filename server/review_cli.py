"""`umbel runs review RUN`: what a run asks people to look at, and what they decide about it.

Without a decision it only looks. A decision is appended to the run's ledger, whatever process
writes the run meanwhile; a run that waits for it goes on or ends within a second.
"""

from __future__ import annotations

import json
from contextlib import suppress
from datetime import UTC, datetime
from getpass import getuser
from socket import gethostname
from typing import Annotated

import typer

from . import reviews
from .ledger import Ledger
from .run_directory import RunDirectory
from .run_place import check_name
from .runs_cli import Run, app
from ..host.answer_form import Form, Format
from ..host.places import umbel_home
from ..protocol.errors import SettingsError

__all__ = ["app"]

Number = Annotated[int | None, typer.Option(metavar="N", help="Let the run go on past item N.")]
Reject = Annotated[int | None, typer.Option(metavar="N", help="End the run because of item N.")]
Why = Annotated[str | None, typer.Option(help="The reason, kept in the ledger; needed to decide.")]
By = Annotated[str | None, typer.Option(help="Who decides. [default: this user at this machine]")]
Always = Annotated[
    bool, typer.Option("--always", help="Raise no item of that signal any more in this run.")
]


@app.command(epilog='Example: umbel runs review digits-1 --approve 2 --why "the site is in repair"')
def review(
    run: Run,
    approve: Number = None,
    reject: Reject = None,
    why: Why = None,
    by: By = None,
    always: Always = False,
    form: Form = Format.TEXT,
) -> None:
    """List what a run asks people to look at, or decide about it.

    A decision is about one item.
    """
    number = approve if approve is not None else reject
    if approve is not None and reject is not None:
        raise SettingsError("--reject", "one decision at a time", "two", "leave one out")
    if number is None and (flag := _unused(why, by, always=always)):
        raise SettingsError(flag, "with --approve or --reject", "neither", "name the item")
    home = umbel_home(writes=number is not None)
    with RunDirectory.open(home, run) as directory:
        path = directory.ledger.path
        directory.ledger.verify()
        if number is not None:
            check_name(directory.path, directory.ledger.run().run)  # nobody would hear of it
            with Ledger(path) as ledger:
                reviews.decide(
                    ledger, number, approve=approve is not None, by=_who() if by is None else by,
                    why=why or "", at=_stamp(), always=always,
                )  # fmt: skip
        found = reviews.items(directory.ledger)
    if form is Format.JSON:
        waits = bool(reviews.waiting(found))
        rows = [reviews.as_json(item) for item in found]
        typer.echo(json.dumps({"run": run, "waits": waits, "items": rows}))
    elif number is not None:
        typer.echo("\n".join(_lines(run, [item for item in found if item.number == number])))
    else:
        typer.echo(_text(run, found))


def _text(run: str, found: tuple[reviews.Item, ...]) -> str:
    if not found:
        return f"{run} raised no item for review"
    lines = _lines(run, list(found))
    if waits := reviews.waiting(found):
        lines.append(reviews.move(run, waits))
    return "\n".join(lines)


def _lines(run: str, found: list[reviews.Item]) -> list[str]:
    """Return a line for each item, and one for what was decided about it."""
    lines = []
    for item in found:
        state = f"{item.state}, it pauses the run" if item.waits else item.state
        lines.append(f"{reviews.said(item)} ({state})")
        if (made := item.decision) is not None:
            always = ", for the rest of the run" if made.always else ""
            lines.append(f"  {item.state} by {made.by} at {made.at}{always}: {made.why}")
    return lines


def _unused(why: str | None, by: str | None, *, always: bool) -> str:
    """Return the first flag of a decision that was given without one."""
    given = {"--why": why is not None, "--by": by is not None, "--always": always}
    return next((flag for flag, said in given.items() if said), "")


def _who() -> str:
    """Return who calls: the user at the machine."""
    user = "unknown"
    with suppress(OSError, KeyError, ImportError):  # a user id that no file of users knows
        user = getuser()
    return f"{user}@{gethostname()}"


def _stamp() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
