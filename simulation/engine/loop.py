"""Tiers T3 and T1 for tasks, in this process: one client after another, as a device trains it.

Slow and sure: in T3 `TaskTrainer` does here what it does on a device, with nothing replaced, so
this is what the other tiers are compared with. T1 is the same with steps that are compiled
(torch_epoch.py). User code runs behind the boundary; what it raises costs one client and not the
round.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from .examples import Examples
from .isolation import TRAINING, cause, isolated, seed
from .reducing import Rows, Sum, Tally, Trained
from ...clients.child import boundary
from ...protocol.errors import Refused
from ...strategies.trainer import TaskTrainer, engine

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from numpy.typing import NDArray

    from .work import Reduced, Report, Work
    from ...strategies.task import Task
    from ...strategies.trainer import Engine


class Loop:
    """Trains one client after another."""

    def __init__(self, task: Task, name: str = "T3") -> None:
        """Build the task's model.

        Raises:
            Refused: The task raised, or T1 cannot train it.
        """
        self.name = name
        with boundary():
            self.trainer = TaskTrainer(task, _compiled() if name == "T1" else engine)

    def reduce(self, work: Work) -> Reduced:
        """Train and return the sum."""
        tally = Tally(work)
        with isolated():
            examples = Examples(self.trainer, work, tally, range(len(work.clients)))
            found = Sum(work, examples.weight, tally)
            self._train(work, examples, found, list(examples.counts))
        return found.reduced()

    def rows(self, work: Work, out: NDArray[Any]) -> Report:
        """Train and write each client's update into its row."""
        found = Rows(work, out)
        with isolated():
            for index in range(len(work.clients)):
                examples = Examples(self.trainer, work, found.tally, [index])
                self._train(work, examples, found, examples.counts)
        return found.tally.report()

    def close(self) -> None:
        """Do nothing: nothing was started."""

    def _train(
        self, work: Work, examples: Examples, into: Sum | Rows, indices: Iterable[int]
    ) -> None:
        """Train these clients."""
        for index in list(indices):
            try:
                into.take(index, self.client(work, examples, index))
            except Refused as error:
                into.tally.failed(index, cause(error))

    def client(self, work: Work, examples: Examples, index: int) -> Trained:
        """Train one client behind the boundary."""
        data, site, model = examples.take(index), work.site(index), work.model(index)
        settings = replace(work.settings, round=site.round)
        with boundary():
            seed(site, TRAINING)
            self.trainer.load(model)
            found = self.trainer.evaluated(data) if work.evaluate else {}
            loss = self.trainer.fit(data, site, settings)
            update = list(self.trainer.update(model).values())
        metrics = {name.partition(".")[2]: float(value) for name, value in found.items()}
        return Trained(update, examples.counts[index], loss, metrics)


def _compiled() -> Callable[[Task, Any], Engine]:
    """Return what trains in T1."""
    from .torch_epoch import CompiledEngine  # noqa: PLC0415 - T3 runs without torch

    return CompiledEngine
