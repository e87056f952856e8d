"""Which tier trains a run: the fastest of those that can, by a short trial on the real task.

A trial trains a few of the run's own clients from its own model and throws the result away, so it
changes nothing. A tier that cannot train the task says why in one line, and so does one that was
not tried. What a trial finds depends on the machine and its load, so a run's ledger holds the name
of its tier, and who resumes a run forces that one: other tiers give other last bits.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from .work import Verdict
from ...protocol.errors import SettingsError, UmbelError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from .work import Tier, Work

AUTO = "auto"
NAMES = ("T0", "T1", "T2", "T3")
WORDS = {
    "T0": "native kernels",
    "T1": "compiled steps",
    "T2": "vmapped cohorts",
    "T3": "the task itself",
}
COMPILED = {"T0", "T1"}
TRIAL_S = 0.25
"""A tier is timed at least so long, where its cohort is long enough."""
FIRST = 4
"""Clients of the trial that warms a tier up."""
MOST = 100
"""Clients that all fail before the task is to blame, and not what some of them have."""
PAYS_S = 60.0
"""A tier that is slow to make is tried where the others would take longer than this."""


class Candidate(NamedTuple):
    """A tier that may train the task."""

    make: Callable[[], Tier]
    """Raises an `UmbelError` of one line where it cannot."""
    skip: str = ""
    """Why it is used only where it is asked for by name; empty where it is tried."""
    slow: bool = False
    """Whether to make it takes seconds to minutes."""
    probe: Callable[[], Tier] | None = None
    """Makes one worker's part of it in this process, to be timed in its place: workers take
    seconds to start."""
    workers: int = 1
    """So many times the probe's rate is the tier's."""


class Figure(NamedTuple):
    """What is known of one tier."""

    rate: float
    """Clients per second; 0 where it was not timed."""
    made_s: float = 0.0
    """What it took to make it and to warm it up."""
    why: str = ""
    """Why it was not timed."""

    def __str__(self) -> str:
        """Return the words of the log line."""
        return self.why or f"{_rounded(self.rate)} clients/s"


class TaskFails(SettingsError):
    """The task raises for every client, so no tier trains it."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The tier of a run."""

    tier: Tier
    reason: str
    """One line for the log."""
    figures: Mapping[str, Figure]
    """By name of the tier, for all that the task could have had."""

    @property
    def name(self) -> str:
        """`T0` to `T3`: what the run's ledger holds, and a resumed run forces."""
        return self.tier.name


def choose(
    candidates: Mapping[str, Candidate],
    sample: Work,
    wanted: str = AUTO,
    *,
    trainings: int = 0,
    say: Callable[[str], None] = lambda _line: None,
) -> Choice:
    """Return the tier to train with; the others are closed.

    Args:
        candidates: By name, those that may be.
        sample: Clients of the run, its first model and its numbers.
        wanted: `AUTO`, or the name of the tier that must be.
        trainings: How many client trainings the run is going to need.
        say: Called with a line before each step that may take long.

    Raises:
        SettingsError: No such tier, the wanted one cannot train the task, none can, or the task
            raises for every client.
    """
    if wanted != AUTO:
        return _forced(candidates, wanted, say)
    trial = _Trial(sample, say)
    for name in sorted(candidates, key=lambda name: (candidates[name].slow, name)):
        candidate = candidates[name]
        why = candidate.skip or (trial.too_soon(trainings) if candidate.slow else "")
        if why:
            trial.figures[name] = Figure(0.0, why=why)
        else:
            trial.one(name, candidate)
    return trial.choice()


def _making(verb: str, name: str) -> str:
    """Return the line before a tier is made, which is the last for as long as a compiler takes."""
    wait = "; compiling may take some seconds" if name in COMPILED else ""
    return f"{verb} tier {name} ({WORDS[name]}){wait}"


def _forced(candidates: Mapping[str, Candidate], wanted: str, say: Callable[[str], None]) -> Choice:
    """Return the tier of this name."""
    if wanted not in candidates:
        raise SettingsError("--tier", f"one of {', '.join([*sorted(candidates), AUTO])}", wanted)
    say(_making("making", wanted))
    begin = time.perf_counter()
    try:
        tier = candidates[wanted].make()
    except UmbelError as error:
        raise SettingsError(
            f"--tier {wanted}", "a task that it can train", str(error), "--tier auto takes another"
        ) from error
    made = Figure(0.0, time.perf_counter() - begin, "asked for")
    return Choice(tier, f"tier {wanted} ({WORDS[wanted]}): asked for", {wanted: made})


