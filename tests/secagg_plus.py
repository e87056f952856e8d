"""The ring of Bell et al. (CCS 2020), for comparison with scheme A and with others' figures.

A round is void if some node has fewer than t live among k neighbours, itself included, and each is
lost with probability p. Its k neighbours are a window that goes round the ring.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from umbel.simulation.capacity.odds import binomial

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Reals = NDArray[np.float64]

_NARROW = 10
"""Windows up to which every state is kept: 2^9 of them."""


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
