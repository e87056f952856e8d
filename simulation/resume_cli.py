"""`umbel runs resume RUN`: a run is started again as it was, and goes on where it stands.

The other commands of `umbel runs` only look (server/runs_cli.py); this one starts what `umbel up`
or `umbel simulate` starts, and stands here for that. How it was started is in its ledger: app,
numbers of clients, settings. The environment's settings and flags of now change none of it, for a
run that goes on with others is another run.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Annotated

import typer

from . import cli, up_cli
from .run import taken_up
from .up_plan import recorded
from ..host.answer_form import Form, Format
from ..host.places import umbel_home
from ..host.processes import end_leftovers, lock
from ..host.programs import direct
from ..host.stopping import no_orphans, stoppable
from ..protocol.errors import StateError
from ..server.federation_files import place
from ..server.review_cli import app
from ..server.run_directory import RunDirectory
from ..server.run_feed import RunFeed
from ..server.run_place import check_name
from ..server.runs_cli import Run  # noqa: TC001 - typer evaluates it
from ..server.settings import SIMULATION

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["app"]


@app.command(epilog="Example: umbel runs resume digits-1")
def resume(
    run: Run,
    keep: Annotated[
        bool, typer.Option("--keep", help="Leave the federation running after the run.")
    ] = False,
    form: Form = Format.TEXT,
) -> None:
    """Go on with a run that was stopped or killed.

    Of `umbel up`, or of `umbel simulate` where the clients had no sessions (--secure off).
    """
    home = umbel_home()
    with RunDirectory.open(home, run) as directory, RunFeed.of(home, run) as feed:
        record, over = directory.ledger.run(), feed.over
        check_name(directory.path, record.run)
    if over:
        done = f"{run} is over: it has done its {feed.records[-1].round} rounds"
        typer.echo(json.dumps({"run": run, "over": True}) if form is Format.JSON else done)
        return
    if SIMULATION in record.config:
        cli.show(taken_up(record, home), form)
        return
    plan, name, bundle = recorded(record)
    from ..server.flower_control import same_bundle  # noqa: PLC0415 - a run that is over needs no flwr

    same_bundle(plan.app, bundle)
    _end_crashed(place(home, name))
    RunDirectory.resume(home, run).close()  # nobody writes it, and its record is whole
    os.environ.update(direct())
    with stoppable(), no_orphans():
        up_cli.run_up(plan, name, keep=keep, form=form, resume=run)


def _end_crashed(folder: Path) -> None:
    """End what an `umbel up` that was killed left running: its ServerApp writes the run still."""
    if not folder.is_dir():
        return
    try:
        descriptor = lock(folder)
    except StateError:  # an `umbel up` is at work: if it is at work on this run, that is said next
        return
    try:
        left = end_leftovers(folder)
    finally:
        os.close(descriptor)
    if left:
        typer.echo(f"ended what an earlier `umbel up` left: {', '.join(left)}", err=True)
