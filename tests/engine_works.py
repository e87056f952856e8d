"""Works for the tests of the simulator's tiers: small tasks with ragged clients, and who trains."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from umbel import MLP, SGD, Site, Task
from umbel.simulation.engine.work import Work
from umbel.strategies.trainer import Settings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

SIZES = (23, 1, 10, 7, 31, 2, 16, 12)
"""Examples of each client: partial batches, a batch of one, whole ones."""
FEATURES, CLASSES = 12, 5


def examples(client: int, dtype: Any = np.float32) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Return one client's rows: a class shifts the mean of the inputs."""
    rng = np.random.default_rng(100 + client)
    labels = rng.integers(0, CLASSES, SIZES[client])
    inputs = rng.normal(size=(SIZES[client], FEATURES)) + 0.7 * labels[:, None]
    return inputs.astype(dtype), labels


class NumpyTask(Task):
    """A small MLP by hand-written gradients."""

    optimizer = SGD(lr=0.2)
    batch_size = 10
    dtype: Any = np.float32

    def model(self) -> MLP:
        """Return two layers."""
        return MLP(FEATURES, 9, CLASSES, seed=3, dtype=self.dtype)

    def train_data(self, site: Site) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """Return one client's rows."""
        return examples(site.index, self.dtype)


class NumpyTask64(NumpyTask):
    """The same in float64."""

    dtype = np.float64


def work(models: Mapping[str, NDArray[Any]], clients: Any = (4, 0, 1, 6, 3), **more: Any) -> Work:
    """Return a work of one model over the clients of `SIZES`."""
    given: dict[str, Any] = {"settings": Settings(round=3, seed=11), **more}
    numbers = np.array(clients, np.int64)
    return Work(clients=numbers, partitions=len(SIZES), models=[models], **given)
