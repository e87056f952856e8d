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

_DOUBLINGS = 4
"""Batches of 4k, 8k, 16k and 32k candidates before all clients are looked at: enough where 1 in 30
is online."""
CHUNK = 1 << 16
"""Clients that are looked at together when all of them are."""
_LAST = 1
"""The word after the client where all are looked at."""


def draw_of(round_: int, attempt: int) -> int:
    """Return the word of a round's draws; for the first attempt it is the round."""
    return round_ + (attempt << 32)


def candidates(
    clients: int, seed: int, draws: int | NDArray[np.uint64], places: NDArray[np.int64]
) -> Ids:
    """Return the candidates of some places, shape that of the broadcast draws and places."""
    return (mix(seed, Purpose.PICK, draws, places) % np.uint64(clients)).astype(np.int64)


def drawn(
    k: int, clients: int, seed: int, draw: int, fit: Callable[[Ids], NDArray[np.bool_]]
) -> Ids:
    """Return up to k clients that fit, in the order of the draw, after some candidates.

    Args:
        k: How many are wanted, at least 1.
        clients: How many there are.
        seed: Of the run.
        draw: Which draw it is.
        fit: Tells of some ids who may be asked.
    """
    found, place = np.empty(0, np.int64), 0
    for batch in range(_DOUBLINGS if 4 * k <= clients else 0):
        new = candidates(clients, seed, draw, np.arange(place, place + (4 * k << batch)))
        found, place = _first(np.concatenate([found, new[fit(new)]])), place + (4 * k << batch)
        if len(found) >= k:
            return found[:k]
    return found


def picked(
    k: int, clients: int, seed: int, draw: int, fit: Callable[[Ids], NDArray[np.bool_]]
) -> Ids:
    """Return up to k clients that fit, as `drawn` does; fewer only if no more fit."""
    found = drawn(k, clients, seed, draw, fit)
    if len(found) == k:
        return found
    rest = np.empty((2, 0), np.uint64)
    for start in range(0, clients, CHUNK):
        ids = np.arange(start, min(start + CHUNK, clients))
        ids = ids[fit(ids)]
        order = mix(seed, Purpose.PICK, draw, ids, _LAST)
        rest = np.concatenate([rest, np.stack([order, ids.astype(np.uint64)])], axis=1)
        rest = rest[:, np.argsort(rest[0], kind="stable")[:k]]
    return _first(np.concatenate([found, rest[1].astype(np.int64)]))[:k]


def chosen(k: int, clients: int, seed: int, round_: int, attempt: int) -> Ids:
    """Return k of the clients, whoever they are."""
    draw = draw_of(round_, attempt)
    return picked(k, clients, seed, draw, lambda ids: np.ones(len(ids), bool))


def _first(ids: Ids) -> Ids:
    """Return each id once, where it comes first."""
    _, places = np.unique(ids, return_index=True)
    return ids[np.sort(places)]
