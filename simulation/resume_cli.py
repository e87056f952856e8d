"""`umbel runs resume RUN`: the federation of a run is started again, and goes on with it.

The other commands of `umbel runs` only look (server/runs_cli.py); this one starts what `umbel up`
starts, and stands here for that. How the federation was started is in the run's ledger: app,
numbers of clients, settings. The environment's settings and flags of now change none of it, for a
run that goes on with others is another run.
"""

from __future__ import annotations

import json
import os
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from . import up_cli
from .cli import Format as UpFormat
from .dev_federation import place
from .processes import end_leftovers, lock
from .programs import direct
from .run_feed import FLOWER_RUN, is_over
from .stopping import no_orphans, stoppable
from .up_plan import UpPlan
from ..protocol.errors import StateError
from ..server.run_directory import RunDirectory
from ..server.runs_cli import Form, Format, Run, app
from ..strategies.places import umbel_home

if TYPE_CHECKING:
    from ..server.ledger import RunRecord

__all__ = ["app"]

_TYPES = {
    "app": str, "name": str, "edge": int, "gpu": int, "secure": bool, "rounds": int,
    "settings": dict, "init": str, "config": dict, "bundle": str,
}  # fmt: skip


@app.command(epilog="Example: umbel runs resume digits-1")
def resume(
    run: Run,
    keep: Annotated[
        bool, typer.Option("--keep", help="Leave the federation running after the run.")
    ] = False,
    form: Form = Format.TEXT,
) -> None:
    """Go on with a run of `umbel up` that was stopped or killed."""
    home = umbel_home()
    with RunDirectory.open(home, run) as directory:
        record, records = directory.ledger.run(), directory.ledger.rounds()
    if is_over(records):
        done = f"{run} is over: it has done its {records[-1].round} rounds"
        typer.echo(json.dumps({"run": run, "over": True}) if form is Format.JSON else done)
        return
    plan, name, bundle = planned(record)
    _check_app(plan.app, bundle)
    _end_crashed(place(home, name))
    RunDirectory.resume(home, run).close()  # nobody writes it, and its record is whole
    os.environ.update(direct())
    with stoppable(), no_orphans():
        up_cli.run_up(plan, name, keep=keep, form=UpFormat(form.value), resume=run)


def planned(record: RunRecord) -> tuple[UpPlan, str, str]:
    """Return what `umbel up` did for a run, the federation's name, and the bundle's SHA-256.

    Raises:
        StateError: It was no run of `umbel up`, or the record of how it was started is damaged.
    """
    if FLOWER_RUN not in record.config:
        raise StateError(
            f"run {record.run}", "a run of `umbel up`", "a simulated one",
            "a simulation is started again: `umbel simulate APP`",
        )  # fmt: skip
    said: Any = record.config.get("started")
    if not isinstance(said, dict) or not said.get("app"):
        raise StateError(
            f"run {record.run}", "a run of `umbel up`", "one that something else started",
            "start it again as it was, with UMBEL_RUN and UMBEL_RESUME=1 in its environment",
        )  # fmt: skip
    wrong = sorted(key for key, kind in _TYPES.items() if type(said.get(key)) is not kind)
    if wrong:
        raise StateError(
            f"run {record.run}: started", f"{', '.join(wrong)}", "others", "start a new run"
        )
    plan = UpPlan(
        app=Path(said["app"]), edge=said["edge"], gpu=said["gpu"], drop=0, secure=said["secure"],
        umbel=True, config=said["config"], settings=said["settings"], rounds=said["rounds"],
        init=Path(said["init"]) if said["init"] else None,
    )  # fmt: skip
    return plan, said["name"], said["bundle"]


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


def _check_app(app_folder: Path, bundle: str) -> None:
    """Refuse an app that has changed: its devices and every round are bound to its bundle."""
    from .flower_control import build_bundle  # noqa: PLC0415 - a wrong run need not import flwr

    found = sha256(build_bundle(app_folder)).hexdigest()
    if found != bundle:
        raise StateError(
            f"app {app_folder}", f"the bundle {bundle[:16]} that the run began with", found[:16],
            "restore the app, or start a new run of it with --init and the model so far",
        )  # fmt: skip
