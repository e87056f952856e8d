"""The owner's word that this device takes no part for a while: a file, obeyed by agent and session.

`umbel client pause` writes `paused`, `umbel client resume` removes it. A session begins no further
attempt while it stands, and ends between two; the agent ends its SuperNode then. With `now` an
attempt that is open is broken off, too: the device is one that was lost, which a secure round
outlives if enough others are there.

`until` is a time of the device's own clock, because that is what an owner says (`--until 18:00`). A
file that cannot be read is a pause without end: who paused a device wanted it still.

Nothing here imports flwr, grpc, numpy or cryptography: the agent keeps it in memory for months.
"""

from __future__ import annotations

import json
import math
import os
import re
import time
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, NamedTuple

from .status_file import read_small
from ..host.whole_file import sync_directory, write_whole
from ..protocol.documents import read_json
from ..protocol.errors import SettingsError, StateError

if TYPE_CHECKING:
    from pathlib import Path

PAUSED, LEFT = "paused", "left"
_UNITS = {"m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_LONGEST = 366 * 86400
_SPAN = re.compile(r"([1-9][0-9]{0,5})([mhdw])")
_HOUR = re.compile(r"([01]?[0-9]|2[0-3]):([0-5][0-9])")


@dataclass(frozen=True, kw_only=True, slots=True)
class Pause:
    """What the owner said; times in seconds since 1970 by the device's own clock."""

    since: float
    until: float = 0.0
    """0 is until `umbel client resume`."""
    now: bool = False
    """Whether an attempt that is open is broken off."""

    def __str__(self) -> str:
        """Return it as a line says it."""
        if not self.until:
            return "paused by its owner until `umbel client resume`"
        return f"paused by its owner until {local(self.until)}"


def paused(directory: Path, now: float | None = None) -> Pause | None:
    """Return the pause that is in force at `now`, seconds since 1970; None where there is none."""
    try:
        pause = _read(directory / PAUSED)
    except StateError:
        return Pause(since=0.0)
    at = time.time() if now is None else now
    return None if pause is not None and 0 < pause.until <= at else pause


class Halt(NamedTuple):
    """Why this device takes part in nothing, and whether what is open is broken off."""

    why: str
    now: bool


def halted(directory: Path, now: float | None = None) -> Halt | None:
    """Return why the owner wants no part taken at `now`, seconds since 1970, if so."""
    if has_left(directory):
        return Halt("this device has left its federation", True)
    pause = paused(directory, now)
    return None if pause is None else Halt(str(pause), pause.now)


def has_left(directory: Path) -> bool:
    """Tell whether `umbel client leave` was called: then this device takes part in nothing."""
    return os.path.lexists(directory / LEFT)


def write_pause(directory: Path, pause: Pause) -> None:
    """Pause the device; on the disk when this returns.

    Raises:
        StateError: The disk does not take it.
    """
    path = directory / PAUSED
    try:
        write_whole(path, json.dumps(asdict(pause)).encode())
    except OSError as error:
        raise StateError(str(path), "a file that can be written", error.strerror) from error


def remove_pause(directory: Path) -> None:
    """End the pause, whatever is in its file.

    Raises:
        StateError: The file cannot be removed.
    """
    path = directory / PAUSED
    try:
        path.unlink(missing_ok=True)
        sync_directory(directory)
    except OSError as error:
        raise StateError(str(path), "a file that can be removed", error.strerror) from error


def span(text: str) -> float:
    """Return the seconds of `90m`, `2h`, `3d` or `1w`.

    Raises:
        SettingsError: It is none, or more than a year.
    """
    match = _SPAN.fullmatch(text)
    seconds = int(match[1]) * _UNITS[match[2]] if match else 0
    if not 0 < seconds <= _LONGEST:
        raise SettingsError("--for", "a time like 90m, 2h, 3d or 1w, a year at most", text)
    return float(seconds)


def moment(text: str, now: datetime) -> float:
    """Return the next time of `18:00`, or of a date and time in ISO 8601, in seconds since 1970.

    Args:
        text: Local time unless it says its own offset.
        now: The device's clock, with its zone.

    Raises:
        SettingsError: It is no time, is past, or is more than a year away.
    """
    match = _HOUR.fullmatch(text)
    try:
        if match:
            plain = now.replace(tzinfo=None, hour=int(match[1]), minute=int(match[2]), second=0)
            found = plain.replace(microsecond=0).astimezone()
            if found <= now:
                found = (plain.replace(microsecond=0) + timedelta(days=1)).astimezone()
        else:
            found = datetime.fromisoformat(text).astimezone()
        ahead = found.timestamp() - now.timestamp()
    except (ValueError, OverflowError, OSError):
        ahead = 0.0
    if not 0 < ahead <= _LONGEST:
        expected = "a time to come within a year, like 18:00 or 2027-01-31T08:00"
        raise SettingsError("--until", expected, text)
    return now.timestamp() + ahead


def local(at: float) -> str:
    """Return a time as the owner reads it: local, to the minute, with its day."""
    try:
        return datetime.fromtimestamp(at).astimezone().strftime("%a %d %b %Y %H:%M %Z")
    except (OverflowError, OSError, ValueError):
        return "a time that no calendar has"


def _read(path: Path) -> Pause | None:
    data = read_small(path)
    if data is None:
        return None
    try:
        values = read_json(data)
        since, until, now = values["since"], values["until"], values["now"]
        good = len(values) == len(Pause.__slots__) and isinstance(now, bool)
        for at in (since, until):
            good = good and type(at) in (int, float) and math.isfinite(at) and at >= 0
    except (ValueError, TypeError, KeyError, IndexError, OverflowError):
        good = False
    if not good:
        raise StateError(str(path), "what `umbel client pause` wrote", "something else")
    return Pause(since=float(since), until=float(until), now=now)
