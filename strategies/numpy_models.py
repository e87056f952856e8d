"""Small models with hand-written gradients, for devices without torch.

A model is named arrays and two functions: outputs, and gradients of a mean loss. Names and layouts
are those of the `nn.Sequential` of Linear and ReLU layers ("0.weight" of shape (out, in),
"0.bias", "2.weight", ...), so numpy devices and torch silos train one model together.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from ..protocol.errors import SettingsError

if TYPE_CHECKING:
    from numpy.typing import DTypeLike, NDArray

    Floats = NDArray[Any]


def cross_entropy(logits: Floats, labels: NDArray[Any]) -> tuple[float, Floats]:
    """Return the mean softmax cross-entropy and its gradient in the logits.

    Args:
        logits: Shape (batch, classes).
        labels: Shape (batch,), integers in `range(classes)`.

    Raises:
        SettingsError: They are not: numpy would take -1 for the last class, and a column of
            labels for a table.
    """
    count, classes = logits.shape
    if labels.shape != (count,) or labels.dtype.kind not in "iu":
        got = f"{labels.dtype} of shape {labels.shape}"
        raise SettingsError("labels", f"integers of shape ({count},)", got)
    if count and (labels.min() < 0 or labels.max() >= classes):
        got = f"{labels.min()} to {labels.max()}"
        raise SettingsError("labels", f"classes from 0 to {classes - 1}", got)
    rows = np.arange(len(labels))
    shifted = logits - logits.max(axis=1, keepdims=True)
    exponentials = np.exp(shifted)
    totals = exponentials.sum(axis=1, keepdims=True)
    losses = np.log(totals[:, 0]) - shifted[rows, labels]
    gradient = exponentials / totals
    gradient[rows, labels] -= 1
    return float(losses.mean(dtype=np.float64)), gradient / len(labels)


def mse(outputs: Floats, targets: NDArray[Any]) -> tuple[float, Floats]:
    """Return the squared error, mean over all elements, and its gradient in the outputs.

    Args:
        outputs: Shape (batch, values).
        targets: The same shape, or (batch,) when there is one value.
    """
    difference = outputs - targets.reshape(outputs.shape).astype(outputs.dtype, copy=False)
    loss = float(np.mean(difference * difference, dtype=np.float64))
    return loss, difference * (2.0 / difference.size)


LOSSES = {"cross_entropy": cross_entropy, "mse": mse}


class MLP:
    """Linear layers with ReLU between: `MLP(64, 32, 10)` has 64 inputs and 10 outputs.

    Weights and biases start uniform in ±1/sqrt(inputs of the layer), as torch's Linear does.
    """

    def __init__(self, *sizes: int, seed: int | None = None, dtype: DTypeLike = np.float32) -> None:
        """Make the arrays; with `seed=None` the run's own seed draws them again."""
        if len(sizes) < 2 or min(sizes) < 1:  # noqa: PLR2004 - inputs and outputs
            raise SettingsError("MLP(sizes)", "two or more sizes of at least 1", sizes)
        self.dtype = np.dtype(dtype)
        if self.dtype not in (np.float32, np.float64):
            raise SettingsError("MLP(dtype)", "float32 or float64", str(self.dtype))
        self.sizes = sizes
        self.seeded = seed is not None
        self.arrays: dict[str, Floats] = {}
        self.reset(np.random.Philox(0 if seed is None else seed))

    def reset(self, bits: np.random.Philox) -> None:
        """Draw all arrays anew, from raw words: the same on every numpy."""
        for layer, (fan_in, fan_out) in enumerate(pairwise(self.sizes)):
            for name, shape in (("weight", (fan_out, fan_in)), ("bias", (fan_out,))):
                words = np.asarray(bits.random_raw(math.prod(shape)) >> np.uint64(11))
                uniform = words.astype(np.float64) * 2.0**-52 - 1.0
                values = (uniform / math.sqrt(fan_in)).reshape(shape)
                self.arrays[f"{2 * layer}.{name}"] = values.astype(self.dtype)

    def forward(self, inputs: NDArray[Any]) -> Floats:
        """Return the outputs, shape (batch, outputs)."""
        return self._layers(inputs)[-1]

    def gradients(
        self, inputs: NDArray[Any], targets: NDArray[Any], loss: str
    ) -> tuple[float, dict[str, Floats]]:
        """Return the mean loss of a batch and its gradient for every array."""
        values = self._layers(inputs)
        result, upstream = LOSSES[loss](values[-1], targets)
        gradients: dict[str, Floats] = {}
        for layer in reversed(range(len(self.sizes) - 1)):
            gradients[f"{2 * layer}.weight"] = upstream.T @ values[layer]
            gradients[f"{2 * layer}.bias"] = upstream.sum(axis=0)
            if layer:
                upstream = upstream @ self.arrays[f"{2 * layer}.weight"]
                upstream = upstream * (values[layer] > 0)
        return result, gradients

    def _layers(self, inputs: NDArray[Any]) -> list[Floats]:
        """Return the input of every layer, and the outputs last."""
        values = [np.asarray(inputs, dtype=self.dtype)]
        last = len(self.sizes) - 2
        for layer in range(last + 1):
            weight, bias = self.arrays[f"{2 * layer}.weight"], self.arrays[f"{2 * layer}.bias"]
            outputs = values[-1] @ weight.T + bias
            values.append(outputs if layer == last else np.maximum(outputs, 0))
        return values


class LogisticRegression(MLP):
    """Softmax regression: one linear layer, `nn.Sequential(nn.Linear(inputs, classes))`."""

    def __init__(
        self,
        inputs: int,
        classes: int,
        *,
        seed: int | None = None,
        dtype: DTypeLike = np.float32,
    ) -> None:
        """Make the arrays "0.weight" of shape (classes, inputs) and "0.bias"."""
        super().__init__(inputs, classes, seed=seed, dtype=dtype)
