"""Where hardly any free client is online: all of them are looked at once, and then waited for.

A draw finds a client quickly while many would do. Where it finds none, this holds who is free and
online, and when each of the other free clients comes, until enough are at work again. A launch
asks the client that its own draw's first candidate names among those who are online, ascending.
"""

from __future__ import annotations

import heapq
import math
from bisect import insort
from typing import TYPE_CHECKING

import numpy as np

from .picking import candidates

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .decision import Ids


class Scarce:
    """The free clients of an asynchronous run."""

    def __init__(self, ids: Ids, begins: NDArray[np.float64]) -> None:
        """Take all that are free, and since or from when each is online."""
        self._waiting = list(zip(begins.tolist(), ids.tolist(), strict=True))
        heapq.heapify(self._waiting)
        self._online: list[int] = []

    @property
    def wake(self) -> float:
        """When the next one comes online; infinity for never."""
        return self._waiting[0][0] if self._waiting else math.inf

    def free(self, client: int, begin: float) -> None:
        """Take one more, that is online from then on or since."""
        heapq.heappush(self._waiting, (begin, client))

    def take(self, time: float, seed: int, draw: int) -> int | None:
        """Return one that is online, and forget it; None where nobody is."""
        while self.wake <= time:
            insort(self._online, heapq.heappop(self._waiting)[1])
        if not self._online:
            return None
        first = candidates(len(self._online), seed, draw, np.zeros(1, np.int64))
        return self._online.pop(int(first[0]))
