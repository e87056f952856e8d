"""Splits by who made an example: a user, a speaker, a patient.

NaturalIdPartitioner           one client for each id
GroupedNaturalIdPartitioner    one client for `group_size` ids: silos instead of devices
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..protocol.errors import SettingsError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Rows = NDArray[np.intp]

MODES = ("allow-smaller", "allow-bigger", "drop-reminder", "strict")


@dataclass(frozen=True, slots=True, kw_only=True)
class NaturalIdPartitioner:
    """Every id is a client, in the order of the sorted ids."""

    def partitions(self, ids: NDArray[Any]) -> list[Rows]:
        """Return the rows of each id, ascending; every row is in exactly one.

        Args:
            ids: Shape (examples,), anything that can be sorted.
        """
        return _owned(ids)[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupedNaturalIdPartitioner:
    """`group_size` ids are a client."""

    group_size: int
    mode: str = "allow-smaller"
    """What becomes of ids that fill no group: `allow-smaller` makes a last group of them,
    `allow-bigger` spreads them over the first groups, `drop-reminder` (as flwr-datasets spells it)
    leaves them out, `strict` refuses."""
    sort_unique_ids: bool = False
    """Whether ids are grouped in their sorted order; else in the order of their first rows."""

    def partitions(self, ids: NDArray[Any]) -> list[Rows]:
        """Return the rows of each group, id after id; none is in two.

        Raises:
            SettingsError: There are fewer ids than one group has, or a remainder in mode `strict`.
        """
        if self.mode not in MODES:
            raise SettingsError("GroupedNaturalIdPartitioner.mode", " or ".join(MODES), self.mode)
        owned, first = _owned(ids)
        if self.group_size < 1 or (self.mode != "allow-smaller" and self.group_size > len(owned)):
            raise SettingsError("group_size", f"1 to {len(owned)}, the ids", self.group_size)
        if self.mode == "strict" and len(owned) % self.group_size:
            raise SettingsError("group_size", f"a divisor of {len(owned)} ids", self.group_size)
        members = np.arange(len(owned)) if self.sort_unique_ids else np.argsort(first)
        return [np.concatenate([owned[i] for i in group]) for group in self._groups(members)]

    def _groups(self, members: Rows) -> list[Rows]:
        """Return the ids of each group."""
        if self.mode == "allow-bigger":
            return np.array_split(members, len(members) // self.group_size)
        whole = len(members) - len(members) % self.group_size
        end = len(members) if self.mode == "allow-smaller" else whole
        return [
            members[start : start + self.group_size] for start in range(0, end, self.group_size)
        ]


def _owned(ids: NDArray[Any]) -> tuple[list[Rows], Rows]:
    """Return the rows of each id, ids sorted, and the first row of each.

    Raises:
        SettingsError: There are none.
    """
    if not len(ids):
        raise SettingsError("ids", "one for each example", "none")
    _, first, which = np.unique(ids, return_index=True, return_inverse=True)
    rows = np.argsort(which, kind="stable")
    return np.split(rows, np.cumsum(np.bincount(which))[:-1]), first
