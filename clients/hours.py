"""The windows of local time in which a device takes part, `limits.hours` of its policy.

The agent keeps the SuperNode ended outside of them (so that nothing polls, and no invitation starts
a process in vain); a session ends between two rounds when one closes (limits.py).

Nothing here imports flwr, grpc, numpy or cryptography: the agent keeps it in memory for months.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from .pause import local
from .policy_file import read_owned, windows
from ..protocol.documents import read_toml
from ..protocol.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_DAY_MINUTES = 24 * 60


@dataclass(frozen=True, slots=True)
class Rest:
    """That now is none of the hours; what is open may end first."""

    hours: tuple[str, ...]
    until: float
    """When the next window opens, seconds since 1970; 0 is never."""
    now: bool = False

    def __str__(self) -> str:
        """Return it as a line says it."""
        shown = ", ".join(self.hours) or "never"
        until = f"; the next begins at {local(self.until)}" if self.until else ""
        return f"outside limits.hours of this device's policy, {shown}{until}"


class Hours:
    """The hours of one device, read anew when its policy changes."""

    def __init__(self, directory: Path) -> None:
        """Read nothing yet."""
        self._file = directory / "policy.toml"
        self._seen = (0, 0)
        self._hours: tuple[str, ...] | None = None

    def rest(self, now: datetime | None = None) -> Rest | None:
        """Return that this device rests at `now`, an aware time; None while it takes part.

        A policy that cannot be read stops no SuperNode: each task refuses by itself, and says why.
        """
        at = (now or datetime.now().astimezone()).astimezone()
        hours = self._read()
        if hours is None or any(within(f"{at:%H:%M}", window) for window in hours):
            return None
        return Rest(hours, opens(hours, at))

    def _read(self) -> tuple[str, ...] | None:
        try:
            status = self._file.stat()
        except OSError:
            return None
        seen = status.st_mtime_ns, status.st_ino
        if seen != self._seen:
            self._seen, self._hours = seen, _hours_of(self._file)
        return self._hours


def within(now: str, window: str) -> bool:
    """Say whether a time `HH:MM` lies in `HH:MM-HH:MM`, which may go over midnight."""
    begin, _, end = window.partition("-")
    return begin <= now < end if begin < end else now >= begin or now < end


def opens(hours: Sequence[str], at: datetime) -> float:
    """Return when the next of the windows begins after `at`, seconds since 1970; 0 is never."""
    begins = {window.partition("-")[0] for window in hours}
    minute = at.replace(second=0, microsecond=0)
    for step in range(1, _DAY_MINUTES + 1):
        found = (minute + timedelta(minutes=step)).astimezone()
        if f"{found:%H:%M}" in begins:
            return found.timestamp()
    return 0.0


def _hours_of(file: Path) -> tuple[str, ...] | None:
    try:
        limits = read_toml(read_owned(file)).get("limits", {})
        found = windows().read(limits["hours"])
    except (SettingsError, KeyError, TypeError, ValueError):
        return None
    return found if isinstance(found, tuple) else None
