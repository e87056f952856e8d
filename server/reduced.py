"""A run whose updates come as one: the coordinator of a simulation in which nobody joins.

    round -> attempt -> whoever drives it trains a cohort -> Handed -> floors -> step -> entry

Coordinator and round table are a deployment's (coordinator.py, attempt.py): only the way in is
another. There are no members, sessions, certificates and vectors; a cohort arrives whole, with the
names of those who are in it, as what its updates come to: mostly an int64 vector in fixed point,

    total = sum of  rint(w_i * delta_i * 2^exponent),    mean = total / (2^exponent * weight)

whose mean is rounded once, from float64 to the array's dtype. There is no single update here that
could be looked at: whoever reduces them refuses what is not finite or too long, and says whose.
"""

from __future__ import annotations

from bisect import bisect_right
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from .attempt import Attempt
from .coordinator import Coordinator
from .core.world import World
from .embedded import Embedded
from .firewall import Firewall
from .gate import NEW
from .outcome import NOTHING, Beside, refused
from .stepping import Mean, Stepped
from ..protocol.codec import Codec
from ..protocol.errors import SettingsError, StateError, VoidRound
from ..protocol.layout import Sums
from ..protocol.manifest import Manifest
from ..protocol.round_table import OVER, RoundEvent

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    from .core.run_model import RunModel
    from .history import History
    from .settings import RunSettings
    from .stepping import StepOrder
    from .surroundings import Surroundings
    from ..protocol.layout import MessageLayout


class Aggregate(Protocol):
    """What a cohort's updates come to."""

    @property
    def weight(self) -> int:
        """Sum of the weights that are in it."""

    def mean(self, layout: MessageLayout) -> Mean:
        """Return the mean update, by the words of section 32 of this layout."""


@dataclass(frozen=True, slots=True)
class FixedSum:
    """A sum in fixed point."""

    total: NDArray[np.int64] = field(repr=False)
    """Shape (values,): the averaged arrays of the manifest, each flat, one after another."""
    exponent: int
    """Bits behind the point."""
    weight: int

    def mean(self, layout: MessageLayout) -> Mean:
        """Return the weighted mean.

        Raises:
            StateError: The sum has another length than the model's averaged arrays.
        """
        return FixedMean(self, layout)


