"""What the ledgers of some runs showed: times of devices, losses by name and hour, server's parts.

    y      seconds from being asked to being ready, or of a device that was not waited for the
           seconds that it had by then: a bound from below
    u      seconds of sending: from the roster's going out to the whole vector, without the trip of
           the shares that a secure round has between them
    o      the server's own part: a round's seconds less the largest y + (median u) of its members
    epochs train.examples over the sum of the weights, which are examples unless weight-cap cut them

A device's first answer of a run is later than those that follow: its training process starts and
its data are read. Where there are others, that attempt says nothing of times.

What a ledger cannot tell apart: getting the model is part of y, and what a client's examples are of
its seconds a sample.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from .attempts import attempts
from ...protocol.errors import StateError
from ...server.run_directory import RunDirectory

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence
    from pathlib import Path

    from .attempts import Attempt


SHORTEST = 0.0005
"""Times are written in milliseconds: none is shorter than half of one."""
_NEAR = 0.02
COLD = 5
"""Of a run of sessions with more attempts, one in which a device answers first says no times."""


@dataclass
class Observed:
    """All runs together."""

    runs: list[str] = field(default_factory=list)
    rounds: int = 0
    """Attempts at training rounds."""
    home: dict[str, str] = field(default_factory=dict)
    """The name of each node: its site, or its cohort in a simulated run."""
    took: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    """By node its y."""
    beyond: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    """By node the bounds of y."""
    behind: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    """By node the bounds of y + u, of simulated runs."""
    sending: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    """By node its u."""
    trials: dict[tuple[str, int, int], Counter[str]] = field(
        default_factory=lambda: defaultdict(Counter)
    )
    """By name, run and hour: asked, crashed, lost."""
    own: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    """By node the same, where single fates are told."""
    clean: list[tuple[float, dict[str, float]]] = field(default_factory=list)
    """Of each session round in which nobody was waited for in vain: its seconds, and y by node."""
    updates: int = 0
    """Used or refused."""
    refused: int = 0
    there: list[tuple[float, int, int]] = field(default_factory=list)
    """Of runs that ask everybody: when, how many were there, of how many."""
    samples: list[float] = field(default_factory=list)
    """Examples of a client, the mean of each round."""
    epochs: list[float] = field(default_factory=list)
    up: list[float] = field(default_factory=list)
    """Bytes of an update, of each round."""
    down: list[float] = field(default_factory=list)
    """Bytes to each that was asked."""

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names that were asked, sorted."""
        return tuple(sorted({name for name, _, _ in self.trials}))

    def nodes(self, names: Iterable[str]) -> list[str]:
        """Return the nodes of some names whose times are known, in a fixed order."""
        wanted = set(names)
        known = self.took.keys() | self.beyond.keys() | self.behind.keys()
        return sorted(node for node in known if self.home.get(node) in wanted)

    def lost(self, names: Collection[str]) -> dict[tuple[int, int], Counter[str]]:
        """Return the trials of some names together, by run and hour."""
        found: dict[tuple[int, int], Counter[str]] = defaultdict(Counter)
        for (name, run, hour), counts in self.trials.items():
            if name in names:
                found[run, hour].update(counts)
        return found

    @property
    def simulated(self) -> bool:
        """Whether no run had a server of its own."""
        return not self.clean

    def sends(self, node: str) -> float:
        """Return the median u of a node, at least that of a time that is written as none."""
        return max(float(np.median(self.sending.get(node, [0.0]))), SHORTEST)

    def bounds(self, node: str) -> list[float]:
        """Return the bounds of a node's y."""
        known = self.behind.get(node)
        sends = self.sends(node) if known else 0.0
        return [*self.beyond.get(node, []), *(max(b - sends, SHORTEST) for b in known or ())]

    @property
    def overheads(self) -> list[float]:
        """Return o of each clean round."""
        sends = {node: self.sends(node) for node in self.home}
        found = [
            seconds - max(y + sends[node] for node, y in ready.items())
            for seconds, ready in self.clean
        ]
        least = float(np.median(found)) / 10 if found else 0.0
        return [max(o, least, SHORTEST) for o in found]

    @property
    def work(self) -> tuple[int, int]:
        """Return a client's samples and epochs, as far as sums tell: 1 and 1 where they do not."""
        epochs = float(np.median(self.epochs)) if self.epochs else 1.0
        whole = max(1, round(epochs))
        samples = float(np.median(self.samples)) if self.samples else 1.0
        return max(1, round(samples)), whole if abs(epochs - whole) <= _NEAR * whole else 1

    @property
    def bytes_up(self) -> float:
        """Return the bytes of one update, about."""
        return float(np.median(self.up)) if self.up else 0.0

    @property
    def bytes_down(self) -> float:
        """Return the bytes to one client, about."""
        return float(np.median(self.down)) if self.down else 0.0

    def add(self, run: str, found: Sequence[Attempt]) -> None:
        """Take the attempts of one run."""
        number = len(self.runs)
        self.runs.append(run)
        for attempt in found:
            told = attempt.told
            for node, place in zip(attempt.record.roster, told.sites, strict=False):
                self.home[node] = told.names[place]
        warm = set[str]()
        for attempt in found:
            self._losses(attempt, number)
            if attempt.simulated or len(found) <= COLD or warm.issuperset(attempt.record.roster):
                self._times(attempt)
            warm.update(attempt.record.roster)
            self._sums(attempt)
        self._presence(found)
        self.rounds += len(found)

    def _losses(self, attempt: Attempt, number: int) -> None:
        for name, counts in attempt.counts(self.home).items():
            self.trials[name, number, attempt.hour].update(counts)
        self.refused += attempt.refused
        self.updates += len(attempt.record.roster)
        if attempt.told.fates:
            return
        for node in {*attempt.record.roster, *attempt.lost, *attempt.crashed} & self.home.keys():
            self.own[node]["asked"] += 1
            self.own[node]["crashed"] += node in attempt.crashed
            self.own[node]["lost"] += node in attempt.lost

    def _times(self, attempt: Attempt) -> None:
        told, record = attempt.told, attempt.record
        if not told.ready:
            return
        ready, sent = np.maximum(told.ready, SHORTEST), np.array(told.sent)
        sharing = 0.0 if attempt.simulated else record.seconds.get("sharing", 0.0)
        sent = np.maximum(sent - sharing, 0.0)
        for node, y, u in zip(record.roster, ready.tolist(), sent.tolist(), strict=True):
            self.took[node].append(y)
            if np.isfinite(u):
                self.sending[node].append(u)
        waited = attempt.seconds if attempt.simulated else record.seconds.get("inviting", 0.0)
        bounds = self.behind if attempt.simulated else self.beyond
        for node in told.slow:
            bounds[node].append(max(waited, SHORTEST))
        finished = record.outcome == "finished" and np.isfinite(sent).all()
        if finished and not attempt.simulated and not attempt.silent:
            ready_of = dict(zip(record.roster, ready.tolist(), strict=True))
            self.clean.append((attempt.seconds, ready_of))

    def _sums(self, attempt: Attempt) -> None:
        record = attempt.record
        used, metrics = len(record.survivors), record.metrics
        if not used or record.outcome != "finished":
            return
        self.up.append(record.bytes_up / used)
        self.down.append(record.bytes_down / max(1, sum(attempt.told.asked)))
        weight, examples = metrics.get("weight.mean", 0.0), metrics.get("train.examples", 0.0)
        if weight > 0 and examples > 0:
            self.samples.append(weight)
            self.epochs.append(examples / (weight * used))

    def _presence(self, found: Sequence[Attempt]) -> None:
        """Note who was there, if everybody who is there is asked, as the largest attempt shows."""
        everybody = len({n for a in found for n in (*a.record.roster, *a.told.slow)})
        asked = [sum(a.told.asked) for a in found]
        if everybody and max(asked) >= everybody and not any(a.simulated for a in found):
            self.there += [(a.at, n, everybody) for a, n in zip(found, asked, strict=True)]


def observe(home: Path, runs: Sequence[str]) -> Observed:
    """Read the ledgers of some runs.

    Args:
        home: Where `runs/` is.
        runs: Their ids.

    Raises:
        StateError: There is no such run, its ledger is damaged, or it says nothing of its clients.
    """
    observed = Observed()
    for run in dict.fromkeys(runs):
        with RunDirectory.open(home, run) as directory:
            ledger = directory.ledger
            ledger.verify()
            with ledger.legible():
                found = list(attempts(ledger.rounds(), ledger.events()))
            if not any(attempt.told.ready for attempt in found):
                raise StateError(
                    str(ledger.path), "rounds that say when their clients answered", "none",
                    "take a run of sessions, or a simulated one with a fleet, of this release",
                )  # fmt: skip
        observed.add(run, found)
    return observed
