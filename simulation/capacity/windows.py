"""When the devices of some runs are online: a window a day, which begins anew each day.

A device's day begins `phase` seconds before the run's; its window begins within the first fifth of
it, any moment alike, and never reaches the next day (fleet/profiles.py). Each run has windows of
its own, which stay as they are while its time goes on within the day.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..fleet.profiles import DAY, LATEST

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .population import Devices

    Ids = NDArray[np.int64]
    Reals = NDArray[np.float64]


class Windows:
    """The windows of all devices in some runs that go on side by side."""

    def __init__(self, devices: Devices, runs: int, draw: np.random.Generator) -> None:
        """Begin before the first day; the numbers come from `draw`."""
        self._devices, self._draw = devices, draw
        self.always = devices.always
        shape = (runs, len(devices))
        self._day = np.full(shape, -9.0)
        self._begin, self._next = np.full(shape, -np.inf), np.full(shape, -np.inf)

    def at(self, runs: Ids, time: Reals) -> tuple[Reals, Reals]:
        """Return for some runs the window that is open or comes next.

        Args:
            runs: Which.
            time: Each one's, virtual seconds; not before the last time asked for.

        Returns:
            Begin and end, shape (runs, devices).
        """
        if self.always:
            begin = np.full((len(runs), len(self._devices)), -np.inf)
            return begin, np.full(begin.shape, np.inf)
        length = self._devices.length
        day = np.floor((time[:, None] + self._devices.phase) / DAY)
        if self._far(runs, day):
            self._begin[runs], self._next[runs] = self._drawn(day), self._drawn(day + 1)
        else:
            self._move(runs, day)
        self._day[runs] = day
        begin = self._begin[runs]
        over = begin + length <= time[:, None]
        np.copyto(begin, self._next[runs], where=over)
        end = begin + length
        begin[:, np.isinf(length)] = -np.inf
        for traced in self._devices.traced:
            moments = np.broadcast_to(time[:, None], (len(time), len(traced.rows)))
            begin[:, traced.where], end[:, traced.where] = traced.at(moments)
        return begin, end

    def _far(self, runs: Ids, day: Reals) -> bool:
        """Tell whether all windows that are known are of days long over."""
        return bool(((day - self._day[runs]) > 1).all())

    def _move(self, runs: Ids, day: Reals) -> None:
        """Go on to a day: the next day's windows are known where it is the one after."""
        moved = day - self._day[runs]
        if not moved.any():
            return
        begin = np.where(moved == 1, self._next[runs], self._begin[runs])
        far = moved > 1
        begin[far] = self._drawn(day)[far]
        self._begin[runs] = begin
        self._next[runs] = np.where(moved > 0, self._drawn(day + 1), self._next[runs])

    def _drawn(self, day: Reals) -> Reals:
        begin: Reals = self._draw.random(day.shape)
        begin *= LATEST
        begin += day
        begin *= DAY
        begin -= self._devices.phase
        return begin