@dataclass(frozen=True, kw_only=True)
class Handed:
    """What a cohort came to."""

    update: Aggregate | None
    """None where nobody trained."""
    roster: tuple[str, ...] = ()
    """Who trained: node ids, hex, in the cohort's order."""
    survivors: tuple[str, ...] = ()
    """Whose updates are in the sum."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """Why an update is not, as a code, by node."""
    sums: Mapping[str, float | int] = field(default_factory=dict)
    """Metrics of the survivors, summed, as members would have sent them: `train.loss` …"""
    beside: Beside = NOTHING
    part: Callable[[str], AbstractContextManager[None]] = lambda _name: nullcontext()
    """Counts the seconds of a block under a name of `beside.seconds`."""
    void: str = ""
    """Why the round has no result whoever trained; empty if it may have one."""


class Flat:
    """Where the words of a message lie in a vector that has no gaps between its arrays."""

    def __init__(self, layout: MessageLayout) -> None:
        """Find where each array begins in both."""
        self._starts = [place.start for place in layout.places.values()]
        self._shift, self.size = list[int](), 0
        for place in layout.places.values():
            self._shift.append(place.start - self.size)
            self.size += place.stop - place.start

    def part(self, start: int, stop: int) -> slice:
        """Return where the words `start` to `stop`, all of one array, are."""
        shift = self._shift[bisect_right(self._starts, start) - 1]
        return slice(start - shift, stop - shift)


class FixedMean:
    """The weighted mean, out of a sum in fixed point (stepping.py, Mean)."""

    def __init__(self, found: FixedSum, layout: MessageLayout) -> None:
        """Take a sum.

        Raises:
            StateError: The sum has another length than the model's averaged arrays.
        """
        self._total, self._flat = found.total, Flat(layout)
        self._scale = 2.0**found.exponent * found.weight
        end = self._flat.size
        if self._total.shape != (end,) or self._total.dtype != np.int64:
            got = f"{self._total.dtype} of shape {self._total.shape}"
            raise StateError("reduced sum", f"int64 of shape ({end},)", got, "a fault of its tier")

    def decode(self, start: int, stop: int, out: NDArray[Any]) -> None:
        """Write the mean of these words of one array."""
        mean = np.divide(self._total[self._flat.part(start, stop)], self._scale)
        np.copyto(out, mean, casting="unsafe")


class ReducedAttempt(Attempt):
    """The coordinator's state of an attempt whose sum comes reduced."""

    model: RunModel
    """Set by the coordinator that opens it."""
    _handed: Handed

    def take(self, handed: Handed, now: float) -> None:
        """Take what a cohort came to; the attempt has a sum then, or has failed."""
        self._now, self._handed = now, handed
        self.beside = handed.beside._replace(exact=True)
        for node, code in handed.refused.items():
            self._note("refused", node, code)
        self.roster, self.survivors = handed.roster, handed.survivors
        n, u, params = len(handed.roster), len(handed.survivors), self.plan.params
        least = params.min_members
        if handed.void or n < least:
            why = handed.void or f"{n} members have trained, at least {least} are needed"
            self.fail(RoundEvent.TOO_FEW, why, now)
            return
        self._move(RoundEvent.FROZEN_PLAIN, now)
        if handed.update is None or u < params.min_survivors:
            why = f"{u} updates count, at least {params.min_survivors} are needed"
            self.fail(RoundEvent.TOO_FEW, f"{why}{refused([*handed.refused.values()])}", now)
            return
        self.codec = Codec(n, params.value_range, params.weight_cap)
        self.sums = Sums(handed.update.weight, 0, {**handed.sums})
        self._move(RoundEvent.SUMMED_PLAIN, now)

    def step(self, order: StepOrder) -> Stepped:
        """Make the next model out of the sum; VoidRound if a value of it would not be finite."""
        model, update = self.model, self._handed.update
        if update is None:
            raise VoidRound("the attempt has no sum")
        with self._handed.part("aggregate"):
            digest = model.step(order, update.mean(order.layout))
        return Stepped(digest, model.stepped_packed, model.moments_packed, model.memory)

    def tick(self, now: float) -> None:
        """Wait: whoever drives the rounds is at work on this one."""
        self._now = now


class ReducedCoordinator(Coordinator):
    """One run that takes sums."""

    def __init__(
        self,
        settings: RunSettings,
        model: Mapping[str, NDArray[Any]],
        metrics: Mapping[str, Mapping[str, int]],
        around: Surroundings,
        history: History | None = None,
    ) -> None:
        """As `Coordinator`; the model is in this process.

        Raises:
            SettingsError: The run has masks.
        """
        if settings.scheme != "plain":
            raise SettingsError("scheme", "plain, for no masked vector comes here", settings.scheme)
        cap = settings.params.weight_cap
        firewall = Firewall(Manifest.of(model), max_norm=settings.max_norm, weight_cap=cap)
        self._embedded = Embedded(World(), firewall)
        super().__init__(settings, model, metrics, replace(around, core=self._embedded), history)

    def take(self, handed: Handed, now: float) -> None:
        """Take what the cohort of the open attempt came to, and go on: commit, try again, end.

        Raises:
            StateError: No attempt is open.
        """
        attempt = self._attempt
        if not isinstance(attempt, ReducedAttempt) or attempt.phase in OVER:
            raise StateError("coordinator", "an open attempt", "none", "begin the run first")
        attempt.take(handed, now)
        self._conclude(now)

    @property
    def tries(self) -> int:
        """How often the open round was tried before, by this process."""
        return self._tries - 1

    def _invite(self, now: float, before: str = NEW) -> None:
        """Open an attempt; `before` says what failed."""
        self._tries += 1
        plan = self._planner.plan(self._place, self._tries - 1, self._roll, self.note)
        attempt = self._opened(ReducedAttempt, plan, now)
        attempt.model = self._embedded.model
        self._attempt = attempt
