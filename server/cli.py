"""`umbel server`: the commands of whoever runs a federation's server."""

from __future__ import annotations

import typer

from ..host.lazy_group import LazyGroup, Part


class _Server(LazyGroup):
    parts = {  # noqa: RUF012 - a table
        "front": Part("server.front_cli", "Run the front: the HTTPS port before the SuperLink."),
        "doctor": Part("server.doctor_cli", "Say what is wrong with a federation's server."),
    }


app = typer.Typer(
    cls=_Server,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)


@app.callback()
def _server() -> None:
    """Make and run a federation's server, and look after it.

    Example: umbel server front --federation DIR --superlink 127.0.0.1:8000
    """
