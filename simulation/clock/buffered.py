"""Asynchronous rounds: some clients are always at work, and each K updates move the model on.

    launched   `concurrency` clients, each online and neither at work nor in the open buffer; for
               each that comes to an end another one, from the model then in force
    closed     when `buffer` updates have arrived; that is the round (FedBuff, Nguyen et al.,
               AISTATS 2022). A buffer of one is FedAsync (Xie et al., arXiv 1903.03934)
    late       who has worked for longer than `deadline`: the server gives it up
    wake       where nobody can be asked, the first moment at which somebody comes online

A client in the open buffer is not asked again before the model has moved: it would send what it
has learned from the same examples twice, and small fleets would be their fastest devices.

Events are in a heap, ordered by time and launch number, so that their order is total. How a launch
ends is known when it begins; who trains is told when its update is used, from the version of the
model at its launch. So nobody trains in vain.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from .decision import Decision, Outcome
from .ends import traffic
from .kept import listed, numbers_of, real, whole
from .launches import Busy, Launches
from ..fleet.devices import Load
from ...protocol.errors import SettingsError, StateError
from ...strategies.staleness import weighting

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .decision import State
    from ..fleet.devices import Fleet

_VAIN = 200
"""Launches in vain for each update that a round waits for, before it is void."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    """How an asynchronous run goes."""

    concurrency: int
    """Clients at work at any time, where as many are online."""
    buffer: int
    """Updates that make a round."""
    staleness: str = "constant"
    """What an update from an old model counts (strategies/staleness.py)."""
    deadline: float = math.inf
    """Virtual seconds after which the server gives a client up."""
    load: Load = field(default_factory=Load)
    seed: int = 0
    """Of the run: who is asked."""

    def check(self, clients: int) -> None:
        """Compare them with the fleet.

        Raises:
            SettingsError: They do not fit.
        """
        for name in ("concurrency", "buffer"):
            if not 1 <= getattr(self, name) <= clients:
                expected = f"1 to {clients}, the number of clients"
                raise SettingsError(name, expected, getattr(self, name))
        if not self.deadline > 0:
            raise SettingsError("deadline", "seconds above 0", self.deadline)


class Event(NamedTuple):
    """The end of a launch."""

    time: float
    launch: int
    outcome: int
    """An `Outcome`; USED is an arrival."""
    client: int
    version: int
    """Of the model from which it started."""
    started: float


class Buffered:
    """One buffer after another; see `Clock`."""

    name = "buffered"

    def __init__(self, fleet: Fleet, flow: Flow) -> None:
        """Take the devices and how the run goes.

        Raises:
            SettingsError: The two do not fit.
        """
        flow.check(fleet.clients)
        self.now = 0.0
        self._fleet, self._flow = fleet, flow
        self._weighting = weighting(flow.staleness)
        self._launches = Launches(fleet, flow.load, flow.seed)
        self._launched = 0
        self._heap: list[Event] = []
        self._busy = Busy(fleet.clients)

    def __str__(self) -> str:
        """Say how rounds go, for the log."""
        at_work, counts = self._flow.concurrency, self._flow.staleness
        return f"asynchronous, {at_work:,} at work, {self._flow.buffer:,} updates a round, {counts}"

    def decide(self, round_: int, attempt: int = 0) -> Decision:
        """Return who fills the next buffer, and who came to another end meanwhile; see `Clock`."""
        opened, ended, buffered = self.now, list[Event](), set[int]()
        most = _VAIN * (self._flow.buffer + self._flow.concurrency)
        self._launches.settle()  # those of the last buffer are free
        void, wake = None, self._fill(round_ - 1)
        while len(buffered) < self._flow.buffer:
            if not self._heap and wake == math.inf:
                void = f"{len(buffered)} updates arrived, and no client comes online again"
                break
            if len(ended) == most:
                void = f"{len(buffered)} of {most} launches brought an update"
                break
            if not self._heap or wake < self._heap[0].time:
                self.now = wake
                wake = self._fill(round_ - 1)
                continue
            event = heapq.heappop(self._heap)
            self.now = event.time
            ended.append(event)
            if event.outcome != Outcome.USED:
                self._busy.discard(event.client)
                self._launches.freed(event.client, self._launched, self.now)
            else:
                buffered.add(event.client)
                if wake < math.inf or len(buffered) == self._flow.buffer:
                    continue  # nobody new is free; or the next launch is from the next model
            wake = self._fill(round_ - 1)
        for client in buffered:
            self._busy.discard(client)
        return self._decision(round_, opened, ended, void)

    def state(self) -> State:
        """Return the time, the number of launches, and what is in flight; see `Clock`."""
        columns = zip(*sorted(self._heap), strict=True) if self._heap else [()] * len(Event._fields)
        flights = {name: list(c) for name, c in zip(Event._fields, columns, strict=True)}
        return {"now": self.now, "launched": self._launched, **flights}

    def restore(self, state: Mapping[str, object]) -> None:
        """Go to where that was; see `Clock`."""
        kept = numbers_of(state, {"now", "launched", *Event._fields})
        now, launched = real("now", kept["now"]), whole("launched", kept["launched"])
        columns = [listed(name, kept[name]) for name in Event._fields]
        if len({len(column) for column in columns}) != 1:
            raise StateError("the clock's state", "as many values of each event", "others")
        heap = [self._event(values) for values in zip(*columns, strict=True)]
        at_work = {event.client for event in heap}
        if len(at_work) != len(heap) or len(heap) > self._flow.concurrency:
            expected = f"at most {self._flow.concurrency} clients at work, each once"
            raise StateError("the clock's state: client", expected, f"{len(heap)} launches")
        heapq.heapify(heap)
        self.now, self._launched, self._heap = now, launched, heap
        self._busy = Busy(self._fleet.clients)
        for client in at_work:
            self._busy.add(client)

    def _event(self, values: tuple[object, ...]) -> Event:
        time, launch, outcome, client, version, started = values
        return Event(
            real("time", time),
            whole("launch", launch),
            whole("outcome", outcome, max(Outcome)),
            whole("client", client, self._fleet.clients - 1),
            whole("version", version),
            real("started", started),
        )

    def _fill(self, version: int) -> float:
        """Launch until enough are at work; return when to try again, infinity for no need."""
        while len(self._heap) < self._flow.concurrency and not self._busy.full:
            found = self._launches.launch(self._launched, self.now, self._busy)
            if found is None:
                return self._launches.wake
            client, outcome, ends = found
            if ends - self.now > self._flow.deadline:
                outcome, ends = Outcome.LATE, self.now + self._flow.deadline
            event = Event(ends, self._launched, int(outcome), client, version, self.now)
            heapq.heappush(self._heap, event)
            self._busy.add(client)
            self._launched += 1
        self._launches.settle()
        return math.inf

    def _decision(
        self, round_: int, opened: float, ended: list[Event], void: str | None
    ) -> Decision:
        columns = zip(*ended, strict=True) if ended else [()] * len(Event._fields)
        table = {name: np.array(c) for name, c in zip(Event._fields, columns, strict=True)}
        launch, client, version = (
            table[name].astype(np.int64) for name in ("launch", "client", "version")
        )
        outcomes = table["outcome"].astype(np.uint8)
        seconds = table["time"].astype(float) - table["started"].astype(float)
        load = self._flow.load
        received, sent = traffic(load, self._fleet.times(client, launch, load), seconds)
        done = (outcomes == Outcome.USED) | (outcomes == Outcome.LOST)
        used = outcomes == Outcome.USED
        return Decision(
            round=round_,
            opened=opened,
            closed=self.now,
            invited=client,
            outcomes=outcomes,
            seconds=seconds,
            received=np.where(done, load.down, received),
            sent=np.where(done, load.up, sent),
            void=void,
            launches=launch[used],
            models=version[used],
            factors=self._weighting(round_ - 1 - version[used]),
            versions=tuple(sorted({event.version for event in self._heap})),
        )
