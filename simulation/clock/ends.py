"""How one client's work ends, which is known when it begins.

it crashes      after a share of getting the model and training
it is lost      when all of it is done and sent
it goes         if its window ends before that
it arrives      otherwise
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from .decision import Outcome
from ..fleet.devices import Fate

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .decision import Ids
    from ..fleet.devices import Fates, Fleet, Load, Times

    Reals = NDArray[np.float64]

_OUTCOMES = np.zeros(len(Fate), np.uint8)
_OUTCOMES[[Fate.FINE, Fate.LOST, Fate.CRASHED]] = Outcome.USED, Outcome.LOST, Outcome.CRASHED


class Ends(NamedTuple):
    """For each client an `Outcome`, USED where it arrives, and the seconds until then."""

    outcomes: NDArray[np.uint8]
    seconds: Reals


def alone(times: Times, fates: Fates) -> Ends:
    """Return how it ends for clients that stay online."""
    busy = times.down + times.train
    crashed = fates.kinds == Fate.CRASHED
    return Ends(_OUTCOMES[fates.kinds], np.where(crashed, fates.moments * busy, busy + times.up))


def ends(fleet: Fleet, ids: Ids, word: int, opened: float, load: Load) -> tuple[Ends, Times]:
    """Return how it ends for clients that are asked together, and the parts of their time.

    Args:
        fleet: Whose devices they are.
        ids: Who; all online when they are asked.
        word: The round's number for the fleet.
        opened: When they are asked.
        load: What is asked of them.
    """
    times = fleet.times(ids, word, load)
    outcomes, seconds = alone(times, fleet.fates(ids, word, opened))
    left = fleet.windows(ids, opened, word)[1] - opened
    gone = seconds > left
    outcomes[gone] = Outcome.OFFLINE
    return Ends(outcomes, np.where(gone, left, seconds)), times


def traffic(load: Load, times: Times, seconds: Reals) -> tuple[Ids, Ids]:
    """Return how many bytes have reached each client and left it after some seconds."""
    received = load.down * _share(seconds, times.down)
    whole = seconds >= times.down + times.train + times.up  # a difference could lose the last byte
    sent = load.up * np.where(whole, 1.0, _share(seconds - times.down - times.train, times.up))
    return np.floor(received).astype(np.int64), np.floor(sent).astype(np.int64)


def _share(seconds: Reals, whole: Reals) -> Reals:
    """Return which share of a transfer is done; one that takes no time is done once begun."""
    done = (seconds >= 0).astype(np.float64)
    np.divide(seconds, whole, out=done, where=whole > 0)
    return np.clip(done, 0.0, 1.0)
