"""Tier T0: a model's layers as C++, a client a thread.

`tier` reads task and model, refuses in one line what has no kernel, and compiles; `NativeTier`
trains. What a client's training gives depends on nothing but its examples, its model and its
streams: one thread does all of it, in the same order of operations.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from . import building
from .bindings import Pool
from .cohort import Reader
from .net import Embedding, Net, Unsupported
from .numpy_layers import layers_of
from .running import Running
from .source import Generated, generate
from .testing import Tester
from ..engine.work import EXPONENT
from ...clients.child import boundary
from ...protocol.errors import SettingsError
from ...strategies.numpy_models import MLP, LogisticRegression
from ...strategies.optimizers import SGD
from ...strategies.task import Task

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from ..engine.work import Reduced, Report, Work
    from ...strategies.optimizers import Optimizer

LOSSES = ("cross_entropy", "mse")


def tier(task: Task, sample: Any, workers: int, *, evaluate: bool = False) -> NativeTier:
    """Return the native tier of a task, compiled or out of the cache.

    Args:
        task: The task.
        sample: What `train_data` gives for some client: shapes and dtypes are read from it.
        workers: Threads, at least 1.
        evaluate: Whether works will ask for the metrics of the received model.

    Raises:
        Unsupported: Something has no kernel, or there is no compiler.
        StateError: The cache of compiled kernels cannot be written.
        Refused: The task raised.
    """
    if workers < 1:
        raise SettingsError("workers", "at least 1", workers)
    if task.loss not in LOSSES:
        raise Unsupported("task.loss", "one by name", getattr(task.loss, "__name__", task.loss))
    evaluates = type(task).evaluate is Task.evaluate and task.metrics is None
    if evaluate and not evaluates:
        raise Unsupported("task.evaluate()", "Task's own", "another")
    with boundary():
        model = task.model()
    net, casts, forms = _read(task, model, sample)
    made = NativeTier(task, net, workers, forms, casts=casts, evaluates=evaluates)
    made.prepare(task.optimizer)
    return made


def _read(task: Task, model: Any, sample: Any) -> tuple[Net, bool, dict[str, tuple[int, ...]]]:
    """Return the net, whether inputs are cast, and names and shapes of the model's arrays."""
    torch = sys.modules.get("torch")
    if type(model) in (MLP, LogisticRegression):
        layers, double = layers_of(model)
        forms, casts = {name: array.shape for name, array in model.arrays.items()}, True
    elif torch is not None and isinstance(model, torch.nn.Module):
        from . import torch_layers  # noqa: PLC0415 - only a model of torch needs torch

        layers, double = torch_layers.layers_of(model)
        forms = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
        casts = False
    else:
        raise Unsupported("task.model()", "an nn.Sequential or an MLP", type(model).__name__)
    if not isinstance(sample, tuple | list) or len(sample) != 2:  # noqa: PLR2004
        kind = type(sample).__name__
        raise Unsupported("task.train_data()", "a pair (inputs, targets)", kind)
    shape = tuple(int(size) for size in np.shape(sample[0])[1:])
    net = Net(layers=layers, shape=shape, double=double, loss=str(task.loss))
    return net, casts, forms


@dataclass(slots=True)
class NativeTier:
    """Trains cohorts of one task."""

    task: Task
    net: Net
    workers: int
    forms: Mapping[str, tuple[int, ...]]
    """Names and shapes of the model's arrays."""
    casts: bool
    """Whether inputs of other dtypes become the model's."""
    evaluates: bool
    """Whether the task measures what the kernels measure."""
    _made: dict[bool, tuple[Generated, Any]] = field(init=False, default_factory=dict)
    _pools: dict[tuple[int, bool, tuple[str, ...]], Pool] = field(init=False, default_factory=dict)
    """By process (threads do not survive a fork), kernels and order of the model's arrays."""
    exponent: int = field(init=False, default=EXPONENT)
    """Of the last sum: the next one's is most likely the same."""
    draws: bool = field(init=False, default=False)
    """Whether the task has been seen to draw from global generators."""

    name = "T0"

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the model."""
        return np.dtype(np.float64 if self.net.double else np.float32)

    def prepare(self, optimizer: Optimizer, *, mu: float = 0.0) -> tuple[Generated, Any]:
        """Return what is compiled for an optimiser: plain SGD updates while it differentiates.

        Raises:
            Unsupported: As `tier`.
        """
        fused = isinstance(optimizer, SGD) and not optimizer.momentum and not mu
        if fused not in self._made:
            compiler = building.compiler()
            lanes = compiler.vector_bytes // self.dtype.itemsize
            made = generate(self.net, lanes, fused=fused)
            self._made[fused] = made, building.library(made.source, compiler)
        return self._made[fused]

    def reader(self) -> Reader:
        """Return what the kernels read of examples."""
        outputs = next(iter(self._made.values()))[0].outputs
        targets = 0 if self.net.loss == "cross_entropy" else outputs
        numbers = isinstance(self.net.layers[0], Embedding)
        inputs = np.dtype(np.int64) if numbers else self.dtype
        return Reader(self.net.shape, inputs, self.casts, targets, self.dtype)

    def pool(self, optimizer: Optimizer, mu: float, names: tuple[str, ...]) -> Pool:
        """Return the threads that run an optimiser's kernels over models in this order of arrays.

        Raises:
            Unsupported: As `tier`.
        """
        made, library = self.prepare(optimizer, mu=mu)
        key = os.getpid(), made.fused, names
        if key not in self._pools:
            places = np.concatenate([made.places[name] for name in names])
            self._pools[key] = Pool(library, self.workers, places.astype(np.int32))
        return self._pools[key]

    def reduce(self, work: Work) -> Reduced:
        """Train and return the sum; the same bits for any number of workers.

        Raises:
            SettingsError: The model is not the task's.
            Unsupported: The work's numbers need kernels that cannot be compiled.
        """
        return Running(self, work).reduce()

    def rows(self, work: Work, out: NDArray[Any]) -> Report:
        """Train and write each client's update into its row.

        Raises:
            SettingsError: As `reduce`, or the buffer is not one of rows.
        """
        run = Running(self, work)
        shape = (len(work.clients), run.values)
        if out.ndim != 2 or out.shape[0] < shape[0] or out.shape[1] != shape[1]:  # noqa: PLR2004
            raise SettingsError("rows(out)", f"rows of shape {shape}", out.shape)
        if out.dtype != self.dtype or not out.flags.carray:
            raise SettingsError("rows(out)", f"C order, {self.dtype}", str(out.dtype))
        out[: shape[0]] = 0
        return run.rows(out)

    def tester(self, data: Any) -> Tester:
        """Return what measures models over the server's own examples.

        Raises:
            Unsupported: The task measures in its own way.
            Refused: They are no pair (inputs, targets) that the model takes.
        """
        if not self.evaluates:
            raise Unsupported("task.evaluate()", "Task's own", "another")
        return Tester(self, data)

    def close(self) -> None:
        """End the threads."""
        for (process, *_), pool in self._pools.items():
            if process == os.getpid():
                pool.close()
        self._pools.clear()
