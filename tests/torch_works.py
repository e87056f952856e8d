"""Torch tasks for the tests of the simulator's tiers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from umbel import SGD, Adam, Site, Task
from umbel.tests.engine_works import CLASSES, FEATURES, examples

if TYPE_CHECKING:
    from umbel.strategies.optimizers import Optimizer


class TorchTask(Task):
    """A model of `layers()` over the examples of `engine_works`."""

    optimizer: Optimizer = SGD(lr=0.2)
    batch_size = 10
    dtype = torch.float32

    def layers(self) -> torch.nn.Module:
        """Return two layers."""
        return torch.nn.Sequential(
            torch.nn.Linear(FEATURES, 9), torch.nn.ReLU(), torch.nn.Linear(9, CLASSES)
        )

    def model(self) -> torch.nn.Module:
        """Return the layers, always the same."""
        with torch.random.fork_rng():
            torch.manual_seed(3)
            return self.layers().to(self.dtype)

    def train_data(self, site: Site) -> Any:
        """Return one client's rows."""
        inputs, labels = examples(site.index)
        return torch.from_numpy(inputs).to(self.dtype), torch.from_numpy(labels)


class Momentum(TorchTask):
    """Momentum and weight decay, two epochs."""

    optimizer = SGD(lr=0.1, momentum=0.9, weight_decay=0.01)
    epochs = 2


class Adaptive(TorchTask):
    """Adam with weight decay."""

    optimizer = Adam(lr=0.01, weight_decay=0.1)
    epochs = 2


class Dropped(TorchTask):
    """Two dropout layers."""

    def layers(self) -> torch.nn.Module:
        """Return layers with dropout between."""
        return torch.nn.Sequential(
            torch.nn.Linear(FEATURES, 16),
            torch.nn.Dropout(0.25),
            torch.nn.ReLU(),
            torch.nn.Linear(16, 9),
            torch.nn.Dropout(0.5),
            torch.nn.Linear(9, CLASSES),
        )


class Squared(TorchTask):
    """A regression."""

    loss = "mse"

    def layers(self) -> torch.nn.Module:
        """Return one output a row."""
        return torch.nn.Sequential(
            torch.nn.Linear(FEATURES, 9), torch.nn.Tanh(), torch.nn.Linear(9, 1)
        )

    def train_data(self, site: Site) -> Any:
        """Return targets that are numbers."""
        inputs, labels = examples(site.index)
        return torch.from_numpy(inputs).to(self.dtype), torch.from_numpy(labels) / 2.0


class Convolved(TorchTask):
    """Convolution, normalisation by group, pooling; a parameter that is frozen, one unused."""

    optimizer = SGD(lr=0.1, weight_decay=0.05)

    def layers(self) -> torch.nn.Module:
        """Return layers over 3 x 4 pictures."""
        made = torch.nn.Sequential(
            torch.nn.Unflatten(1, (1, 3, 4)),
            torch.nn.Conv2d(1, 4, 3, padding=1),
            torch.nn.GroupNorm(2, 4),
            torch.nn.ReLU(),
            torch.nn.AvgPool2d(2),
            torch.nn.Flatten(),
            torch.nn.Linear(8, CLASSES),
        )
        made[2].bias.requires_grad_(False)
        made.register_parameter("unused", torch.nn.Parameter(torch.ones(3)))
        made.register_buffer("count", torch.tensor(4))
        return made


def doubled(task: type[TorchTask]) -> TorchTask:
    """Return a task in float64."""
    made = task()
    made.dtype = torch.float64
    return made
