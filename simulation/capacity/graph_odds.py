"""How likely a secure sum is void because members are lost between the roster and the end.

A round of protocol/graph.py's parameters is void if

    more than D members are lost          exact: the count of those that stay
    fewer than t of a member's k stay     none where D <= k - t, which holds on the complete graph;
                                          elsewhere at most n Pr[H(n, lost, k) > k - t]

H is hypergeometric: given how many are lost, any of them may be, whatever they have in common; the
order of the ring is that in which members were ready. The rule chooses t so that the second is at
most 2^-20 for D lost, so `Void.odds` is that near to the truth.

`secagg_plus` is for comparison, as graph.upstream is: the ring of Bell et al. (CCS 2020), where a
round is void if some node has fewer than t live among k neighbours, itself included, and each is
lost with probability p. Its k neighbours are a window that goes round the ring.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from .odds import binomial, hypergeometric
from ...protocol.errors import SettingsError
from ...protocol.graph import COMPLETE_UP_TO, parameters

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .losses import Count
    from ...protocol.graph import Parameters

    Reals = NDArray[np.float64]

_NARROW = 10
"""Windows up to which every state is kept: 2^9 of them."""


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
    spare = p.k - p.t
    apart = 0.0
    for x in range(spare + 1, p.d + 1):
        few = float(hypergeometric(p.n, x, p.k)[spare + 1 :].sum())
        apart += float(lost[x]) * min(1.0, p.n * few)
    return Void(many, apart)


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


def secagg_plus(n: int, k: int, t: int, p: float) -> tuple[float, float]:
    """Return bounds of how likely some node of SecAgg+'s ring has fewer than t live of k.

    Equal where k <= 10, and then exact: the trace of the n-th power of a matrix over what the last
    k - 1 nodes are. Else a bad window is fresh if the k before it are good. Above: the first bad
    one is among the first k + 1, or fresh. Below: Bonferroni's second bound of the fresh ones, of
    which two are exclusive or more than k apart; then one of them and that the other is bad are
    independent, as two bad ones are. On rings shorter than two windows all are counted, or one.

    Args:
        n: Nodes, k or more.
        k: Neighbours of each, itself among them; odd.
        t: Live ones without which it is void.
        p: Share of nodes that is lost, each independently.
    """
    if k <= _NARROW:
        odds = 1.0 - _round_trip(n, k, k - t, p)
        return odds, odds
    good = _good_windows(k, k - t, p)
    bad, fresh = 1.0 - float(good[1]), float(good[k] - good[k + 1])
    if n < 2 * k:
        return bad, min(1.0, n * bad)
    high = min(1.0, 1.0 - float(good[k + 1]) + (n - k - 1) * fresh)
    both = bad * (fresh if n >= 4 * k else bad)
    low = max(bad, n * fresh - n * max(n - 1 - 2 * k, 0) / 2 * both)
    return min(low, high), high


def _round_trip(n: int, width: int, most: int, p: float) -> float:
    """Return how likely no window of a ring has more than `most` lost."""
    states = 1 << (width - 1)
    step = np.zeros((states, states))
    for state in range(states):
        for lost in (0, 1):
            window = state << 1 | lost
            if window.bit_count() <= most:
                step[state, window & (states - 1)] += p if lost else 1.0 - p
    return float(np.trace(np.linalg.matrix_power(step, n)))


def _good_windows(width: int, most: int, p: float) -> Reals:
    """Return how likely r successive windows have at most `most` lost each, r = 0 .. width + 1.

    State: how many lost ones of the first window have not left yet, and how many have come since.
    Those left are any of the places that have not been passed.
    """
    at = np.zeros((most + 1, most + 1))
    first = binomial(width, p)
    at[:, 0] = first[: most + 1]
    stayed, came = np.indices(at.shape)
    found = [1.0, float(at.sum())]
    for left in range(width, 0, -1):
        leaves = stayed / left
        gone = np.zeros_like(at)
        gone[:-1] = (at * leaves)[1:]
        gone += at * (1.0 - leaves)
        at = (1.0 - p) * gone
        at[:, 1:] += p * gone[:, :-1]
        at[stayed + came > most] = 0.0
        found.append(float(at.sum()))
    return np.array(found)
