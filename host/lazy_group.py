"""A group of commands that are known by name and summary, and imported when one is called.

So that `umbel --help` costs neither numpy nor torch nor flwr, and `umbel client up`, which runs
for months on a small device, only what it needs.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, NamedTuple

import click
import typer
import typer.core

if TYPE_CHECKING:
    from collections.abc import Mapping

_PACKAGE = __package__.rpartition(".")[0]

# Where rich is installed, typer writes `\\[default: 5]` for rich's sake, in plain help too.
typer.core.HAS_RICH = False


class Part(NamedTuple):
    """Where a subcommand lives, and the line about it in its group's help."""

    module: str
    """Its path inside this package; it has `app: typer.Typer`."""
    summary: str


class LazyGroup(typer.core.TyperGroup):
    """The subcommands of `parts`, which a subclass says."""

    parts: Mapping[str, Part]

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order of the table."""
        return list(self.parts)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a stand-in that carries the summary: all that help and completion need."""
        part = self.parts.get(cmd_name)
        return part and click.Command(cmd_name, help=part.summary)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Import the part that `args` names; an unknown name is a usage error."""
        name, command, rest = super().resolve_command(ctx, args)
        return name, command and load(self.parts[str(name)].module), rest


def load(module: str) -> click.Command:
    """Import a part by its path inside this package and return its command."""
    app: typer.Typer = importlib.import_module(f".{module}", _PACKAGE).app
    app.rich_markup_mode = None
    return typer.main.get_command(app)
