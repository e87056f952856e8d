"""The faults of a soak: drawn by seed for each round and client, and played on real processes.

| share | fault | is |
|---|---|---|
| 40 % | `cut` | every connection of the client is broken, at the proxy in front of it |
| 30 % | `stop` | SIGSTOP of its process, for longer than a round's deadline |
| 20 % | `kill` | SIGKILL of its training child, or of its own process |
| 10 % | `node` | SIGKILL of both at once: the whole device |

What was killed is started again a moment later. The `witnesses` keep their processes, so that
their memory can be followed from the first round to the last: of the last two faults they get a
killed training child.
"""

from __future__ import annotations

import heapq
import itertools
import os
import random
import signal
import time
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING

from umbel.tests import soak_vitals

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from umbel.tests.federations import Proxy
    from umbel.tests.soak_field import Field

SHARE = 0.05
MIX = {"cut": 0.4, "stop": 0.3, "kill": 0.2, "node": 0.1}
BACK_S = 0.5
"""After how long a killed client is started again."""


class Faults:
    """What is broken now, and what will be."""

    def __init__(
        self, field: Field, proxies: Sequence[Proxy], *, seed: int, stop: float, witnesses: int
    ) -> None:
        """Break nothing yet.

        Args:
            field: Whose clients.
            proxies: In front of each client.
            seed: Of the mix.
            stop: Seconds for which a stopped client stands still.
            witnesses: How many clients, from the first on, keep their process.
        """
        self._field, self._proxies = field, proxies
        self._seed, self._stop, self._witnesses = seed, stop, witnesses
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._number = itertools.count()
        self._down: set[int] = set()
        self.played: Counter[str] = Counter()
        self.hits: Counter[str] = Counter()
        """Faults by what they hit: a killed child that was not there is none."""

    def draw(self, number: int, seconds: float) -> None:
        """Draw the faults of a round that begins now and takes about so many seconds."""
        for index in range(self._field.clients):
            draw = random.Random(f"{self._seed} {number} {index}")  # noqa: S311 - a seeded mix
            if draw.random() < SHARE:
                (kind,) = draw.choices(list(MIX), list(MIX.values()))
                self._in(draw.random() * seconds, self._played(kind, index, draw.random() < 0.5))

    def _in(self, seconds: float, work: Callable[[], None]) -> None:
        heapq.heappush(self._due, (time.monotonic() + seconds, next(self._number), work))

    def tick(self) -> None:
        """Do what is due."""
        while self._due and self._due[0][0] <= time.monotonic():
            heapq.heappop(self._due)[2]()

    def mend(self) -> None:
        """Draw nothing more, and let everything stand again."""
        while self._due:
            when, number, work = heapq.heappop(self._due)
            del when, number
            if getattr(work, "mends", False):
                work()

    @property
    def broken(self) -> bool:
        """Say whether a client stands still or is down."""
        return bool(self._down)

    def _played(self, kind: str, index: int, own: bool) -> Callable[[], None]:
        def play() -> None:
            if index in self._down or not self._field.devices[index].alive:
                return
            self.played[kind] += 1
            if kind == "cut":
                self._proxies[index].cut()
                self.hits["cut"] += 1
            elif kind == "stop":
                self._stand_still(index)
            elif index < self._witnesses or (kind == "kill" and not own):
                self._kill_child(index)
            else:
                self._kill(index, whole=kind == "node")

        return play

    def _stand_still(self, index: int) -> None:
        child = self._field.devices[index]
        child.kill(signal.SIGSTOP)
        self._down.add(index)
        self.hits["stop"] += 1

        def go_on() -> None:
            child.kill(signal.SIGCONT)
            self._down.discard(index)

        self._mend_in(self._stop, go_on)

    def _kill_child(self, index: int) -> None:
        for pid in soak_vitals.children(self._field.devices[index].pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                self.hits["child"] += 1

    def _kill(self, index: int, *, whole: bool) -> None:
        child = self._field.devices[index]
        below = soak_vitals.children(child.pid)
        child.kill()
        for pid in below if whole else ():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._down.add(index)
        self.hits["node" if whole else "process"] += 1

        def again() -> None:
            child.gone()
            self._field.start_client(index, f"127.0.0.1:{self._proxies[index].port}")
            self._down.discard(index)

        self._mend_in(BACK_S, again)

    def _mend_in(self, seconds: float, work: Callable[[], None]) -> None:
        work.mends = True  # type: ignore[attr-defined]
        self._in(seconds, work)
