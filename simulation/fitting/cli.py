"""`umbel fleet fit RUN…`: a fleet.toml out of what runs showed."""

from __future__ import annotations

import json
from pathlib import Path  # noqa: TC003 - typer evaluates it
from typing import Annotated

import typer

from .fit import fit, update
from .moved import as_text
from .observed import observe
from .written import text
from ..fleet.toml import read
from ...host.answer_form import Form, Format
from ...host.places import umbel_home
from ...host.whole_file import write_whole
from ...protocol.errors import StateError

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command("fit", epilog="Example: umbel fleet fit wards-1 wards-2 -o fleet.toml")
def fit_(
    runs: Annotated[list[str], typer.Argument(metavar="RUN…", help="As `umbel runs list` says.")],
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="FILE", help="Write the fleet.toml there."),
    ] = None,
    prior: Annotated[
        Path | None,
        typer.Option(metavar="FLEET.toml", help="What is thought of the fleet before the runs."),
    ] = None,
    form: Form = Format.TEXT,
) -> None:
    """Fit a fleet's devices to what runs showed, and say how far that moved each number.

    A run's ledger says when each of its clients was ready and when its update had come, who was
    lost and when. The file is for `umbel plan` and `umbel simulate`; the model: docs/planning.md.
    """
    observed = observe(umbel_home(writes=False), runs)
    learned = fit(observed) if prior is None else update(read(prior), observed)
    seen = f"{observed.rounds} rounds among {len(observed.home)} devices"
    about = [f"umbel fleet fit {' '.join(observed.runs)}: {seen}", *_cannot(prior)]
    written = text(learned.description, about)
    if output is not None:
        try:
            write_whole(output, written.encode(), 0o644)
        except OSError as error:
            raise StateError(str(output), "a file that can be written", error.strerror) from error
    if form is Format.JSON:
        answer = {
            "runs": observed.runs,
            "rounds": observed.rounds,
            "devices": len(observed.home),
            "moved": [item.as_json() for item in learned.moved],
            "fleet": written,
            "file": None if output is None else str(output),
        }
        typer.echo(json.dumps(answer))
        return
    typer.echo(seen)
    typer.echo(as_text(learned.moved))
    typer.echo(f"\n{written.rstrip()}" if output is None else f"\nwritten: {output}")


def _cannot(prior: Path | None) -> list[str]:
    """Return what the numbers of a fleet without a description before it cannot tell apart."""
    if prior is not None:
        return []
    return ["getting the model counts as training: ledgers do not tell the two apart"]
