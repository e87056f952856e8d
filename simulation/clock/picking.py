"""Choosing clients without looking at all of them.

Candidates of a round are mix(seed, PICK, draw, j) mod clients for j = 0, 1, …: drawn with
replacement, whoever comes again is passed over. The `draw` is the round (and its attempt), or the
launch of an asynchronous run. So k of a million cost k / availability draws. Where that does not
find enough, because few are online or k is near the number of clients, all clients are looked at,
in an order that is as random: that of mix(seed, PICK, draw, client, 1).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..fleet.counter import Purpose, mix

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from .decision import Ids

_BATCHES = 16
"""Batches of 4k candidates before all clients are looked at: enough where 1 in 30 is online."""


def draw_of(round_: int, attempt: int) -> int:
    """Return the word of a round's draws; for the first attempt it is the round."""
    return round_ + (attempt << 32)


def candidates(
    clients: int, seed: int, draws: int | NDArray[np.uint64], places: NDArray[np.int64]
) -> Ids:
    """Return the candidates of some places, shape that of the broadcast draws and places."""
    return (mix(seed, Purpose.PICK, draws, places) % np.uint64(clients)).astype(np.int64)


def picked(
    k: int, clients: int, seed: int, draw: int, fit: Callable[[Ids], NDArray[np.bool_]]
) -> Ids:
    """Return up to k clients that fit, in the order of the draw; fewer only if no more fit.

    Args:
        k: How many are wanted, at least 1.
        clients: How many there are.
        seed: Of the run.
        draw: Which draw it is.
        fit: Tells of some ids who may be asked.
    """
    found = np.empty(0, np.int64)
    for batch in range(_BATCHES if 4 * k <= clients else 0):
        new = candidates(clients, seed, draw, np.arange(4 * k) + batch * 4 * k)
        found = _first(np.concatenate([found, new[fit(new)]]))
        if len(found) >= k:
            return found[:k]
    rest = np.setdiff1d(np.arange(clients), found, assume_unique=True)
    rest = rest[fit(rest)]
    order = np.argsort(mix(seed, Purpose.PICK, draw, rest, 1), kind="stable")
    return np.concatenate([found, rest[order]])[:k]


def chosen(k: int, clients: int, seed: int, round_: int, attempt: int) -> Ids:
    """Return k of the clients, whoever they are."""
    draw = draw_of(round_, attempt)
    return picked(k, clients, seed, draw, lambda ids: np.ones(len(ids), bool))


def _first(ids: Ids) -> Ids:
    """Return each id once, where it comes first."""
    _, places = np.unique(ids, return_index=True)
    return ids[np.sort(places)]
