"""The examples of a cohort, and how many there are before anybody trains.

The exponent of a sum follows from the weights of the whole cohort, so every client's examples are
asked for once before the first one trains. They are held until they are used while they are small;
beyond `HELD` bytes a client's are dropped again, and the task is asked a second time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .isolation import DATA, cause, seed
from ...clients.child import boundary
from ...protocol import messages_pb2 as pb
from ...protocol.errors import Refused

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .reducing import Tally
    from .work import Work
    from ...strategies.trainer import TaskTrainer

HELD = 1 << 28
"""Bytes of examples that are held between counting and training."""


class Examples:
    """Of some clients of a work; used inside `isolated`."""

    def __init__(
        self, trainer: TaskTrainer, work: Work, tally: Tally, indices: Iterable[int]
    ) -> None:
        """Ask for them and note who has none."""
        self._trainer, self._work = trainer, work
        self._held: dict[int, Any] = {}
        self.counts: dict[int, int] = {}
        """By index, in the order asked for; those whose task raised are not in it."""
        size = 0
        for index in indices:
            try:
                data, self.counts[index] = self._ask(index)
            except Refused as error:
                tally.failed(index, cause(error))
                continue
            size += nbytes(data)
            if size <= HELD:
                self._held[index] = data

    @property
    def weight(self) -> int:
        """What the weights of these clients add up to."""
        return sum(min(count, self._work.weight_cap) for count in self.counts.values())

    def take(self, index: int) -> Any:
        """Return one client's, once.

        Raises:
            Refused: The task raised, or has more than were counted: its weight has no room.
        """
        if index in self._held:
            return self._held.pop(index)
        data, count = self._ask(index)
        if count > (known := self.counts.get(index, count)):
            what = f"train_data(site): expected {known} examples, as before, got {count}"
            raise Refused(pb.REASON_TASK_FAILED, what)
        self.counts[index] = count
        return data

    def _ask(self, index: int) -> tuple[Any, int]:
        """Ask the task, behind the boundary to user code."""
        site = self._work.site(index)
        with boundary():
            seed(site, DATA)
            return self._trainer.data(site)


def nbytes(data: Any) -> int:
    """Return the bytes of a pair of arrays or tensors; 0 for a data set that reads when asked."""
    parts = data if isinstance(data, tuple | list) else ()
    return sum(int(getattr(part, "nbytes", 0)) for part in parts)
