"""`umbel down`: end the federation that `umbel up --keep` left running, or that a crash left."""

from __future__ import annotations

import json
import os
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

import typer

from ..host import process_tree as tree
from ..host.answer_form import Form, Format
from ..host.places import umbel_home
from ..host.processes import end_leftovers, lock, read_state
from ..protocol.errors import StateError
from ..server.federation_files import place
from ..server.run_directory import sweep

if TYPE_CHECKING:
    from pathlib import Path

app = typer.Typer(rich_markup_mode=None, add_completion=False)

PATIENCE_S = 60.0
"""How long a supervisor may take to end everything before it is ended itself."""
_POLL_S = 0.05


@app.command(epilog="Example: umbel down --name dev")
def down(
    name: Annotated[str, typer.Option(help="Name of the federation.")] = "dev",
    form: Form = Format.TEXT,
) -> None:
    """End every process of a federation on this machine; its keys and its runs stay."""
    home = umbel_home()
    ended = end(place(home, name))
    sweep(home)
    if form is Format.JSON:
        typer.echo(json.dumps({"federation": name, "ended": ended}))
    else:
        typer.echo(f"ended: {', '.join(ended)}" if ended else f"nothing of {name} was running")


def end(folder: Path) -> list[str]:
    """End the processes of a federation's folder and return the names of its programs.

    Raises:
        StateError: `up.json` cannot be read.
    """
    state = read_state(folder) if folder.is_dir() else None
    if state is None:
        return []
    supervisor = tree.recorded(state["supervisor"]["pid"], state["supervisor"]["started"])
    if supervisor is not None and _held(folder):
        supervisor.terminate()
        if not tree.wait_gone([supervisor], PATIENCE_S):
            tree.kill([supervisor])
    until = time.monotonic() + PATIENCE_S
    while _held(folder):  # of one that ends, or of an `umbel up` that starts in between
        if time.monotonic() > until:
            raise StateError(str(folder), "no other `umbel up`", "one that runs", "end that first")
        time.sleep(_POLL_S)
    descriptor = lock(folder)
    try:
        left = end_leftovers(folder)
    finally:
        os.close(descriptor)
    known = [item["program"]["name"] for item in state["programs"]]
    return known if supervisor is not None else list(left)


def _held(folder: Path) -> bool:
    """Tell whether a supervisor is at work in the folder."""
    with suppress(StateError):
        os.close(lock(folder))
        return False
    return True
