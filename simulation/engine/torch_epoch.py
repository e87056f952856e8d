"""Tier T1: a client's steps compiled: forward, backward and optimiser in one call.

    parameters, state, loss = step(parameters, state, batch)    torch.compile, dynamic=False

It is the engine of the loop with another `fit`: everything else of a client is what a device does.
A step has one shape. A short batch is filled up to the batch size with its first row at weight 0,
as in torch_stacked.py, so a task compiles once: 8 to 25 s, and about 3 s out of inductor's cache.
The numbers of a round (rate, FedProx) are tensors, so a schedule compiles nothing anew.
"""

from __future__ import annotations

import warnings
from contextlib import contextmanager, suppress
from dataclasses import replace
from math import sqrt
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch._dynamo.exc import FailOnRecompileLimitHit
from torch.func import grad

from .torch_stacked import Stacked, masks
from ...protocol.errors import SettingsError
from ...strategies.optimizers import SGD
from ...strategies.task import batches, stream
from ...strategies.torch_task import TorchEngine, tensor_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from .torch_stacked import Traced
    from ...strategies.optimizers import Optimizer
    from ...strategies.task import Task
    from ...strategies.trainer import Local

    Row = tuple[torch.Tensor, ...]

RECOMPILES = 1 << 16
"""dynamo counts by code and gives up at 8, but all tasks of a process share the code of a step."""


class _State(NamedTuple):
    """What a step takes and gives: parameters and the optimiser's own."""

    parameters: Row
    first: Row
    """Momentum, or Adam's first moment; empty without."""
    second: Row


class CompiledEngine(TorchEngine):
    """One task and one `nn.Module`; its step is compiled when the first client trains."""

    def __init__(self, task: Task, model: Any) -> None:
        """Take model and loss apart.

        Raises:
            SettingsError: The model is none of torch, or its step is no function of one batch.
        """
        if not isinstance(model, torch.nn.Module):
            raise SettingsError("task.model()", "an nn.Module", type(model).__name__)
        super().__init__(task, model)
        self._stacked = Stacked(task, model)
        self._known: Traced | None = None
        self._steps: dict[tuple[Optimizer, bool], _Step] = {}

    def fit(self, data: Any, optimizer: Optimizer, local: Local) -> float:
        """Train in place and return the loss, summed over every example of every epoch."""
        if not isinstance(data, tuple | list) or len(data) != 2:  # noqa: PLR2004 - a pair
            raise SettingsError("train_data(site)", "a pair of arrays", type(data).__name__)
        inputs, targets = (tensor_of(part) for part in data)
        rows = list(batches(local, len(inputs)))
        traced = self._traced(inputs[rows[0]], targets[rows[0]])
        arrays = self.model.state_dict(keep_vars=True)
        own = [arrays[name] for name in traced.trained]
        constants = tuple(t.detach() for n, t in arrays.items() if n not in traced.trained)
        bits = stream(local.seed, self.noise, local.round, local.client)
        noise = torch.Generator().manual_seed(int(bits.random_raw()) >> 1)
        step, epoch = self._step(optimizer, local, traced), _Epoch(inputs, targets, rows, local)
        with torch.no_grad():
            state = _begun(tuple(p.detach() for p in own), optimizer)
            received = tuple(p.clone() for p in state.parameters) if local.mu else ()
            losses = []
            for place, part in enumerate(rows):
                drawn = self._masks(traced, len(part), local.batch_size, noise)
                numbers = _numbers(optimizer, local.mu, place + 1, self._stacked.dtype)
                state, loss = step(state, received, constants, drawn, epoch.at(place), numbers)
                losses.append(loss)
            for parameter, value in zip(own, state.parameters, strict=True):
                parameter.copy_(value)
        return float(torch.stack(losses).double().sum())

    def _traced(self, inputs: torch.Tensor, targets: torch.Tensor) -> Traced:
        """Return what the model does, found on the first batch that there is."""
        if self._known is None:
            self._known = self._stacked.trace(inputs, targets)
        return self._known

    def _step(self, optimizer: Optimizer, local: Local, traced: Traced) -> _Step:
        """Return the step of an optimiser, whatever its rate."""
        key = replace(optimizer, lr=1.0), bool(local.mu)
        if key not in self._steps:
            fixed = [n for n in self.model.state_dict() if n not in traced.trained]
            self._steps[key] = _Step(self._stacked, traced, fixed, *key)
        return self._steps[key]

    def _masks(
        self, traced: Traced, rows: int, width: int, noise: torch.Generator
    ) -> tuple[torch.Tensor, ...]:
        """Return the dropout masks of a step, filled up with ones."""
        drawn = masks(traced.drops, rows, noise, self._stacked.dtype)
        if rows == width:
            return tuple(drawn)
        return tuple(torch.cat([m, m.new_ones(width - rows, *m.shape[1:])]) for m in drawn)


