"""Tasks that the native tier's tests share: ragged clients, one of a single example."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import numpy as np

from umbel.simulation.engine.loop import Loop
from umbel.simulation.engine.work import Reduced, Work
from umbel.strategies.optimizers import SGD
from umbel.strategies.task import Site, Task
from umbel.strategies.trainer import Settings, TaskTrainer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from umbel.strategies.optimizers import Optimizer

SIZES = (12, 7, 1, 25, 10)
"""Examples a client: two batches of ten and a part of one, exactly one, a single example."""


class Ragged(Task):
    """A model over normal inputs; classes, or targets that are a row of numbers."""

    batch_size = 10

    def __init__(
        self,
        make: Callable[[], Any],
        shape: Sequence[int],
        outputs: int,
        *,
        loss: str = "cross_entropy",
        optimizer: Optimizer = SGD(lr=0.1),  # noqa: B008 - frozen
        dtype: Any = np.float32,
        sizes: Sequence[int] = SIZES,
    ) -> None:
        self.make, self.loss, self.optimizer = make, loss, optimizer
        rng = np.random.Generator(np.random.Philox(11))
        self.pairs: list[tuple[NDArray[Any], NDArray[Any]]] = []
        for size in sizes:
            x = rng.normal(size=(size, *shape)).astype(dtype)
            classes = rng.integers(0, outputs, size)
            y = classes if loss == "cross_entropy" else rng.normal(size=(size, outputs))
            self.pairs.append((x, y if loss == "cross_entropy" else y.astype(dtype)))

    def model(self) -> Any:
        """Return the model."""
        return self.make()

    def train_data(self, site: Site) -> Any:
        """Return one client's examples."""
        return self.pairs[site.partition or 0]


def tensors(task: Ragged) -> Ragged:
    """Return the task with its examples as tensors, for a model of torch."""
    torch = sys.modules["torch"]
    task.pairs = [tuple(torch.from_numpy(part) for part in pair) for pair in task.pairs]
    return task


def work_of(task: Task, clients: Sequence[int] = range(len(SIZES)), **other: Any) -> Work:
    """Return one round of everybody from the model of seed 3."""
    start = TaskTrainer(task).arrays(3)
    numbers = Settings(round=2, seed=7, **other.pop("numbers", {}))
    return Work(
        clients=np.asarray(clients, np.int64),
        partitions=max(len(SIZES), len(clients)),
        models=[start],
        settings=numbers,
        **other,
    )


def mean(found: Reduced) -> NDArray[np.float64]:
    """Return the mean update of a sum."""
    scaled: NDArray[np.float64] = found.total / (2.0**found.exponent * found.weight)
    return scaled


def loop(task: Task, work: Work) -> Reduced:
    """Return what a device's own training gives."""
    return Loop(task).reduce(work)
