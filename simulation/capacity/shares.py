"""Who is used, late or lost, and what it takes them: what the curves say of the rounds drawn.

Of a try it is known which share y of all that are asked is there when it closes, which share F
would be by the deadline, and how many were asked, n, and would arrive by then, M. Where the k-th
arrival closes it, the k - 1 before it lie evenly below y, the M - k after it between y and F, and
the other n - M in the rest. So every device stands for a part of each, and nothing is drawn anew.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .course import Shares
from .expected import PARTS, End

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .arrivals import Curves, Drawn
    from .many import Closed
    from ..fleet.devices import Load

    Ids = NDArray[np.int64]
    Reals = NDArray[np.float64]

_LEAST = 1e-9
"""Stands for the length of a transfer that takes no time."""


def shares(curves: Curves, closed: Closed, load: Load, cohorts: int) -> Shares:
    """Return what the devices of each cohort had of some tries."""
    outcomes, parts = np.zeros((cohorts, len(End))), np.zeros((cohorts, len(PARTS)))
    found = Shares(outcomes, np.zeros((3, cohorts)), parts, len(closed.cell))
    for place in np.unique(closed.place):
        here = closed.part(closed.place == place)
        slots = _Slots(here, curves.edges, curves.mass[place], float(curves.online[place]))
        _add(found, slots, curves, curves.drawn(int(place)), load)
    return found


def _add(found: Shares, slots: _Slots, curves: Curves, drawn: Drawn, load: Load) -> None:
    """Add what the devices had of the tries that began at one curve."""
    kind, group, base = curves.kind, curves.group, curves.base
    weight = drawn.online / drawn.online.sum()
    cell = np.searchsorted(curves.edges, drawn.end)
    arrives = drawn.outcome == End.USED
    timely = arrives & (cell < len(curves.edges))
    kept = base * timely
    used, late = slots.used[group, cell] * kept, slots.late[group, cell] * kept
    other = np.maximum(slots.rest - base * arrives * slots.kept_rest[group], 0.0)
    beyond = base * (arrives & ~timely) * slots.kept_rest[group]
    table = np.zeros((len(kind), len(End)))
    table[:, End.USED], table[:, End.LATE] = used, late + beyond
    ends = np.where(arrives, End.LOST, drawn.outcome)
    table[np.arange(len(kind)), ends] += other
    for column in range(len(End)):
        values = weight * table[:, column]
        found.outcomes[:, column] += _by(kind, values, found.outcomes)
    work = slots.until(drawn.end, cell, group, kept)
    down, up = (np.maximum(part, _LEAST) for part in (drawn.down, drawn.up))
    trained, end = drawn.down + drawn.train, np.maximum(drawn.end, _LEAST)
    got = slots.until(np.minimum(end, down), cell, group, kept) / down
    sent = slots.until(np.minimum(drawn.end + (up - drawn.up), trained + up), cell, group, kept)
    sent = (sent - slots.until(np.minimum(drawn.end, trained), cell, group, kept)) / up
    for row, values in enumerate((work, load.down * got, load.up * sent)):
        found.spent[row] += _by(kind, weight * values, found.outcomes)
    last = weight * slots.last[group, cell] * kept
    last *= slots.full / max(last.sum(), _LEAST)
    part = np.argmax(np.stack([drawn.down, drawn.train, drawn.up]), axis=0)
    places = kind * len(PARTS) + part
    flat = np.bincount(places, last, minlength=found.closed.size)
    np.add(found.closed, flat.reshape(found.closed.shape), out=found.closed)


def _by(kind: Ids, values: Reals, like: Reals) -> Reals:
    """Return the sums of each cohort's devices."""
    return np.bincount(kind, values, minlength=len(like)).astype(np.float64)


class _Slots:
    """What a device stands for in some tries that began at one curve, by the cell of its arrival.

    Arrays have the shape (groups, cells + 1); the last cell is beyond the deadline.
    """

    def __init__(self, closed: Closed, edges: Reals, mass: Reals, online: float) -> None:
        """Add up the tries.

        Args:
            closed: Those that began at this curve.
            edges: Of its cells.
            mass: The curve, shape (groups, cells): shares of all devices.
            online: Share of all devices.
        """
        self._edges, cell, cells = edges, closed.cell, len(edges)
        full = cell < cells

        def until(cell: Ids) -> Reals:
            found: Reals = np.einsum("tg,gt->t", closed.through, mass[:, cell]) / online
            return found

        timely = np.minimum(until(np.full(len(cell), cells - 1)), 1.0)
        level = np.where(full, closed.level / online, timely)
        end = until(np.minimum(cell, cells - 1))
        begin = np.where(cell > 0, until(np.maximum(cell - 1, 0)), 0.0)
        inside = np.clip(_ratio(level - begin, end - begin), 0.0, 1.0) * full
        below = _ratio(closed.used - full, level)
        above = _ratio((closed.arrived - closed.used) * full, timely - level)
        rest = _ratio(closed.asked - closed.arrived, 1 - timely)

        def sums(values: Reals) -> Reals:
            found = [np.bincount(cell, values * part, cells + 1) for part in closed.through.T]
            return np.stack(found)

        self.full = int(np.count_nonzero(full))
        """Tries that an update closes."""
        self.last = sums(_ratio(full.astype(float), end - begin))
        """How often a device's update closes the round."""
        self.used = _after(sums(below)) + sums(below * inside) + self.last
        self.late = _before(sums(above)) + sums(above * (1 - inside))
        self._late = _before(sums(above)), _before(sums(above * closed.seconds))
        self.rest, self.kept_rest = float(rest.sum()), (closed.through.T @ rest)
        self._rest = (
            _before(np.bincount(cell, rest, cells + 1)[None].astype(np.float64)),
            _before(np.bincount(cell, rest * closed.seconds, cells + 1)[None].astype(np.float64)),
        )
        kept = sums(rest), sums(rest * closed.seconds)
        self._kept = _before(kept[0]), _before(kept[1])

    def until(self, moment: Reals, cell: Ids, group: Ids, kept: Reals) -> Reals:
        """Return the seconds that devices are at work up to a moment, or until the round closes.

        Args:
            moment: Seconds after asking, for each device.
            cell: In which it would arrive.
            group: Its group.
            kept: The probability that it arrives by the deadline.
        """
        at = np.searchsorted(self._edges, moment)
        far = np.minimum(cell, len(self._edges))
        used = self.used[group, far] * moment
        count, seconds = self._late
        late = seconds[group, at] + moment * (count[group, far] - count[group, at])
        count, seconds = self._rest
        rest = seconds[0, at] + moment * (self.rest - count[0, at])
        count, seconds = self._kept
        less = seconds[group, at] + moment * (self.kept_rest[group] - count[group, at])
        found: Reals = kept * (used + late - less) + rest
        return found


def _before(sums: Reals) -> Reals:
    """Return for each cell the sum of those before it."""
    return sums.cumsum(axis=1) - sums


def _after(sums: Reals) -> Reals:
    """Return for each cell the sum of those after it."""
    return sums[:, ::-1].cumsum(axis=1)[:, ::-1] - sums


def _ratio(part: Reals | Ids, whole: Reals) -> Reals:
    """Return a ratio; where there is no whole there is nothing of it."""
    found: Reals = np.divide(part, whole, out=np.zeros(len(part)), where=whole > 0)
    return found