class _Step:
    """One compiled step; slow at its first call."""

    def __init__(
        self,
        stacked: Stacked,
        traced: Traced,
        fixed: Sequence[str],
        declared: Optimizer,
        pulled: bool,
    ) -> None:
        self._begun, self._cause = False, ""
        step = _function(stacked, traced, fixed, declared, pulled=pulled)
        self._call = torch.compile(step, dynamic=False, fullgraph=True)

    def __call__(
        self, state: _State, received: Row, constants: Row, drawn: Row, batch: Row, numbers: Any
    ) -> tuple[_State, torch.Tensor]:
        """Return state and summed loss after a step.

        Raises:
            SettingsError: It cannot be compiled.
        """
        given = state, received, constants, drawn, batch, numbers
        if self._begun:
            with suppress(FailOnRecompileLimitHit):  # a batch of another form
                return self._call(*given)
        if not self._cause:
            try:
                with _compiling():
                    found = self._call(*given)
            except (RuntimeError, NotImplementedError, OSError) as error:
                self._cause = " ".join(str(error).split())
            else:
                self._begun = True
                return found
        raise SettingsError("tier T1", "a step that torch.compile takes", self._cause)


@contextmanager
def _compiling() -> Iterator[None]:
    """Compile in this process alone, and say nothing of what torch deprecates in itself."""
    with (
        warnings.catch_warnings(),
        torch._dynamo.config.patch(recompile_limit=RECOMPILES),
        torch._inductor.config.patch(compile_threads=1),
    ):
        warnings.simplefilter("ignore")
        yield


def _function(
    stacked: Stacked, traced: Traced, fixed: Sequence[str], declared: Optimizer, *, pulled: bool
) -> Callable[..., tuple[_State, torch.Tensor]]:
    """Return one step as a function of tensors; `numbers` are rate, root and FedProx's mu."""
    gradient = grad(stacked.mean_loss, has_aux=True)
    names, drops = traced.trained, [f"{drop.name}.mask" for drop in traced.drops]

    def step(
        state: _State, received: Row, constants: Row, drawn: Row, batch: Row, numbers: torch.Tensor
    ) -> tuple[_State, torch.Tensor]:
        own, others = dict(zip(names, state.parameters)), dict(zip(fixed, constants))  # noqa: B905
        moves, loss = gradient(own, others, dict(zip(drops, drawn)), *batch)  # noqa: B905
        after, first, second = [], [], []
        for k, name in enumerate(names):
            g, p = moves[name], state.parameters[k]
            if pulled:
                g = g + numbers[2] * (p - received[k])
            if declared.weight_decay:
                g = g + declared.weight_decay * p
            if isinstance(declared, SGD):
                if declared.momentum:
                    g = declared.momentum * state.first[k] + g
                    first.append(g)
                after.append(p - numbers[0] * g)
            else:
                beta1, beta2 = declared.betas
                first.append(beta1 * state.first[k] + (1 - beta1) * g)
                second.append(beta2 * state.second[k] + (1 - beta2) * g * g)
                scale = second[k].sqrt() / numbers[1] + declared.eps
                after.append(p - numbers[0] * first[k] / scale)
        return _State(tuple(after), tuple(first), tuple(second)), loss

    return step


def _begun(parameters: Row, declared: Optimizer) -> _State:
    """Return the state before the first step."""
    kept = not isinstance(declared, SGD) or bool(declared.momentum)
    first = tuple(map(torch.zeros_like, parameters)) if kept else ()
    second = () if isinstance(declared, SGD) else tuple(map(torch.zeros_like, parameters))
    return _State(parameters, first, second)


def _numbers(declared: Optimizer, mu: float, count: int, dtype: torch.dtype) -> torch.Tensor:
    """Return rate, root and mu of one step; Adam's are corrected for the steps so far."""
    if isinstance(declared, SGD):
        return torch.tensor([declared.lr, 1.0, mu], dtype=dtype)
    beta1, beta2 = declared.betas
    size, root = declared.lr / (1 - beta1**count), sqrt(1 - beta2**count)
    return torch.tensor([size, root, mu], dtype=dtype)


class _Epoch:
    """All batches of a client, filled up to one width and gathered at once."""

    def __init__(
        self,
        inputs: torch.Tensor,
        targets: torch.Tensor,
        rows: Sequence[NDArray[np.intp]],
        local: Local,
    ) -> None:
        self._width = width = local.batch_size
        index, weights = np.empty((len(rows), width), np.int64), np.zeros((len(rows), width))
        for place, part in enumerate(rows):
            index[place], weights[place, : len(part)] = part[0], 1
            index[place, : len(part)] = part
        order = torch.from_numpy(index.reshape(-1))
        self._inputs, self._targets = inputs[order], targets[order]
        self._weights = torch.from_numpy(weights.astype(np.float32))

    def at(self, place: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return inputs, targets and weights of one batch."""
        part = slice(place * self._width, (place + 1) * self._width)
        return self._inputs[part], self._targets[part], self._weights[place]
