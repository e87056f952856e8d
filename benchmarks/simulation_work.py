"""The workloads on which simulators are compared: data, clients, cohorts. Numpy only.

    name    model (torch_simulation.py)      clients  a round  examples each
    mlp     784-76-10, 60,430 parameters     1,000    100      50
    cnn     two convolutions, 60,328         1,000    100      50
    cifar   pfl-research's model, 1.6 M      200      20       50

One local epoch of FedAvg, batches of 10, SGD with lr 0.1, nothing is evaluated. Images of mlp and
cnn are ten 7x7 prototypes, blown up to 28x28, with noise; cifar's are noise, for timing only. All
engines read the same two mapped files, and train the cohort that `cohort` draws for a round, but
for those that draw their own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

LR, BATCH = 0.1, 10
CLASSES = 10


@dataclass(frozen=True, kw_only=True)
class Workload:
    """One of them."""

    clients: int
    cohort: int
    shape: tuple[int, ...]
    """Of one input."""
    samples: int = 50
    """Examples of a client."""

    def rows(self, client: int) -> slice:
        """Return a client's rows of the data."""
        return slice(client * self.samples, (client + 1) * self.samples)

    def drawn(self, round_: int) -> NDArray[np.int64]:
        """Return who trains in a round."""
        drawn = np.random.RandomState(1000 + round_).choice(self.clients, self.cohort, False)
        return drawn.astype(np.int64)


WORKLOADS = {
    "mlp": Workload(clients=1000, cohort=100, shape=(784,)),
    "cnn": Workload(clients=1000, cohort=100, shape=(1, 28, 28)),
    "cifar": Workload(clients=200, cohort=20, shape=(3, 32, 32)),
}


def write_data(name: str, folder: Path) -> None:
    """Make a workload's data."""
    work = WORKLOADS[name]
    count = work.clients * work.samples
    rng = np.random.RandomState(2 if name == "cifar" else 1)
    if name == "cifar":
        labels = rng.randint(0, CLASSES, count)
        inputs = rng.standard_normal((count, *work.shape)).astype(np.float32)
    else:
        prototypes = np.kron(rng.standard_normal((CLASSES, 7, 7)), np.ones((4, 4)))
        labels = rng.randint(0, CLASSES, count)
        noise = rng.standard_normal((count, 28, 28)).astype(np.float32)
        noise += 0.6 * prototypes.astype(np.float32)[labels]
        inputs = noise.reshape(count, *work.shape)
    np.save(folder / "inputs.npy", inputs)
    np.save(folder / "labels.npy", labels.astype(np.int64))


def mapped(folder: Path) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return inputs and labels, mapped from their files."""
    inputs = np.load(folder / "inputs.npy", mmap_mode="c")
    return inputs, np.load(folder / "labels.npy", mmap_mode="c")
