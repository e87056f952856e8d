"""Training with numpy alone: the `Engine` of devices without torch.

The model is one of `numpy_models` (its gradients are written by hand), or a mapping of named
arrays with the task's loss as a function `(arrays, batch) -> (mean loss, gradients by name)`.
Data is a pair `(inputs, targets)` of arrays with one row an example.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from .metrics import Metrics
from .numpy_models import LOSSES, MLP
from .task import batches, stream
from ..protocol.errors import SettingsError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .optimizers import Optimizer
    from .task import Task
    from .trainer import Local

Pair = tuple["NDArray[Any]", "NDArray[Any]"]


class NumpyEngine:
    """One task and one numpy model."""

    def __init__(self, task: Task, model: Any) -> None:
        """Check that model and loss fit each other.

        Raises:
            SettingsError: The model is of no known kind, or its loss is not.
        """
        if isinstance(model, MLP):
            if not isinstance(task.loss, str) or task.loss not in LOSSES:
                raise SettingsError("task.loss", f"one of {sorted(LOSSES)}", task.loss)
        elif not isinstance(model, Mapping):
            raise SettingsError(
                "task.model()", "an nn.Module, an MLP or named arrays", type(model).__name__
            )
        elif not callable(task.loss):
            raise SettingsError(
                "task.loss", "a function (arrays, batch) -> (loss, gradients)", task.loss
            )
        self.task = task
        self.model = model
        self._own: Mapping[str, NDArray[Any]] = (
            model if isinstance(model, Mapping) else model.arrays
        )

    def reset(self, seed: int) -> None:
        """Draw the initial model of a run, unless the task fixed its seed or its arrays."""
        if isinstance(self.model, MLP):
            if not self.model.seeded:
                self.model.reset(stream(seed, "initial model"))
        else:
            self.load(self.task.model())

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return copies of all arrays."""
        return {name: np.array(array) for name, array in self._own.items()}

    def load(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Copy `arrays` into the model's own."""
        for name, array in self._own.items():
            array[...] = arrays[name]

    def count(self, data: Pair) -> int:
        """Return the number of rows.

        Raises:
            SettingsError: Inputs and targets differ in length.
        """
        inputs, targets = data
        if len(inputs) != len(targets):
            raise SettingsError("task data", f"{len(inputs)} targets", len(targets))
        return len(inputs)

    def part(self, data: Pair, rows: range) -> Pair:
        """Return views of these rows."""
        inputs, targets = data
        return inputs[rows.start : rows.stop], targets[rows.start : rows.stop]

    def fit(self, data: Pair, optimizer: Optimizer, local: Local) -> float:
        """Train in place and return the loss, summed over every example of every epoch."""
        inputs, targets = (np.asarray(part) for part in data)
        floats = {k: a for k, a in self._own.items() if a.dtype.kind == "f"}
        step, received = optimizer.start(floats), _copies(floats) if local.mu else {}
        total = 0.0
        for rows in batches(local, len(inputs)):
            loss, gradients = self._gradients(inputs[rows], targets[rows])
            if local.mu:
                gradients = {
                    k: g + local.mu * (floats[k] - received[k]) for k, g in gradients.items()
                }
            step(gradients)
            total += loss * len(rows)
        return total

    def evaluate(self, data: Pair) -> Metrics:
        """Return examples, the sum of losses and, for classes, how many were right."""
        inputs, targets = (np.asarray(part) for part in data)
        if not isinstance(self.model, MLP):
            loss, _ = self._gradients(inputs, targets)
            return Metrics(examples=len(inputs), loss=float(loss) * len(inputs))
        outputs = self.model.forward(inputs)
        loss, _ = LOSSES[str(self.task.loss)](outputs, targets)
        found = Metrics(examples=len(inputs), loss=loss * len(inputs))
        if self.task.loss == "cross_entropy":
            found["correct"] = int((outputs.argmax(axis=1) == targets).sum())
        return found

    def _gradients(
        self, inputs: NDArray[Any], targets: NDArray[Any]
    ) -> tuple[float, Mapping[str, NDArray[Any]]]:
        """Return mean loss and gradients of one batch."""
        if isinstance(self.model, MLP):
            return self.model.gradients(inputs, targets, str(self.task.loss))
        found: tuple[float, Mapping[str, NDArray[Any]]] = self.task.loss(  # type: ignore[operator]
            self.model, (inputs, targets)
        )
        return found


def _copies(arrays: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    return {name: array.copy() for name, array in arrays.items()}
