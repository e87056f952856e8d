"""`umbel server`: the commands of whoever runs a federation's server."""

from __future__ import annotations

import typer

from ..host.lazy_group import LazyGroup, Part


class _Server(LazyGroup):
    parts = {  # noqa: RUF012 - a table
        "init": Part("server.init_cli", "Make a federation: CA, certificates, settings."),
        "token": Part("server.token_cli", "Make the line with which one device joins; list them."),
        "remove": Part("server.remove_cli", "Revoke a node, at once and for good."),
        "issuer": Part("server.issuer_cli", "Run the issuing CA: enrolment, renewal, member list."),
        "roll-ca": Part("server.roll_ca_cli", "Make a new issuing CA under the same root."),
        "up": Part("server.up_cli", "Run a federation's server, made from nothing if need be."),
        "front": Part("server.front_cli", "Run the front: the HTTPS port before the SuperLink."),
        "doctor": Part("server.doctor_cli", "Say what is wrong with a federation's server."),
        "status": Part("server.status_cli", "Show programs, runs and nodes, and why one is idle."),
        "support": Part("server.support_cli", "Gather what a bug report needs, without secrets."),
        "backup": Part("server.backup_cli", "Write what a server needs to go on into one file."),
        "restore": Part("server.restore_cli", "Put a server where there is none, from a backup."),
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

    Example: umbel server up --names fl.example.org --token press-17
    """
