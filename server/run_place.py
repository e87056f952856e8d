"""Where a run lies, whether one has begun there, and who writes it."""

from __future__ import annotations

import fcntl
import os
import re
from typing import TYPE_CHECKING

from .ledger_file import is_blank
from ..protocol.errors import SettingsError, StateError

if TYPE_CHECKING:
    from pathlib import Path

RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def place(root: Path, run_id: str) -> Path:
    """Return the directory of a run under Umbel's home.

    Raises:
        SettingsError: The id is no plain name.
    """
    if not RUN_ID.fullmatch(run_id):
        raise SettingsError("run id", "letters, digits, `.`, `_`, `-`, at most 64", run_id)
    return root / "runs" / run_id


def check_new(path: Path) -> None:
    """Refuse to begin a run where one has begun.

    Raises:
        StateError: The ledger there knows a model or is no ledger, or a model is there.
    """
    folder = path / "rounds"
    models = folder.is_dir() and any(folder.iterdir())
    if path.exists() and (models or not is_blank(path / "ledger.sqlite")):
        raise StateError(
            str(path), "a new run", "one that exists", "choose another id or resume it"
        )


def check_name(path: Path, run_id: str) -> None:
    """Refuse a run whose directory has another name than the run: it is a copy.

    Args:
        path: The directory.
        run_id: What the run's record says.

    Raises:
        StateError: The two differ.
    """
    if run_id != path.name:
        move = "rename it, or name the run"
        raise StateError(str(path), f"the name of its run, {run_id}", "another", move)


def locked(path: Path) -> int:
    """Take the writer's lock, an flock on the directory itself; it goes with the process.

    Raises:
        StateError: Another process holds it.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        raise StateError(
            str(path), "a run that nobody writes", "another process holds it", "stop that process"
        ) from error
    return descriptor
