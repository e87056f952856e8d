"""What is learned: 1,797 real handwritten digits, 8 by 8 pixels, spread unevenly over clients.

The data is the file that scikit-learn ships (E. Alpaydin and C. Kaynak, UCI, 1998). 359 digits,
one in five of every class, are the server's test set; the others are dealt to the clients class by
class with shares drawn from Dirichlet(0.3), so most clients know a few digits well and others
hardly. The seed of the deal is one of those in which no client holds almost all of one digit:
whoever is lost, the others can still learn all ten.
"""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

import umbel
from umbel.strategies.partition import DirichletPartitioner

ALPHA, TEST_SHARE, SPLIT_SEED, DEAL_SEED = 0.3, 0.2, 0, 63


class Digits(umbel.Task):
    """A perceptron with one hidden layer; it needs numpy only."""

    optimizer = umbel.SGD(lr=0.3)
    epochs = 5
    batch_size = 16

    def model(self) -> Any:
        """Return the model, drawn from the run's seed."""
        return umbel.MLP(64, 32, 10)

    def train_data(self, site: umbel.Site) -> tuple[Any, Any]:
        """Return the digits of one partition."""
        images, labels, _, _ = digits()
        rows = partitions(site.partitions or 1)[site.partition or 0]
        return images[rows], labels[rows]

    def test_data(self) -> tuple[Any, Any]:
        """Return the test set."""
        _, _, images, labels = digits()
        return images, labels


class TorchDigits(Digits):
    """The same model in torch: both kinds of client can train one model together."""

    def model(self) -> Any:
        """Return the model, drawn from the run's seed."""
        from torch import nn  # noqa: PLC0415 - only this class needs torch

        return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


@cache
def digits() -> tuple[Any, Any, Any, Any]:
    """Return training images, training labels, test images and test labels.

    Images are float32 in 0 to 1, shape (1438 or 359, 64). Read from scikit-learn's own file:
    importing the library for it would cost every client a second and 80 MB.
    """
    library = find_spec("sklearn")
    if library is None or library.origin is None:
        raise ModuleNotFoundError("the digits come with scikit-learn: pip install scikit-learn")
    file = Path(library.origin).parent / "datasets" / "data" / "digits.csv.gz"
    table = np.loadtxt(file, delimiter=",", dtype=np.float32)
    images, labels = table[:, :64] / 16, table[:, 64].astype(np.int64)
    rng = np.random.RandomState(SPLIT_SEED)  # its streams are the same in every numpy
    test = np.zeros(len(labels), dtype=bool)
    for digit in range(10):
        rows = rng.permutation(np.flatnonzero(labels == digit))
        test[rows[: round(TEST_SHARE * len(rows))]] = True
    return images[~test], labels[~test], images[test], labels[test]


@cache
def partitions(count: int) -> list[Any]:
    """Return the rows of each client among the training digits."""
    split = DirichletPartitioner(
        num_partitions=count, alpha=ALPHA, min_partition_size=10, seed=DEAL_SEED
    )
    return split.partitions(digits()[1])
