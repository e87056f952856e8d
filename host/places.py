"""Where this machine keeps what Umbel must remember: runs, journals, keys, policies.

Order: `$UMBEL_HOME`; else `$XDG_STATE_HOME/umbel`; else `~/.local/state/umbel` (XDG base directory
specification 0.8, which has relative values of its variables ignored). Not for scratch files, and
not the app's own files.
"""

from __future__ import annotations

import os
from pathlib import Path

from ..protocol.errors import StateError


def umbel_home(*, writes: bool = True) -> Path:
    """Return the state directory, absolute; it is created with mode 0700 when it is absent.

    An existing directory keeps the mode that its owner gave it. Who only reads says so: then
    nothing is created, and the directory may be on a disk that nobody can write.

    Raises:
        StateError: The path is no directory, or cannot be made or written.
    """
    home = _wanted()
    if not writes:
        return home
    move = "point UMBEL_HOME at a directory that you can write"
    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise StateError(str(home), "a state directory", error.strerror, move) from error
    if not os.access(home, os.W_OK | os.X_OK):
        raise StateError(str(home), "a directory that this user can write", "no permission", move)
    return home


def _wanted() -> Path:
    if given := os.environ.get("UMBEL_HOME"):
        return Path(given).expanduser().absolute()
    state = Path(os.environ.get("XDG_STATE_HOME", ""))
    return (state if state.is_absolute() else Path.home() / ".local" / "state") / "umbel"
