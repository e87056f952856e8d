"""Recorded devices: when each was online, and how fast it is, in the format of FedScale.

    availability   {"0": {"active": [12, 400], "inactive": [90, 700], "finish_time": 1000}, …}
                   online from each `active` to the `inactive` of the same place, in seconds; what
                   was recorded repeats every `finish_time`. `duration` and `model` are passed over
    capacity       {"0": {"computation": 162.0, "communication": 5648.1}, …}
                   milliseconds of inference a sample, kbit/s (of 1,024 bits) in both directions

Training a sample takes three times its inference, as FedScale has it (Lai et al., ICML 2022). Its
own files are pickles, which nobody should read; json.dump of what they hold is this format. The
k-th client of a cohort is the row k mod rows, in the order of the file.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from .distributions import Recorded
from .quantities import Range, check_keys, number
from ...protocol.documents import read_json
from ...protocol.errors import SettingsError
from ...server.plain_files import read_file, why

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    Ids = NDArray[np.int64]
    Reals = NDArray[np.float64]

_LIMIT = 1 << 28
"""Bytes of a file."""
_BACKWARD = 3
"""A training step in units of an inference."""
_KBIT = 128
"""Bytes."""
_SECONDS = Range(0, 1e9, "seconds")
_PERIOD = Range(1, 1e9, "seconds")
_MILLISECONDS = Range(1e-6, 1e9, "ms")
_KBITS = Range(1e-3, 1e12, "kbit/s")


@dataclass(frozen=True, slots=True, eq=False)
class Availability:
    """Intervals of some rows, one after another: row r has those from starts[r] to starts[r+1]."""

    starts: Ids
    begin: Reals
    end: Reals
    period: Reals

    @classmethod
    def read(cls, path: Path) -> Availability:
        """Read a file.

        Raises:
            SettingsError: It cannot be read, or a row is not of the format.
        """
        rows = _rows(path)
        spans = [_intervals(row, f"{path}: {name}") for name, row in rows.items()]
        return cls(
            starts=np.cumsum([0, *(len(begin) for begin, _, _ in spans)], dtype=np.int64),
            begin=np.concatenate([begin for begin, _, _ in spans]),
            end=np.concatenate([end for _, end, _ in spans]),
            period=np.array([period for _, _, period in spans]),
        )

    def windows(self, places: Ids, time: float | Reals) -> tuple[Reals, Reals]:
        """Return for some rows the interval that is running or comes next; see `Fleet.windows`."""
        rows = places % len(self.period)
        period = self.period[rows]
        base = np.floor(time / period) * period
        found = self._first_after(rows, time - base)
        over = found == self.starts[rows + 1]
        base = base + np.where(over, period, 0.0)
        found = np.where(over, self.starts[rows], found)
        begin, end = base + self.begin[found], base + self.end[found]
        always = self.end[found] - self.begin[found] >= period
        return np.where(always, -np.inf, begin), np.where(always, np.inf, end)

    def _first_after(self, rows: Ids, local: Reals) -> Ids:
        """Return each row's first interval that ends after its own time, by halving."""
        low, high = self.starts[rows], self.starts[rows + 1]
        while np.any(low < high):
            middle = (low + high) // 2
            open_ = low < high
            before = self.end[np.minimum(middle, len(self.end) - 1)] <= local
            low = np.where(open_ & before, middle + 1, low)
            high = np.where(open_ & ~before, middle, high)
        return low


def capacity(path: Path) -> tuple[Recorded, Recorded]:
    """Return what a file recorded: seconds to train a sample once, and bytes/s in both directions.

    Raises:
        SettingsError: It cannot be read, or a row is not of the format.
    """
    speed, bandwidth = [], []
    for name, row in _rows(path).items():
        where = f"{path}: {name}"
        check_keys(row, {"computation", "communication"}, where)
        took = number(row.get("computation"), f"{where}.computation", _MILLISECONDS)
        speed.append(took * _BACKWARD / 1000)
        rate = number(row.get("communication"), f"{where}.communication", _KBITS)
        bandwidth.append(rate * _KBIT)
    return Recorded(np.array(speed)), Recorded(np.array(bandwidth))


def _rows(path: Path) -> dict[str, dict[str, Any]]:
    try:
        rows = read_json(read_file(path, _LIMIT))
    except (OSError, ValueError) as error:
        raise SettingsError(str(path), "a trace, JSON", why(error)) from error
    if not isinstance(rows, dict) or not rows:
        raise SettingsError(str(path), "a table of devices", type(rows).__name__)
    for name, row in rows.items():
        if not isinstance(row, dict):
            raise SettingsError(f"{path}: {name}", "a table", type(row).__name__)
    return rows


def _intervals(row: dict[str, Any], where: str) -> tuple[Reals, Reals, float]:
    """Return begins, ends and the period of one row; intervals that touch are one."""
    check_keys(row, {"active", "inactive", "finish_time", "duration", "model"}, where)
    period = number(row.get("finish_time"), f"{where}.finish_time", _PERIOD)
    active, inactive = (_times(row.get(key), f"{where}.{key}") for key in ("active", "inactive"))
    if len(active) != len(inactive):
        raise SettingsError(f"{where}.inactive", f"{len(active)} times, as active", len(inactive))
    ordered = np.stack([active, inactive], axis=1).reshape(-1)
    if np.any(active >= inactive) or np.any(np.diff(ordered) < 0) or ordered[-1] > period:
        expected = "active and inactive in turn, ascending, within finish_time"
        raise SettingsError(where, expected, "others")
    touching = active[1:] == inactive[:-1]
    begin, end = active[np.r_[True, ~touching]], inactive[np.r_[~touching, True]]
    if begin[0] == 0 and end[-1] == period:
        end[-1] += end[0]  # it goes on where the trace begins again
    return begin, end, period


def _times(value: object, where: str) -> Reals:
    if not isinstance(value, list) or not value:
        raise SettingsError(where, "a list of times in seconds", value)
    return np.array([number(item, where, _SECONDS) for item in value])
