"""A cohort's updates as rows for a robust rule: one buffer in memory that processes can share.

    tier.rows(work, buffer) -> rows that count, moved together -> RobustRows -> the rule's aggregate

The buffer is a mapped file (server/core/segments.py), in memory where there is room and else on
the disk, made when the first cohort is known and kept for the next ones. A tier's threads write
into it; nothing is copied but the rows behind one that does not count.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np

from .reducing import count_values, row_dtype
from ...protocol.errors import SettingsError
from ...server.core.room import available
from ...server.reduced_rows import RobustRows, room_for

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .work import Report, Tier, Work
    from ...server.core.segments import Segment, Shelf
    from ...strategies.robust_rules import Robust


class RowBuffer:
    """Collects the rows of one cohort after another."""

    def __init__(self, tier: Tier, robust: Robust, shelf: Shelf, *, threads: int = 0) -> None:
        """Make nothing yet.

        Args:
            tier: Trains.
            robust: What is made of the rows.
            shelf: Where the buffer lies.
            threads: Of the rule; 0 for one a core.
        """
        self._tier, self._robust, self._shelf = tier, robust, shelf
        self._threads = threads or len(os.sched_getaffinity(0))
        self._segment: Segment | None = None

    def __call__(self, work: Work) -> tuple[RobustRows, Report]:
        """Train a cohort and return its rows, valid until the next call.

        Raises:
            SettingsError: There is no room for so many rows.
        """
        rows = self._rows(work)
        report = self._tier.rows(work, rows)
        counted = np.flatnonzero(report.counted)
        if len(counted) < len(rows):
            for to, place in enumerate(counted.tolist()):
                if to != place:
                    rows[to] = rows[place]
        weights = report.weights[counted]
        return RobustRows(self._robust, rows[: len(counted)], weights, self._threads), report

    def close(self) -> None:
        """Give the buffer up."""
        if self._segment is not None:
            self._segment.unlink()
            self._segment.close()
            self._segment = None

    def _rows(self, work: Work) -> NDArray[Any]:
        """Return the buffer for this cohort, made anew if the one before is too small."""
        clients, model = len(work.clients), work.models[0]
        values, dtype = count_values(model), row_dtype(model)
        nbytes = max(1, clients * values * dtype.itemsize)
        if self._segment is None or len(self._segment.view) < nbytes:
            self.close()
            self._fits(clients, values, dtype.itemsize)
            self._segment = self._shelf.create(nbytes, "rows")
        flat = np.frombuffer(self._segment.view, dtype, clients * values)
        return flat.reshape(clients, values)

    def _fits(self, clients: int, values: int, itemsize: int) -> None:
        needed, free = room_for(self._robust, clients, values, itemsize), available()
        if needed > free:
            rows = f"{clients} rows of {values * itemsize / 2**20:.1f} MiB for {self._robust.rule}"
            expected = f"room for {needed >> 20} MiB, {rows}"
            move = "lower cohort, or take another rule"
            raise SettingsError("robust", expected, f"{free >> 20} MiB free", move)
