"""How likely a secure sum is void because members are lost between the roster and the end.

A round of protocol/graph.py's parameters is void if

    more than D members are lost          exact: the count of those that stay
    fewer than t of a member's k stay     none where D <= k - t, which holds on the complete graph;
                                          elsewhere at most n Pr[H(n, lost, k) > k - t]

H is hypergeometric: given how many are lost, any of them may be, whatever they have in common; the
order of the ring is that in which members were ready. The rule chooses t so that the second is at
most 2^-20 for D lost, so `Void.odds` is that near to the truth.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from .odds import hypergeometric
from ...protocol.errors import SettingsError
from ...protocol.graph import COMPLETE_UP_TO, parameters

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .losses import Count
    from ...protocol.graph import Parameters

    Reals = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Void:
    """How likely a round is void."""

    many: float
    """More than D are lost."""
    apart: float
    """At most that, though no more than D are lost: too few of one member's neighbours stay."""

    @property
    def odds(self) -> float:
        """Either of the two, at most."""
        return min(1.0, self.many + self.apart)


def void(p: Parameters, stay: Count) -> Void:
    """Return how likely a round is void.

    Args:
        p: Of the round.
        stay: How many of its n members stay until the end.

    Raises:
        ValueError: The count is of another number of members.
    """
    if len(stay.shares) != p.n + 1:
        raise ValueError(f"a count of {len(stay.shares) - 1} members: expected {p.n}")
    lost = stay.shares[::-1]
    many = float(lost[p.d + 1 :].sum())
    return Void(many, float(lost[: p.d + 1] @ thin(p)))


@lru_cache(256)
def thin(p: Parameters) -> Reals:
    """Return how likely, at most, one of the neighbourhoods is too thin.

    Returns:
        By how many are lost, 0 to D; shape (D + 1,).
    """
    spare, found = p.k - p.t, np.zeros(p.d + 1)
    for x in range(spare + 1, p.d + 1):
        few = float(hypergeometric(p.n, x, p.k)[spare + 1 :].sum())
        found[x] = min(1.0, p.n * few)
    return found


def suited(n: int, stay: Count, *, alpha: float, a_min: int = 1, certainty: float) -> float | None:
    """Return the least delta, in hundredths, with which rounds are void as rarely as wanted.

    Args:
        n: Members.
        stay: How many of them stay until the end.
        alpha: Share of the members that may be corrupt.
        a_min: Corrupt members to bear at least.
        certainty: How often a round is to have its sum.

    Returns:
        None: no delta does, or it plays no part because the graph is complete.
    """
    over = np.cumsum(stay.shares)  # over[s]: no more than s stay
    fewest = int(np.searchsorted(over, 1.0 - certainty, side="right"))
    if n <= COMPLETE_UP_TO:
        return None
    for hundredth in range(math.ceil(100 * (n - fewest) / n), 100):
        try:
            found = parameters(n, alpha=alpha, delta=hundredth / 100, a_min=a_min)
        except SettingsError:
            return None  # a larger one fits even less
        if void(found, stay).odds <= 1.0 - certainty:
            return hundredth / 100
    return None
