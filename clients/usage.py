"""What a device has used in the last 24 hours, kept across restarts beside its journal.

    usage.json    {"version": 1, "hours": {HOUR: [bytes, metered bytes, rounds]}}

HOUR is an hour since 1970 by the device's own clock. An hour counts until all of it is more than 24
hours past, so a limit is never exceeded in any 24 hours. Hours that lie ahead, because a clock was
set back, count likewise, and those further off than a day are forgotten.

What is written is ahead of what was used: by `AHEAD`, or by more where the caller is about to use
it. A process that is killed leaves more on the account than it used, never
less, and the disk is not asked for every byte. Who closes it writes down what was used.

One process at a time: the caller holds the journal's lock.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, NamedTuple

from .policy_file import read_owned
from ..host.whole_file import write_whole
from ..protocol.documents import read_json
from ..protocol.errors import SettingsError, StateError

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime
    from pathlib import Path

FILE = "usage.json"
HOUR = 3600
DAY_HOURS = 24
_MOST = 2 * DAY_HOURS + 2
_LARGEST = 2**62


class Used(NamedTuple):
    """Bytes both ways, those on a metered link among them, and rounds."""

    bytes: int = 0
    metered: int = 0
    rounds: int = 0

    def plus(self, other: Used) -> Used:
        """Return the sum of both."""
        return Used(*(a + b for a, b in zip(self, other, strict=True)))


AHEAD = Used(1 << 20, 1 << 20, 10)


class Usage:
    """The account of one device; without a file it lives as long as this object."""

    def __init__(self, file: Path | None, now: Callable[[], datetime], ahead: Used = AHEAD) -> None:
        """Read what earlier processes used; `ahead` is how far the file is ahead of this one.

        Raises:
            StateError: The file is damaged, or others could have written it.
        """
        self._file, self._now, self._ahead = file, now, ahead
        self._earlier: dict[int, Used] = {}
        self._own: dict[int, Used] = {}
        self._durable, self._at = Used(), 0
        self._total = Used()
        if file is not None and file.exists():
            try:
                self._earlier = parse(read_owned(file))
            except (ValueError, SettingsError) as error:
                move = "remove it: the day's account begins anew"
                raise StateError(str(file), "an account of what was used", error, move) from error

    def day(self) -> Used:
        """Return what was used in the last 24 hours."""
        return self._within(self._earlier).plus(self._within(self._own))

    def earlier(self) -> Used:
        """Return what earlier processes used of the last 24 hours."""
        return self._within(self._earlier)

    def add(self, used: Used) -> None:
        """Count what was used just now; durable before this returns if too little was so far.

        Raises:
            StateError: It cannot be written.
        """
        hour = self._hour()
        self._own[hour] = self._own.get(hour, Used()).plus(used)
        self._total = self._total.plus(used)
        self.about_to_use(Used())

    def about_to_use(self, wanted: Used) -> None:
        """Put on the account what is going to be used, durable before this returns.

        Raises:
            StateError: It cannot be written.
        """
        needed = self._total.plus(wanted)
        short = any(now > kept for now, kept in zip(needed, self._durable, strict=True))
        if short or self._hour() != self._at:
            least = self._ahead if needed.metered else self._ahead._replace(metered=0)
            self._write(Used(*map(max, wanted, least)))

    def close(self) -> None:
        """Write down what was used, and no more.

        Raises:
            StateError: It cannot be written.
        """
        if self._total != self._durable:
            self._write(Used())

    def _hour(self) -> int:
        return int(self._now().timestamp()) // HOUR

    def _within(self, hours: dict[int, Used]) -> Used:
        total, now = Used(), self._hour()
        for hour, used in hours.items():
            if abs(now - hour) <= DAY_HOURS:
                total = total.plus(used)
        return total

    def _write(self, ahead: Used) -> None:
        self._durable, self._at = self._total.plus(ahead), self._hour()
        if self._file is None:
            return
        hour = self._hour()
        rows = {}
        for at in sorted(self._earlier.keys() | self._own.keys() | {hour}):
            if abs(hour - at) <= DAY_HOURS:
                row = self._earlier.get(at, Used()).plus(self._own.get(at, Used()))
                rows[str(at)] = row.plus(ahead) if at == hour else row
        text = json.dumps({"version": 1, "hours": rows}) + "\n"
        try:
            write_whole(self._file, text.encode())
        except OSError as error:
            expected = "an account of what was used that can be written"
            raise StateError(str(self._file), expected, error.strerror or error) from error


def parse(text: str) -> dict[int, Used]:
    """Return the hours of an account.

    Raises:
        ValueError: It is none.
    """
    tree = read_json(text)
    if not isinstance(tree, dict) or tree.keys() != {"version", "hours"} or tree["version"] != 1:
        raise ValueError("expected version 1 and hours")
    if not isinstance(tree["hours"], dict) or len(tree["hours"]) > _MOST:
        raise ValueError(f"hours: expected at most {_MOST}")
    return {_hour_of(hour): _used(row) for hour, row in tree["hours"].items()}


def _hour_of(text: str) -> int:
    if re.fullmatch("[0-9]{1,9}", text) is None:
        raise ValueError("expected hours since 1970")
    return int(text)


def _used(row: object) -> Used:
    if not isinstance(row, list) or len(row) != len(Used._fields):
        raise ValueError("expected three numbers an hour")
    if not all(type(value) is int and 0 <= value < _LARGEST for value in row):
        raise ValueError("expected numbers from 0 up")
    return Used(*row)
