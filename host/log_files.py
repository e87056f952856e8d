"""Logs that stay small: what a program's log has beyond a bound is moved to one older file.

    logs/core.log      what the program writes now, at most LOG_BYTES and what came since a look
    logs/core.log.1    the LOG_BYTES before it, and of what came while they were copied a MiB

Programs hold their logs open for append, and cannot be told to open another file. So the log is
copied and then cut to nothing: the next line is its first. A line that is written between the two
is lost. Where the disk has no room for the copy, the older lines go.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

from .programs import private

if TYPE_CHECKING:
    from pathlib import Path

LOG_BYTES = 8 << 20
_PIECE = 1 << 20


def bound(folder: Path, limit: int) -> None:
    """Look at every log in a folder, and move aside what is beyond `limit` bytes."""
    for log in folder.glob("*.log"):
        with suppress(FileNotFoundError):  # an `umbel up` that begins removes the earlier one's
            if log.stat().st_size > limit:
                _turn(log, limit)


def _turn(log: Path, limit: int) -> None:
    """Keep the last `limit` bytes of a log as its older file, and begin it anew."""
    older, copy = log.with_name(f"{log.name}.1"), log.with_name(f"{log.name}.new")
    try:
        with open(log, "rb") as source, open(copy, "wb", opener=private) as target:
            source.seek(-limit, os.SEEK_END)
            source.readline(_PIECE)  # begin with a whole line
            written = whole = 0
            while piece := source.read(min(limit + _PIECE - written, _PIECE)):
                if b"\n" in piece:
                    whole = written + piece.rindex(b"\n") + 1
                written += target.write(piece)
            target.truncate(whole)  # a line that is being written, or does not fit, is cut off
        copy.replace(older)
    except FileNotFoundError:
        raise
    except OSError:
        for file in (copy, older):
            file.unlink(missing_ok=True)
    os.truncate(log, 0)
