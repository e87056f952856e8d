"""The rounds of a simulated run: decided, trained, handed to the coordinator, recorded.

    clock.decide -> tier -> coordinator.take: server step, test, record -> clock.decide -> ...

The clock says who arrives before anybody trains, so only updates that will be used are trained. The
coordinator is a deployment's (server/reduced.py); it asks for one round after another. Writing
goes on beside the next rounds (server/group_commit.py).

Everything a round depends on follows from the run's settings, the model and the clock's state,
which is written beside each model: a run that is taken up ends with the same bits.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from . import figures
from .answers import Groups, answers
from .work import Work
from ...server.gate import HELD_S
from ...server.outcome import Beside
from ...server.reduced import FixedSum, Handed
from ...strategies.trainer import Settings

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from .work import Arrays, Report, Tier
    from ..clock.decision import Clock, Decision
    from ...server.reduced import Aggregate, ReducedCoordinator
    from ...server.settings import RunSettings

Collect = Callable[[Work], "tuple[Aggregate, Report]"]
"""Trains a cohort and returns what its updates come to."""
CLOCK, VERSIONS = "clock", "versions"
"""Keys of the clock's state and of the older models that clients still train from, beside a
model."""


class Stopwatch:
    """Where the seconds of a run go: one lap after another, and what nothing has named is idle."""

    def __init__(self) -> None:
        """Begin now."""
        self.seconds: dict[str, float] = {}
        """Of the open lap, by part."""
        self._named, self._last = 0.0, time.perf_counter()

    def lap(self) -> dict[str, float]:
        """Say how long nothing was named since the last lap; return this one, which stays open."""
        now = time.perf_counter()
        self.seconds["idle"] = max(0.0, now - self._last - self._named)
        self._named, self._last = 0.0, now
        return self.seconds

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Count the block under a name."""
        start = time.perf_counter()
        try:
            yield
        finally:
            spent = time.perf_counter() - start
            self.seconds[name] = self.seconds.get(name, 0.0) + spent
            self._named += spent


@dataclass(frozen=True, kw_only=True)
class Course:
    """What every round of a run has in common."""

    settings: RunSettings
    partitions: int
    collect: Collect
    clock: Clock
    nodes: Callable[[Sequence[int]], tuple[str, ...]]
    """Returns the node ids, hex, of some clients."""
    epochs: int = 1
    """Over a client's examples in a round."""
    every: int = 0
    """In every so many rounds clients test the model that they receive; 0 in none."""
    groups: Groups = field(default_factory=Groups)
    """Clients that the ledger counts together."""
    watch: Stopwatch = field(default_factory=Stopwatch)
    """Counts the seconds; whoever tests models counts there too."""
    said: Callable[[int, str], None] = lambda _client, _cause: None
    """Takes what the task raised for a client."""


class Rounds:
    """Drives one run to its end."""

    def __init__(
        self, course: Course, coordinator: ReducedCoordinator, models: Mapping[int, Arrays]
    ) -> None:
        """Begin where the coordinator stands; `models` are those by version that may be needed."""
        self._course, self._coordinator = course, coordinator
        self._models = dict(models)
        self._warned = False

    def run(self) -> None:
        """Go through the rounds until the run is over."""
        self._coordinator.begin(time.monotonic())
        while not self._coordinator.done:
            if self._coordinator.attempt is None:  # a person is to decide whether it goes on
                time.sleep(HELD_S)
                self._coordinator.tick(time.monotonic())
                continue
            self._models.setdefault(self._coordinator.round - 1, self._coordinator.model)
            self._coordinator.take(self._next(), time.monotonic())

    def _next(self) -> Handed:
        """Train the open round's cohort."""
        coordinator, course = self._coordinator, self._course
        watch, watch.seconds = course.watch, {}
        with watch.part("decide"):
            decision = course.clock.decide(coordinator.round, coordinator.tries)
        if decision.void is not None:
            return Handed(update=None, void=decision.void, beside=self._beside(decision, {}))
        with watch.part("train"):
            update, report = course.collect(self._work(decision))
        self._forget(decision)
        return self._handed(decision, update, report)

    def _handed(self, decision: Decision, update: Aggregate, report: Report) -> Handed:
        """Return what the coordinator is told of a cohort."""
        used = decision.used
        if not self._warned and (line := figures.unsendable(report)):
            self._warned = True
            self._coordinator.note("warning", "", line)
        for index, cause in report.causes.items():
            self._course.said(int(used[index]), cause)
        nodes = self._course.nodes(used.tolist())
        counted, groups = report.counted, self._course.groups
        whole = bool(counted.all())
        return Handed(
            update=update if counted.any() else None,
            roster=nodes,
            survivors=nodes if whole else tuple(np.array(nodes)[counted].tolist()),
            refused={} if whole else figures.refusals(report, nodes),
            sums=figures.sums(report, self._course.epochs, self._course.settings.config),
            beside=self._beside(
                decision, figures.of_clients(report, groups.of(used), groups.names)
            ),
            part=self._course.watch.part,
        )

    def _beside(self, decision: Decision, more: Mapping[str, float]) -> Beside:
        """Return what stands in the entry beside the aggregate, and what resume needs."""
        return Beside(
            figures={**figures.of_clock(decision), **more},
            seconds=self._course.watch.lap(),
            extra={CLOCK: self._course.clock.state(), VERSIONS: list(decision.versions)},
            traffic=(int(decision.sent.sum()), int(decision.received.sum())),
            held=decision.versions,
            clients=answers(decision, self._course.groups, self._course.nodes),
        )

    def _work(self, decision: Decision) -> Work:
        """Return what the tier is to train."""
        course, number = self._course, decision.round
        config: dict[str, Any] = {**course.settings.config, "server-round": number}
        models, places = [self._models[number - 1]], None
        if decision.models is not None:
            versions, places = np.unique(decision.models, return_inverse=True)
            models = [self._models[int(version)] for version in versions]
        return Work(
            clients=decision.used,
            partitions=course.partitions,
            models=models,
            model_of=places,
            settings=Settings.of(config),
            config=config,
            launches=decision.launches,
            factors=decision.factors,
            weight_cap=course.settings.params.weight_cap,
            max_norm=course.settings.max_norm,
            evaluate=bool(course.every) and number % course.every == 0,
        )

    def _forget(self, decision: Decision) -> None:
        """Let go of models that nobody will start from again."""
        keep = {*decision.versions, decision.round - 1}
        self._models = {v: model for v, model in self._models.items() if v in keep}


def summed(tier: Tier) -> Collect:
    """Return what has a tier add up a cohort's updates."""

    def collect(work: Work) -> tuple[Aggregate, Report]:
        found = tier.reduce(work)
        return FixedSum(found.total, found.exponent, found.weight), found.report

    return collect
