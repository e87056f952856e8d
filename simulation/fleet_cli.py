"""`umbel fleet`: the commands about a fleet's description."""

from __future__ import annotations

import typer

from ..host.lazy_group import LazyGroup, Part


class _Fleet(LazyGroup):
    parts = {  # noqa: RUF012 - a table
        "fit": Part("simulation.fitting.cli", "Fit a fleet to what runs showed."),
        "show": Part("simulation.show_cli", "Show what devices a description yields."),
    }


app = typer.Typer(
    cls=_Fleet,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)


@app.callback()
def _fleet() -> None:
    """Look at a fleet's description, fleet.toml, or make one of what runs showed.

    Example: umbel fleet show fleet.toml --clients 1000
    """
