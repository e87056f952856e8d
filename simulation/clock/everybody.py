"""A clock without a fleet: everybody is there, nothing takes time, nobody is lost."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .decision import Decision, Outcome
from .kept import numbers_of
from .picking import chosen
from ...protocol.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .decision import State


class Everybody:
    """All clients in each round, or a cohort of them that is drawn for the round."""

    name = "everybody"
    now = 0.0

    def __init__(
        self, clients: int, cohort: int | None = None, *, seed: int = 0, down: int = 0, up: int = 0
    ) -> None:
        """Take how many there are and how many a round asks.

        Args:
            clients: How many are registered.
            cohort: How many of them train in a round; None for all.
            seed: Of the run.
            down: Bytes of the model that each of them gets.
            up: Bytes of an update.

        Raises:
            SettingsError: There are fewer clients than the cohort.
        """
        if cohort is not None and not 1 <= cohort <= clients:
            raise SettingsError("cohort", f"1 to {clients}, the number of clients", cohort)
        self.clients, self.seed = clients, seed
        self.cohort = clients if cohort is None else cohort
        self._bytes = down, up

    def __str__(self) -> str:
        """Say who takes part, for the log."""
        return f"none, {self.cohort:,} of {self.clients:,} clients a round and all at once"

    def decide(self, round_: int, attempt: int = 0) -> Decision:
        """Return the round's cohort, all of it used; see `Clock`."""
        if self.cohort == self.clients:
            invited = np.arange(self.clients, dtype=np.int64)
        else:
            invited = chosen(self.cohort, self.clients, self.seed, round_, attempt)
        down, up = (np.full(len(invited), size, np.int64) for size in self._bytes)
        return Decision(
            round=round_,
            opened=0.0,
            closed=0.0,
            invited=invited,
            outcomes=np.full(len(invited), Outcome.USED, np.uint8),
            seconds=np.zeros(len(invited)),
            received=down,
            sent=up,
        )

    def state(self) -> State:
        """Return nothing: every round is drawn for itself."""
        return {}

    def restore(self, state: Mapping[str, object]) -> None:
        """Take nothing; see `Clock`."""
        numbers_of(state, set())
