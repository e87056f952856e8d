"""`umbel client`: the commands of a device's owner."""

from __future__ import annotations

import typer

from ..host.lazy_group import LazyGroup, Part


class _Client(LazyGroup):
    parts: dict[str, Part] = {  # noqa: RUF012 - a table
        "enrol": Part("clients.enrol_cli", "Make this machine a device, by a token."),
        "up": Part("clients.up_cli", "Take part: run this device's agent."),
        "install": Part("clients.install_cli", "Let systemd run this device's agent."),
        "uninstall": Part("clients.uninstall_cli", "Remove that service again."),
        "renew": Part("clients.renew_cli", "Get new certificates for this device's keys."),
        "apps": Part("clients.apps_cli", "See which app bundles may run here, approve or reject."),
        "status": Part("clients.status_cli", "Show what this device is doing now."),
        "history": Part("clients.history_cli", "Show what this device did and refused."),
        "pause": Part("clients.pause_cli", "Take no part for a while."),
        "leave": Part("clients.leave_cli", "Leave the federation for good."),
        "resume": Part("clients.resume_cli", "Take part again."),
        "support": Part("clients.support_cli", "Gather what a bug report needs, without secrets."),
        "doctor": Part("clients.doctor_cli", "Say what keeps this device from taking part."),
    }


app = typer.Typer(cls=_Client, no_args_is_help=True, add_completion=False, rich_markup_mode=None)


@app.callback()
def _client() -> None:
    """Let this device take part in a federation.

    Example: umbel client enrol TOKEN
    """
