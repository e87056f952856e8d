"""The command `umbel`.

Each subcommand lives in its own part and is imported when it is called, so that `umbel --help`
costs neither numpy nor torch nor flwr. This page holds the table, and what the commands share:

    exit status  0    done
                 2    a setting, a file or this machine is wrong; the operator acts
                 3    a round failed; the model is unchanged and the run can be resumed
                 130  stopped by Ctrl-C
                 141  the reader of the output left, as `| head` does

An error that the platform raises on purpose is one line on stderr; the text of a KeyboardInterrupt
is the next move. Anything else is a bug and keeps its traceback. Help is plain text: NO_COLOR finds
nothing to switch off.
"""

from __future__ import annotations

import errno
import os
import sys
from typing import TYPE_CHECKING, Annotated

import click
import typer

from . import __version__
from .host.lazy_group import LazyGroup, Part
from .protocol.errors import RoundFailed, UmbelError

if TYPE_CHECKING:
    from collections.abc import Sequence


PARTS = {
    "up": Part("simulation.up_cli", "Run an app on a real federation on this machine."),
    "down": Part("simulation.down_cli", "End the federation that `umbel up` left running."),
    "simulate": Part("simulation.cli", "Run an app's whole federation in one process."),
    "plan": Part("simulation.capacity.cli", "Say what to expect of a fleet before a run."),
    "core": Part("server.core_cli", "Run the core service: gateway and aggregation core."),
    "server": Part("server.cli", "Make and run a federation's server, and look after it."),
    "client": Part("clients.cli", "Let this device take part in a federation."),
    "fleet": Part("simulation.fleet_cli", "Look at a fleet's description, fleet.toml."),
    "runs": Part("simulation.pages.cli", "List, show, compare, check, resume the runs kept here."),
    "new": Part("simulation.new", "Start an app from a template; needs no network."),
    "keygen": Part("simulation.keygen", "Make a publisher's key, which signs apps."),
    "sign": Part("simulation.sign_cli", "Sign an app, so that devices that trust the key run it."),
    "bench": Part("benchmarks.cli", "Measure this machine, the peer and the limit."),
}

FAILED, ROUND_FAILED, PIPE_CLOSED, INTERRUPTED = 2, 3, 141, 130


class _Umbel(LazyGroup):
    parts = PARTS


umbel = typer.Typer(
    cls=_Umbel,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"umbel {__version__}")
        raise typer.Exit


@umbel.callback()
def _umbel(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Federated training in which the server gets the sum of the updates, and no single one.

    Example: umbel new hello && umbel simulate hello
    """


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status."""
    try:
        return _invoke(list(sys.argv[1:] if argv is None else argv))
    except RoundFailed as error:
        return _say(str(error), ROUND_FAILED)
    except BrokenPipeError:
        # The reader of our output left, as `head` does. Python would complain once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return PIPE_CLOSED
    except (UmbelError, OSError) as error:
        full = isinstance(error, OSError) and error.errno in {errno.ENOSPC, errno.EDQUOT}
        return _say(f"{error}; free the disk, then try again" if full else str(error), FAILED)
    except (KeyboardInterrupt, click.Abort) as stopped:
        move = f"; {stopped}" if str(stopped) else ""
        return _say(f"interrupted{move}", INTERRUPTED)


def _invoke(args: list[str]) -> int:
    """Parse and run; click's own `main` would end the process and write lines of its own."""
    command = typer.main.get_command(umbel)
    try:
        with command.make_context("umbel", args) as context:
            status = command.invoke(context)
        sys.stdout.flush()  # a closed pipe shows here, not while the interpreter ends
    except click.exceptions.Exit as end:
        return end.exit_code
    except click.exceptions.NoArgsIsHelpError as no_args:
        no_args.show()
        return no_args.exit_code
    except click.ClickException as error:
        return _say(_usage(error), error.exit_code)
    return status if isinstance(status, int) else 0


def _usage(error: click.ClickException) -> str:
    """Return click's complaint as one line with the next move."""
    text = " ".join(error.format_message().split())
    context = error.ctx if isinstance(error, click.UsageError) else None
    return f"{text.rstrip('.')}; see `{context.command_path} --help`" if context else text


def _say(text: str, status: int) -> int:
    print("umbel: " + " ".join(text.split()), file=sys.stderr)
    return status
