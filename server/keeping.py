"""Which rounds stay on the disk beside the newest: the best one, and those still needed.

A round is judged when it has finished and, where the server tests models while the rounds go on
(evaluation.py), again when its test is done. Until then its folder is held. Rounds that were
tested stand above those that were not (`outcome.score`), so with a test the best round is the
best of those that were.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import outcome

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .surroundings import Rounds, Tests


class Keeping:
    """The rule, for one coordinator."""

    def __init__(
        self,
        directory: Rounds,
        best: tuple[tuple[float, float], int] | None,
        tests: Tests | None = None,
    ) -> None:
        """Prune `directory`.

        Args:
            directory: Where the rounds are.
            best: Score and number of the best round so far.
            tests: What tests models after their rounds, if anything does.
        """
        self._directory, self._best, self._tests = directory, best, tests
        self._held: tuple[int, ...] = ()

    def finished(
        self,
        number: int,
        digest: bytes,
        metrics: Mapping[str, float],
        held: tuple[int, ...] = (),
    ) -> None:
        """Judge a round by its own entry, and have its model tested.

        `held` are rounds from whose models somebody still trains.
        """
        self._held = held
        if self._tests is not None:
            self._tests.submit(number, digest)
        self.tested(number, metrics)

    def tested(self, number: int, metrics: Mapping[str, float]) -> None:
        """Judge a round, and remove what need not stay any more."""
        score = outcome.score(metrics)
        if self._best is None or score > self._best[0]:
            self._best = score, number
        held = self._tests.held if self._tests is not None else ()
        self._directory.prune(self._best[1], *self._held, *held)
