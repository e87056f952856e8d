"""The faults of a soak: drawn by seed for each round and client, and played on real processes.

| share | fault | is |
|---|---|---|
| 40 % | `cut` | every connection of the client is reset, at the proxy in front of it; one time in |
|  |  | four nothing passes for a while before that, and nothing is said: half open |
| 30 % | `stop` | SIGSTOP of its process, for longer than a round gives the training |
| 20 % | `kill` | SIGKILL of its training child, or of its own process |
| 10 % | `node` | SIGKILL of both at once: the whole device |

What was killed is started again a moment later. The `witnesses` keep their processes, so that
their memory can be followed from the first round to the last: of the last two faults they get a
killed training child. Every `SLOW`th client sits behind a slow line all the time.
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
from umbel.tests.fault_proxy import FaultProxy

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from umbel.tests.soak_field import Field

SHARE = 0.05
MIX = {"cut": 0.4, "stop": 0.3, "kill": 0.2, "node": 0.1}
HALF_OPEN = 0.25
"""Share of the cuts before which the line is half open for a while."""
SLOW = 4
LATENCY = JITTER = 0.02
"""Of a slow line, one way, in seconds."""
RATE = 250e3
"""Of a slow line, 2 Mbit/s in bytes a second."""
BACK_S = 0.5
"""After how long a killed client is started again."""


def line(port: int, index: int) -> FaultProxy:
    """Return the line between a client and the gateway's port."""
    if index % SLOW < SLOW - 1:
        return FaultProxy(port, seed=index)
    return FaultProxy(port, seed=index, latency=LATENCY, jitter=JITTER, rate=RATE)


class Faults:
    """What is broken now, and what will be."""

    def __init__(
        self,
        field: Field,
        proxies: Sequence[FaultProxy],
        *,
        seed: int,
        share: float,
        stop: float,
        witnesses: int,
    ) -> None:
        """Break nothing yet.

        Args:
            field: Whose clients.
            proxies: In front of each client.
            seed: Of the mix.
            share: Of the clients that a fault hits in a round.
            stop: Seconds for which a stopped client stands still.
            witnesses: How many clients, from the first on, keep their process.
        """
        self._field, self._proxies = field, proxies
        self._seed, self._share = seed, share
        self._stop, self._witnesses = stop, witnesses
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._number = itertools.count()
        self._down: set[int] = set()
        self.hits: Counter[str] = Counter()
        """Faults so far; a killed child that was not there is none."""

    def draw(self, number: int, seconds: float) -> None:
        """Draw the faults of a round that begins now and takes about so many seconds."""
        for index in range(self._field.clients):
            draw = random.Random(f"{self._seed} {number} {index}")  # noqa: S311 - a seeded mix
            if draw.random() < self._share:
                (kind,) = draw.choices(list(MIX), list(MIX.values()))
                self._in(draw.random() * seconds, self._played(kind, index, draw.random()))

    def _in(self, seconds: float, work: Callable[[], None]) -> None:
        heapq.heappush(self._due, (time.monotonic() + seconds, next(self._number), work))

    def tick(self) -> None:
        """Do what is due."""
        while self._due and self._due[0][0] <= time.monotonic():
            heapq.heappop(self._due)[2]()

    def mend(self) -> None:
        """Draw nothing more, and let everything stand again."""
        while self._due:
            _, _, work = heapq.heappop(self._due)
            if getattr(work, "mends", False):
                work()

    def _played(self, kind: str, index: int, how: float) -> Callable[[], None]:
        def play() -> None:
            if index in self._down or not self._field.devices[index].alive:
                return
            if kind == "cut":
                self._cut(index, half_open=how < HALF_OPEN)
            elif kind == "stop":
                self._stand_still(index)
            elif index < self._witnesses or (kind == "kill" and how < 0.5):
                self._kill_child(index)
            else:
                self._kill(index, whole=kind == "node")

        return play

    def _cut(self, index: int, *, half_open: bool) -> None:
        proxy = self._proxies[index]
        self.hits["half open" if half_open else "cut"] += 1
        if not half_open:
            proxy.cut()
            return
        proxy.swallow = True
        self._down.add(index)

        def go_on() -> None:
            proxy.swallow = False
            proxy.cut()
            self._down.discard(index)

        self._mend_in(self._stop, go_on)

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
