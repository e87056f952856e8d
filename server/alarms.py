"""How many rounds outside their bounds are an item for review: two rules, and their false alarms.

A look at a round says inside, outside or far outside, and on which side (watch.py). By chance a
round is outside with at most `NEAR`, and far outside with at most `FAR`, on each side.

    Stretch   what is only told: a round far outside, or `IN_A_ROW` in a row outside on one side
    Chart     what stops a run: a cumulative sum on each side, S = max(0, S + points), with
              `POINTS` for inside, outside and far outside; an alarm where S reaches the limit

The first rule has a rate: the longer a run, the surer it cries once. The second one has a limit
that grows with the run's length, so that the whole run has one probability of a false alarm. It is
Page's cumulative sum (Page 1954; Siegmund, Sequential Analysis, 1985, chapter 2), whose points are
rounded log likelihood ratios of "0.2 inside, 0.5 outside, 0.3 far" against chance, and its limit is
exact: a Markov chain over S = 0, 1, ..., limit, with the alarm as its end. A plan does not know its
tails so well, so the limit is that of rounds which are outside with `PERHAPS_NEAR` and far outside
with `PERHAPS_FAR`; it costs less than a round more until a change is found. For the same reason a
round far outside has few points.

Exact means for a continuous value and rounds that are independent, or of which each is outside with
no more than that whatever came before. Discrete values are outside less often.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np

IN_A_ROW = 3
NEAR, FAR = 0.05, 0.0005
"""Probability of one round outside, and far outside, on one side."""
PERHAPS_NEAR, PERHAPS_FAR = 0.075, 0.002
"""The same, of a plan whose tails are too thin: half as often again, and four times as often."""


class Points(NamedTuple):
    """What a round adds to the sum of a side."""

    inside: int
    near: int
    far: int


POINTS = Points(-1, 2, 4)
FALSE_PAUSES = 0.05
"""Probability that a run is stopped at all, by whatever signal, while its rounds are outside no
more often than `PERHAPS_NEAR` and `PERHAPS_FAR`."""


class Stretch:
    """Rounds in a row on the same side."""

    def __init__(self) -> None:
        """Begin inside."""
        self.side = self._length = 0
        """Of the last round."""
        self.out = False
        """Whether an alarm was given and no round was inside since."""

    def begins(self, side: int, *, far: bool) -> bool:
        """Take a round; tell whether with it a stretch outside has begun.

        Args:
            side: -1 below, 1 above, 0 inside.
            far: Whether it is far outside.
        """
        self._length = self._length + 1 if side == self.side else 1
        self.side = side
        self.out = self.out and side != 0
        begins = side != 0 and not self.out and (far or self._length >= IN_A_ROW)
        self.out = self.out or begins
        return begins


class Chart(Stretch):
    """A cumulative sum on each side."""

    def __init__(self, limit: int) -> None:
        """Begin at 0; an alarm is at `limit` points."""
        super().__init__()
        self.limit = limit
        self._sums = {-1: 0, 1: 0}

    def begins(self, side: int, *, far: bool) -> bool:
        """Take a round; tell whether the sum of its side has reached the limit with it.

        The sums begin anew then, with the first round that is not outside on this side.
        """
        self.out = self.out and side == self.side
        self.side = side
        if self.out:
            return False
        for at, sum_ in self._sums.items():
            points = (POINTS.far if far else POINTS.near) if at == side else POINTS.inside
            self._sums[at] = max(0, sum_ + points)
        if side and self._sums[side] >= self.limit:
            self._sums = {-1: 0, 1: 0}
            self.out = True
        return self.out


@lru_cache(maxsize=256)
def limit(rounds: int, share: float) -> int:
    """Return the least points that a sum reaches with at most `share`, by tails that are too thin.

    Args:
        rounds: Of the run, 1 or more.
        share: Of one side of one value, above 0.
    """
    points = 1
    while false_pause(rounds, points, PERHAPS_NEAR, PERHAPS_FAR) > share:
        points += 1
    return points


@lru_cache(maxsize=1024)
def false_pause(rounds: int, points: int, near: float = NEAR, far: float = FAR) -> float:
    """Return how likely the sum of one side reaches its limit in a run, by chance.

    Args:
        rounds: Of the run.
        points: The limit, 1 or more.
        near: How likely a round is outside on this side.
        far: How likely it is far outside, at most `near`.
    """
    step = np.zeros((points + 1, points + 1))
    step[points, points] = 1.0
    for at in range(points):
        for more, likely in zip(POINTS, (1 - near, near - far, far), strict=True):
            step[at, min(points, max(0, at + more))] += likely
    return float(np.linalg.matrix_power(step, rounds)[0, points])


def false_alarm(rounds: int, sides: int = 2) -> float:
    """Return how likely a run within its plan is told of one signal, by `Stretch`.

    A Markov chain over (side, rounds in a row on it), with an item as its end.

    Args:
        rounds: Of the run.
        sides: On how many sides the signal has a bound, 1 or 2.
    """
    near, inside = NEAR - FAR, 1 - sides * NEAR
    rows = IN_A_ROW - 1
    alive = [1.0] + [0.0] * rows  # by the length of the row, on whichever side
    for _ in range(rounds):
        other = near * (sides - 1)
        after = [inside * math.fsum(alive)] + [0.0] * rows
        after[1] = near * sides * alive[0] + other * math.fsum(alive[1:])
        for length in range(2, rows + 1):
            after[length] = near * alive[length - 1]
        alive = after
    return 1 - math.fsum(alive)
