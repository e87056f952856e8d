"""`umbel client history`: what this device was asked, did and refused."""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from .history_file import (
    CONTRIBUTED,
    OPEN,
    Asked,
    Entry,
    Totals,
    read_forgotten,
    read_history,
    read_totals,
)
from .options import Device, own_place
from .status_file import alive, read_session
from ..host.answer_form import Form, Format
from ..host.figures import size
from ..protocol.errors import SettingsError, StateError

if TYPE_CHECKING:
    from pathlib import Path

app = typer.Typer(rich_markup_mode=None, add_completion=False)

NEWEST = 50


@app.command(epilog="Example: umbel client history --day today")
def history(
    run: Annotated[str | None, typer.Option(help="Only this run.", metavar="RUN")] = None,
    day: Annotated[
        str | None, typer.Option(help="Only this day: today, or 2027-01-31.", metavar="DAY")
    ] = None,
    newest: Annotated[
        int, typer.Option("--newest", "-n", min=1, help="At most so many rows, the newest.")
    ] = NEWEST,
    totals: Annotated[
        bool, typer.Option("--totals", help="Only sums, of each run and of everything.")
    ] = False,
    device: Device = None,
    form: Form = Format.TEXT,
) -> None:
    """Show what this device was asked, what it did, and what it refused and why."""
    place = own_place(device)
    asked = Asked(run, *(_bounds(day) if day is not None else ()))
    runs, forgotten = read_totals(place, asked), read_forgotten(place)
    total = Totals.of(runs.values())
    shown = [] if totals else read_history(place, asked, newest)
    if form is Format.JSON:
        answer = {
            "device": str(place),
            "entries": [asdict(entry) for entry in shown],
            "runs": {name: asdict(of) for name, of in runs.items()},
            "totals": asdict(total),
            "forgotten": asdict(forgotten),
        }
        typer.echo(json.dumps(answer))
        return
    going = _going_on(place)
    for entry in shown:
        typer.echo(_line(entry, going))
    if len(shown) < total.entries and not totals:
        typer.echo(f"the newest of {total.entries}; --newest {total.entries} shows all")
    for name, of in runs.items() if totals else ():
        typer.echo(f"{name or 'no run'}: {_said(of)}")
    typer.echo(f"in all: {_said(total)}" if total.entries else "nothing happened yet")
    if forgotten.entries:
        typer.echo(f"older, kept as sums only: {_said(forgotten)}")


def counted(number: int, word: str) -> str:
    """Return how many of something there are."""
    return f"{number} {word}{'' if number == 1 else 's'}"


def stamp(at: float) -> str:
    """Return a time as a row has it: local, to the second."""
    try:
        return datetime.fromtimestamp(at).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    except (OverflowError, OSError, ValueError):
        return "no calendar's time"


def _bounds(day: str) -> tuple[float, float]:
    """Return when a local day begins and ends, in seconds since 1970."""
    named = f"{datetime.now().astimezone():%Y-%m-%d}" if day == "today" else day
    try:
        begin = datetime.strptime(named, "%Y-%m-%d")
        return begin.timestamp(), (begin + timedelta(days=1)).timestamp()
    except (ValueError, OverflowError, OSError):
        raise SettingsError("--day", "today, or a day like 2027-01-31", day) from None


def _going_on(place: Path) -> bool:
    """Tell whether a session is at work now: what is open then is in progress."""
    try:
        session = read_session(place)
    except StateError:
        return False
    return session is not None and alive(session)


def _line(entry: Entry, going: bool) -> str:
    """Return one row: when, what, how it ended, and why."""
    what = {"session": "session", "refusal": "refused"}.get(entry.kind, "")
    if not what:
        again = f" attempt {entry.attempt}" if entry.attempt else ""
        what = f"round {entry.round} {entry.phase}{again}"
    outcome = entry.outcome
    if outcome == OPEN:
        outcome = "in progress" if going else "interrupted"
    if entry.kind == "session":
        outcome = f"ended: {entry.reason}"
    elif entry.kind == "refusal":
        outcome = entry.reason
    elif entry.reason:
        outcome += f": {entry.reason}"
    parts = [stamp(entry.at), entry.run or "-", what, outcome]
    if entry.members:
        among = f"{entry.survivors or '?'} of {entry.members} members"
        parts.append(among if entry.outcome == CONTRIBUTED else f"{entry.members} members")
    if entry.bytes_up or entry.bytes_down:
        parts.append(f"{size(entry.bytes_up)} up, {size(entry.bytes_down)} down")
    if entry.times > 1:
        parts.append(f"{entry.times} times until {stamp(entry.until)}")
    return "  ".join(parts)


def _said(totals: Totals) -> str:
    return (
        f"{counted(totals.contributed, 'contribution')} in {counted(totals.attempts, 'attempt')}, "
        f"{counted(totals.refused, 'refusal')}, "
        f"{size(totals.bytes_up)} up, {size(totals.bytes_down)} down"
    )
