"""`umbel runs report` and `umbel runs compare`: pages and tables about runs that are kept here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from .compare import as_json, as_text, check, compared
from .compare_page import comparison
from .figures import Figures
from .report import report as page_of
from ..resume_cli import app
from ...host.answer_form import Form, Format
from ...host.places import umbel_home
from ...host.whole_file import write_whole
from ...protocol.errors import StateError
from ...server.run_directory import RunDirectory
from ...server.runs_cli import Run  # noqa: TC001 - typer evaluates it

__all__ = ["app"]

_MODE = 0o644
"""Of a page: it holds what `umbel runs show` prints, and is made to be handed on."""

Out = Annotated[
    Path | None, typer.Option("-o", "--out", metavar="FILE", help="File to write; RUN.html.")
]


@app.command(epilog="Example: umbel runs report digits-1 -o digits.html")
def report(run: Run, out: Out = None, form: Form = Format.TEXT) -> None:
    """Write a run's pictures and numbers as one HTML file.

    It needs no network.
    """
    with RunDirectory.open(umbel_home(writes=False), run) as directory:
        figures = Figures.of(directory)
    path = out or Path(f"{run}.html")
    written = write(path, page_of(figures))
    rounds = len(figures.points)
    answer = {"run": run, "file": str(path), "bytes": written, "rounds": rounds}
    said = f"{path}: report of {run}, {rounds} rounds, {written} bytes; open it in a browser"
    typer.echo(json.dumps(answer) if form is Format.JSON else said)


@app.command(epilog="Example: umbel runs compare digits-1 digits-2 --target 0.9 -o both.html")
def compare(
    runs: Annotated[list[str], typer.Argument(metavar="RUN RUN…", help="Ids of two runs or more.")],
    target: Annotated[
        float | None,
        typer.Option(
            help="Accuracy to be reached, or loss where there is none; else what all reached."
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("-o", "--out", metavar="FILE", help="Write a page with their curves, too."),
    ] = None,
    form: Form = Format.TEXT,
) -> None:
    """Set runs side by side: accuracy at equal cost, speed, settings.

    At equal rounds, times and bytes; and whether their models have the same bits.
    """
    check(runs, target)
    home = umbel_home(writes=False)
    found = []
    for run in runs:
        with RunDirectory.open(home, run) as directory:
            found.append(Figures.of(directory))
    groups = compared(found, target)
    if out is not None:
        write(out, comparison(found, groups))
    typer.echo(json.dumps(as_json(runs, groups)) if form is Format.JSON else as_text(runs, groups))


def write(path: Path, content: bytes) -> int:
    """Write a page whole and return its length.

    Raises:
        StateError: It cannot be written.
    """
    try:
        write_whole(path, content, _MODE, lasting=False)
    except OSError as error:
        raise StateError(
            str(path), "a file that can be written", error.strerror, "choose another with --out"
        ) from error
    return len(content)
