"""Ledgers of runs of known fleets, for tests of what is fitted to them."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import numpy as np

from umbel.server.client_times import milliseconds, numbers
from umbel.server.ledger import Event, Ledger, RoundRecord
from umbel.server.run_directory import RunDirectory
from umbel.simulation.clock.synchronous import Synchronous, Terms
from umbel.simulation.engine.answers import Groups, answers
from umbel.simulation.engine.figures import of_clock

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from umbel.simulation.fleet.profiles import ArrayFleet

BEGAN = datetime(2026, 1, 2, 3, tzinfo=UTC)
UP, DOWN = 5000, 6000
"""Bytes of an update and of a model."""


def node(number: int) -> str:
    """Return a node id, hex."""
    return f"{number + 1:08x}{7:024x}"


@dataclass(kw_only=True)
class Sessions:
    """A federation of devices with sessions: log-normal times, the server's part log-normal."""

    medians: Sequence[float]
    spread: float = 0.3
    overhead: float = 0.05
    overhead_spread: float = 0.3
    sites: Sequence[str] = ()
    dropout: float = 0.0
    """Of each device in each round, after it was ready."""
    sending: float = 0.01
    cold: float = 0.0
    """Seconds more that the first answers of a run take."""
    seed: int = 0
    seconds: list[float] = field(default_factory=list)
    """Of the rounds that were written."""

    def write(self, home: Path, run: str, rounds: int, **config: object) -> list[float]:
        """Write a run of secure rounds and return the seconds of each."""
        rng = np.random.default_rng([self.seed, len(run), *run.encode()])
        found, at = [], BEGAN
        with RunDirectory.create(home, run) as directory:
            ledger = directory.ledger
            ledger.create_run(run, BEGAN.isoformat(), {"rounds": rounds, **config}, "on")
            with ledger.together():
                for number in range(1, rounds + 1):
                    record, event = self._round(number, at, rng, ledger)
                    found.append(sum(record.seconds.values()))
                    at += timedelta(seconds=found[-1])
                    ledger.commit_round(record, event)
        return found

    def _round(
        self, number: int, at: datetime, rng: np.random.Generator, ledger: Ledger
    ) -> tuple[RoundRecord, Event]:
        count = len(self.medians)
        ready = np.asarray(self.medians) * np.exp(self.spread * rng.standard_normal(count))
        ready += self.cold * (number == 1)
        own = self.overhead * math.exp(self.overhead_spread * rng.standard_normal())
        gone = rng.random(count) < self.dropout
        sent = np.where(gone, math.nan, own / 2 + self.sending)
        nodes = tuple(map(node, range(count)))
        for place in np.flatnonzero(gone):
            ledger.event("lost", round=number, attempt=0, node=nodes[place], code="summing")
        seconds = {
            "inviting": float(ready.max()), "sharing": own / 2,
            "summing": self.sending, "voting": own / 2,
        }  # fmt: skip
        record = RoundRecord(
            round=number, attempt=0, phase="train", outcome="finished", roster=nodes,
            survivors=tuple(n for n, g in zip(nodes, gone, strict=True) if not g),
            model=f"{number:064x}", seconds=seconds, bytes_up=UP * count, bytes_down=DOWN * count,
            metrics={"weight.mean": 50.0, "train.examples": 100.0 * (count - int(gone.sum()))},
        )  # fmt: skip
        sites = self.sites or ["north"] * count
        names = sorted(set(sites))
        over = at + timedelta(seconds=sum(seconds.values()))
        detail = {
            "names": json.dumps(names), "asked": numbers(list(sites).count(n) for n in names),
            "sites": numbers(names.index(site) for site in sites),
            "ready": milliseconds(ready), "sent": milliseconds(sent),
        }  # fmt: skip
        stamp = over.isoformat(timespec="milliseconds")
        return record, Event(
            kind="clients", round=number, attempt=0, code="train", detail=detail, at=stamp
        )


def simulated(
    home: Path, run: str, fleet: ArrayFleet, rounds: int, terms: Terms, epochs: int = 1
) -> None:
    """Write what a simulated run of a fleet writes, without training."""
    clock, groups = Synchronous(fleet, terms), Groups.in_(fleet)

    def names(clients: Sequence[int]) -> tuple[str, ...]:
        return tuple(map(node, clients))

    with RunDirectory.create(home, run) as directory:
        directory.ledger.create_run(run, BEGAN.isoformat(), {"rounds": rounds}, "off")
        with directory.ledger.together():
            for number in range(1, rounds + 1):
                decision = clock.decide(number)
                void = decision.void is not None
                roster = () if void else names(decision.used.tolist())
                samples = fleet.profiles.samples[decision.used]
                metrics = {"weight.mean": float(samples.mean()) if len(samples) else 0.0}
                metrics["train.examples"] = float(samples.sum()) * epochs
                directory.ledger.commit_round(
                    RoundRecord(
                        round=number, attempt=0, phase="train",
                        outcome="aborted" if void else "finished", roster=roster, survivors=roster,
                        metrics=of_clock(decision) | metrics, seconds={"train": 0.001},
                        bytes_up=int(decision.sent.sum()), bytes_down=int(decision.received.sum()),
                    ),
                    Event(
                        kind="clients", round=number, attempt=0, code="train",
                        detail=answers(decision, groups, names),
                    ),
                )  # fmt: skip