class _Trial:
    """Tiers that were tried so far; only the fastest of them stays open."""

    def __init__(self, sample: Work, say: Callable[[str], None]) -> None:
        self.figures: dict[str, Figure] = {}
        self._sample, self._say = sample, say
        self._best: Tier | None = None
        self._make: Callable[[], Tier] | None = None
        """Of the best, where only its probe is there."""

    @property
    def _rate(self) -> float:
        return 0.0 if self._best is None else self.figures[self._best.name].rate

    def too_soon(self, trainings: int) -> str:
        """Return why a tier that is slow to make does not pay; empty if it may."""
        if self._best is not None and self._best.name == "T0":
            return "not tried, T0 can train it"
        if self._rate and trainings / self._rate < PAYS_S:
            return f"not tried, the run takes less than {PAYS_S:g} s without"
        return ""

    def one(self, name: str, candidate: Candidate) -> None:
        """Make and time one tier.

        Raises:
            SettingsError: The task itself fails for every client.
        """
        self._say(_making("trying", name))
        begin, tier = time.perf_counter(), None
        try:
            tier = (candidate.probe or candidate.make)()
            cause = _cause(tier, self._sample.part(slice(FIRST)))
            if cause and name == "T3":  # the task's own fault: it costs the run those clients
                self._go_on(tier)
            elif cause:
                raise SettingsError(f"tier {name}", "a client that it can train", cause)
            made_s = time.perf_counter() - begin
            times = candidate.workers if candidate.probe else 1
            self.figures[name] = Figure(times * timed(tier, self._sample), made_s)
        except UmbelError as error:
            self.figures[name] = Figure(0.0, why=f"cannot: {error}")
            if tier is not None:
                tier.close()
            if isinstance(error, TaskFails):
                self._end()
                raise
            return
        slower = tier
        if self._best is None or self.figures[name].rate > self._rate:
            slower, self._best = self._best, tier  # type: ignore[assignment]
            self._make = candidate.make if candidate.probe else None
        if slower is not None:
            slower.close()

    def _go_on(self, tier: Tier) -> None:
        """See whether the task trains any client of the run, where it failed for the first.

        Raises:
            TaskFails: None of those that were tried.
        """
        number = min(self._sample.partitions, MOST)
        clients = np.arange(number, dtype=np.int64)
        cause = _cause(tier, replace(self._sample, clients=clients))
        if cause:
            raise TaskFails("task", "a client that it can train", f"{number} that fail: {cause}")

    def _end(self) -> None:
        """Close what is open."""
        if self._best is not None:
            self._best.close()

    def choice(self) -> Choice:
        """Return the fastest."""
        said = "; ".join(f"{name} {self.figures[name]}" for name in sorted(self.figures))
        if self._best is None:
            raise SettingsError("--tier auto", "a tier that can train the task", said or "none")
        name = self._best.name
        others = [f"{other} {self.figures[other]}" for other in self.figures if other != name]
        told = f"tier {name} ({WORDS[name]}): {self.figures[name]} in a trial"
        tier = self._best
        if self._make is not None:
            tier.close()
            tier = self._make()
        return Choice(tier, "; ".join([told, *sorted(others)]), self.figures)


def timed(tier: Tier, sample: Work) -> float:
    """Return how many clients a second a tier trains: the best of growing parts of the sample.

    Those at which it fails are not trained, and fail fast.
    """
    size, spent, best = min(FIRST, len(sample.clients)), 0.0, 0.0
    while spent < TRIAL_S:
        work = sample.part(slice(size))
        begin = time.perf_counter()
        verdicts = tier.reduce(work).report.verdicts
        took = max(time.perf_counter() - begin, 1e-9)
        trained = int(np.count_nonzero(verdicts != Verdict.FAILED))
        spent, best = spent + took, max(best, trained / took)
        size = min(2 * size, len(sample.clients))
    return best


def _cause(tier: Tier, work: Work) -> str:
    """Train some clients; return why all of them fail, empty if one does not.

    A tier that fails at all of them is not fast but wrong.
    """
    report = tier.reduce(work).report
    if not len(work.clients) or np.any(report.verdicts != Verdict.FAILED):
        return ""
    return next(iter(report.causes.values()), "no cause is known")


def _rounded(rate: float) -> str:
    """Return a rate to three digits."""
    return f"{float(f'{rate:.3g}'):,g}"
