"""Local optimisers as values: what a task declares, and the step over named numpy arrays.

The formulas are those of `torch.optim` (no dampening, no Nesterov, no amsgrad), so that a device
with numpy and one with torch walk the same path. State begins empty at every round: a client keeps
nothing between rounds.

SGD     g += wd*p;  b = g (first step) or m*b + g;  p -= lr*b
Adam    g += wd*p;  m = b1*m + (1-b1)*g;  v = b2*v + (1-b2)*g*g
        p -= lr/(1-b1^t) * m / (sqrt(v)/sqrt(1-b2^t) + eps)        Kingma & Ba 2015, algorithm 1
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..protocol.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    Arrays = Mapping[str, NDArray[Any]]
    Step = Callable[[Arrays], None]


def _check(where: str, value: float, *, below: float = math.inf, positive: bool = False) -> None:
    """Raise unless `value` is in [0, below), or in (0, below)."""
    if not (value > 0 if positive else value >= 0) or not value < below:
        low = "above 0" if positive else "at least 0"
        top = "" if below == math.inf else f" and below {below:g}"
        raise SettingsError(where, f"a number {low}{top}", value)


@dataclass(frozen=True, slots=True)
class SGD:
    """Stochastic gradient descent with momentum and L2 weight decay."""

    lr: float
    momentum: float = 0.0
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        """Check the ranges."""
        _check("SGD.lr", self.lr, positive=True)
        _check("SGD.momentum", self.momentum, below=1.0)
        _check("SGD.weight_decay", self.weight_decay)

    def start(self, arrays: Arrays) -> Step:
        """Return the step that moves `arrays` in place, given gradients of the same names."""
        buffers: dict[str, NDArray[Any]] = {}

        def step(gradients: Arrays) -> None:
            for name, gradient in gradients.items():
                move = gradient
                if self.weight_decay:
                    move = move + self.weight_decay * arrays[name]
                if self.momentum:
                    old = buffers.get(name)
                    move = move.copy() if old is None else self.momentum * old + move
                    buffers[name] = move
                np.subtract(arrays[name], self.lr * move, out=arrays[name])

        return step


@dataclass(frozen=True, slots=True)
class Adam:
    """Adam with L2 weight decay in the gradient, as `torch.optim.Adam`."""

    lr: float
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        """Check the ranges."""
        _check("Adam.lr", self.lr, positive=True)
        _check("Adam.betas[0]", self.betas[0], below=1.0)
        _check("Adam.betas[1]", self.betas[1], below=1.0)
        _check("Adam.eps", self.eps, positive=True)
        _check("Adam.weight_decay", self.weight_decay)

    def start(self, arrays: Arrays) -> Step:
        """Return the step that moves `arrays` in place, given gradients of the same names."""
        first = {name: np.zeros_like(array) for name, array in arrays.items()}
        second = {name: np.zeros_like(array) for name, array in arrays.items()}
        beta1, beta2 = self.betas
        count = 0

        def step(gradients: Arrays) -> None:
            nonlocal count
            count += 1
            size, root = self.lr / (1 - beta1**count), math.sqrt(1 - beta2**count)
            for name, gradient in gradients.items():
                g = gradient + self.weight_decay * arrays[name]
                first[name] = beta1 * first[name] + (1 - beta1) * g
                second[name] = beta2 * second[name] + (1 - beta2) * g * g
                move = size * first[name] / (np.sqrt(second[name]) / root + self.eps)
                np.subtract(arrays[name], move, out=arrays[name])

        return step


Optimizer = SGD | Adam
