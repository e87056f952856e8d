"""The command `umbel bench`: one benchmark by name, its figures as a table or as JSON lines.

A benchmark is a module of this folder without an underscore in its name (helpers have one, besides
this page and `record`). Its docstring's first line is its summary; the source is read for it, not
imported, so `umbel bench --list` costs nothing. What the module must offer: see `record.py`.
"""

from __future__ import annotations

import ast
import importlib
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import click
import typer
from typer.core import TyperGroup

from .record import Measurement, keep
from ..host.stopping import stoppable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    Run = Callable[..., Iterable[Measurement]]

_NOT_BENCHMARKS = {"cli", "record"}
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
"""Read when numpy and torch are loaded: figures are those of one thread."""


def names() -> dict[str, str]:
    """Return every benchmark's name and summary, by name."""
    files = sorted(Path(__file__).parent.glob("*.py"))
    return {
        file.stem: (ast.get_docstring(ast.parse(file.read_text("utf-8"))) or "").partition("\n")[0]
        for file in files
        if "_" not in file.stem and file.stem not in _NOT_BENCHMARKS
    }


class Benchmarks(TyperGroup):
    """The benchmarks as subcommands, imported when one is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all benchmarks."""
        return list(names())

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a stand-in with the summary for help and completion."""
        summary = names().get(cmd_name)
        return None if summary is None else click.Command(cmd_name, help=summary)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Import the benchmark that `args` names; an unknown name is a usage error."""
        name, found, rest = super().resolve_command(ctx, args)
        return name, found and command(str(name)), rest


def command(name: str) -> click.Command:
    """Import the benchmark `name` and return its command: its own options and `--json`."""
    os.environ |= dict.fromkeys(_THREADS, "1")
    module = importlib.import_module(f".{name}", __package__)
    single = typer.Typer(add_completion=False, rich_markup_mode=None)
    # Typer would evaluate it too, and modules import its type for the type checker only.
    module.run.__annotations__.pop("return", None)
    single.command(name, help=module.__doc__)(module.run)
    built = typer.main.get_command(single)
    if built.callback is None:
        raise TypeError(f"benchmarks/{name}.py: expected a function run(...), got none")
    flag = click.Option(["--json", "as_json"], is_flag=True, help="One JSON object a case.")
    built.params.append(flag)
    built.callback = _reporting(built.callback)
    return built


def _reporting(run: Run) -> Callable[..., None]:
    """Wrap `run` to print and keep each measurement as it comes; signals end what it started."""

    @stoppable()
    def report(*, as_json: bool, **options: object) -> None:
        for measurement in run(**options):
            line = measurement.line()
            if measurement.absent is not None:
                print(f"umbel bench: {line['case']}: {measurement.absent}", file=sys.stderr)
            typer.echo(json.dumps(line) if as_json else _row(line))
            sys.stdout.flush()
            keep(measurement)

    return report


def _row(line: dict[str, object]) -> str:
    """Return one measurement as words: figure, p95, worst, peer with ratio, limit with share."""
    tail = "" if line["p95"] is None else f"p95 {line['p95']}, "
    text = f"{line['bench']} {line['case']}: {line['umbel']} {line['unit']}"
    text += f" ({tail}worst {line['worst']})"
    if line["peer"] is not None:
        text += f" · {line['ratio']}x {line['peer_name']} ({line['peer']})"
    if line["limit"] is not None:
        text += f" · {line['of_limit']} of {line['limit_name']} ({line['limit']})"
    return text


app = typer.Typer(cls=Benchmarks, no_args_is_help=True, add_completion=False)


def _list(wanted: bool) -> None:
    if wanted:
        for name, summary in names().items():
            typer.echo(f"{name:12} {summary}")
        raise typer.Exit


@app.callback()
def _bench(
    list_: Annotated[
        bool, typer.Option("--list", callback=_list, is_eager=True, help="Name the benchmarks.")
    ] = False,
) -> None:
    """Measure this machine, the peer and the limit in one run.

    Example: umbel bench secure --clients 100 --json
    """
