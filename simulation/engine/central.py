"""The server's own test of a model, in the simulator's process: every n rounds, and of the last.

The examples are asked for once. A test costs what it costs: the round waits for it, because its
numbers stand in the round's entry and depend on no clock. The native tier measures what it can
itself, on all its threads; else the task does, in this one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .tiers import tester
from ...clients.child import boundary
from ...protocol.errors import Refused

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    from .work import Tier
    from ...strategies.trainer import TaskTrainer


class CentralTest:
    """Tests models by a task's own test data."""

    def __init__(
        self,
        trainer: TaskTrainer,
        tier: Tier,
        every: int,
        rounds: int,
        said: Callable[[str], None],
    ) -> None:
        """Ask the task for its examples.

        Args:
            trainer: Of the task.
            tier: Who trains.
            every: So many rounds; 0 for never.
            rounds: The last of them is tested whatever its number, unless none is.
            said: Takes why there is no test of a model.

        Raises:
            Refused: The task raised.
        """
        self._trainer, self._every, self._rounds, self._said = trainer, every, rounds, said
        with boundary():
            self._data: Any = trainer.task.test_data() if every else None
            self._split = [] if self._data is None else trainer.split(self._data)
        self._tester = tester(tier, self._data) if self._split else None

    def due(self, number: int) -> bool:
        """Say whether the model of a round is tested."""
        return bool(self._split) and (number % self._every == 0 or number == self._rounds)

    def test(self, arrays: Mapping[str, NDArray[Any]]) -> dict[str, float]:
        """Return means by name; what the examples do to the task is no reason to lose a round."""
        try:
            with boundary():
                if self._tester is not None:
                    found = self._tester.measured(arrays, self._split)
                else:
                    found = self._trainer.measured(arrays, self._data, self._split)
                return self._trainer.tested(found)
        except Refused as error:
            self._said(f"server: no test of the model: {error}")
            return {}
