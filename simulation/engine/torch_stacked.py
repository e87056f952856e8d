"""One step of many models at once: parameters stacked, gradients by vmap, padding masked.

    loss_k = sum_b(w_kb * l_kb) / max(1, sum_b w_kb)      w is 1 for a row, 0 for padding

l_kb is the loss of row b of client k, a mean over what it has beside the row. Padding repeats a row
of the client's own, so that nothing of it is NaN; its weight of 0 takes it out of loss and
gradient. The optimisers are those of torch.optim, over the stacks (strategies/optimizers.py).

Dropout is taken out of the model and its masks are drawn as the loop draws them, for one client
after another from that client's generator: so they are keyed by client, and on a CPU the same.
What else draws random numbers, or mixes the rows of a batch, is refused: `traced` runs one batch
and says what the model does.
"""

from __future__ import annotations

import copy
from math import sqrt
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.func import functional_call, grad, vmap
from torch.nn import functional

from ...protocol.errors import SettingsError
from ...strategies.optimizers import SGD

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ...strategies.optimizers import Optimizer
    from ...strategies.task import Task

Tensors = dict[str, torch.Tensor]


class Drop(NamedTuple):
    """A dropout layer, in the order in which the model calls them."""

    name: str
    p: float
    shape: tuple[int, ...]
    """Of its input, without the rows."""


class Traced(NamedTuple):
    """What one batch has shown."""

    trained: tuple[str, ...]
    """Parameters with a gradient; torch's optimisers leave the others alone."""
    drops: tuple[Drop, ...]
    saved: float
    """Bytes that are kept for the backward pass, a row."""


class _Masked(torch.nn.Module):
    """Dropout by a mask that is given."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p
        self.mask: torch.Tensor
        self.register_buffer("mask", torch.ones(()))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs * self.mask


class Stacked:
    """The model of a task as a function of stacked parameters."""

    def __init__(self, task: Task, model: torch.nn.Module) -> None:
        """Take out the dropout.

        Raises:
            SettingsError: The loss is a function, or a module mixes the rows of a batch.
        """
        if callable(task.loss):
            raise SettingsError("task.loss", "'cross_entropy' or 'mse' by name", "a function")
        arrays = model.state_dict(keep_vars=True)
        if len({id(array) for array in arrays.values()}) < len(arrays):
            raise SettingsError("model", "arrays of their own", "a shared parameter")
        for name, parameter in model.named_parameters():
            if parameter._backward_hooks:
                raise SettingsError(f"model: {name}", "a gradient without hooks", "a hook")
        for name, module in model.named_modules():
            if "forward" in vars(module):
                got = "one of an object's own"
                raise SettingsError(f"model layer {name!r}", "its class's forward()", got)
            if _mixes(module):
                got = type(module).__name__
                raise SettingsError(f"model layer {name!r}", "one that sees each row alone", got)
        self.loss = str(task.loss)
        self._model = copy.deepcopy(model).train()
        self._dropping = {
            name: module.p
            for name, module in self._model.named_modules()
            if isinstance(module, torch.nn.Dropout) and module.p > 0
        }
        first = next(iter(self._model.parameters()), None)
        self.dtype = torch.float32 if first is None else first.dtype
        self.nbytes = sum(tensor.nbytes for tensor in self._model.state_dict().values())

    def trace(self, inputs: torch.Tensor, targets: torch.Tensor) -> Traced:
        """Run one batch and look.

        Raises:
            SettingsError: The targets are no classes, dropout is used in a way that cannot be keyed
                by client, or what a row gives is not its own (`_check_rows`).
        """
        drops: list[Drop] = []
        hooks = [
            self._model.get_submodule(name).register_forward_hook(_noting(drops, name, p))
            for name, p in self._dropping.items()
        ]
        saved = _Saved()
        self._model.zero_grad()
        try:
            with saved.hooks:
                rows = row_losses(self._model(inputs), targets, self.loss)
            if rows.shape != (len(inputs),):
                raise SettingsError("model outputs", f"{len(inputs)} rows", tuple(rows.shape))
            rows.mean().backward()  # type: ignore[no-untyped-call]
        finally:
            for hook in hooks:
                hook.remove()
        trained = tuple(n for n, p in self._model.named_parameters() if p.grad is not None)
        self._model.zero_grad()
        self._replace(drops, len(inputs))
        self._check_rows(inputs)
        own = tuple(drop._replace(shape=drop.shape[1:]) for drop in drops)
        return Traced(trained, own, saved.total / max(1, len(inputs)))

    def _check_rows(self, inputs: torch.Tensor) -> None:
        """See whether a row's outputs are its own: padding and neighbours must not change them.

        Raises:
            SettingsError: They depend on other rows or on chance, or the model keeps statistics.
        """
        count, row = len(inputs), inputs[:1]
        before = {name: tensor.clone() for name, tensor in self._model.state_dict().items()}
        with torch.no_grad():
            one = self._model(torch.cat([inputs, torch.zeros_like(row)]))[:count]
            other = self._model(torch.cat([inputs.flip(0), row, row]))[:count].flip(0)
        for name, tensor in self._model.state_dict().items():
            if not torch.equal(tensor, before[name]):
                raise SettingsError("model", "arrays that only training changes", f"{name} changed")
        bound = torch.finfo(one.dtype).eps ** 0.5 * float(one.abs().max())
        if not torch.allclose(one, other, rtol=0, atol=bound, equal_nan=True):
            got = "ones that depend on other rows or on chance"
            raise SettingsError("model", "outputs of each row alone", got)

    def mean_loss(
        self,
        parameters: Tensors,
        constants: Tensors,
        drawn: Tensors,
        inputs: torch.Tensor,
        targets: torch.Tensor,
        weights: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return mean and sum of the weighted losses of one batch.

        Args:
            parameters: Those that train.
            constants: The rest of the state dict.
            drawn: Dropout masks, as `NAME.mask`.
            inputs: The batch.
            targets: Of the batch.
            weights: 1 for a row, 0 for padding.
        """
        state = {**constants, **parameters, **drawn}
        outputs = functional_call(self._model, state, (inputs,))
        total = (row_losses(outputs, targets, self.loss) * weights).sum()
        return total / weights.sum().clamp(min=1), total.detach()

    def gradients(self, *, several_models: bool) -> Callable[..., tuple[Tensors, torch.Tensor]]:
        """Return the gradients of `mean_loss` as a function of stacks, and its sums.

        Every argument has the clients first, constants only where they start from several models.
        """
        dims = (0, 0 if several_models else None, 0, 0, 0, 0)
        found: Callable[..., tuple[Tensors, torch.Tensor]] = vmap(
            grad(self.mean_loss, has_aux=True), in_dims=dims
        )
        return found

    def _replace(self, drops: Sequence[Drop], rows: int) -> None:
        """Put a masked layer in the place of each dropout."""
        if len({drop.name for drop in drops}) != len(drops):
            raise SettingsError("model", "each Dropout layer called once", "one called again")
        for drop in drops:
            if drop.shape[:1] != (rows,):
                raise SettingsError(f"model layer {drop.name!r}", "rows first", drop.shape)
            parent, _, last = drop.name.rpartition(".")
            setattr(self._model.get_submodule(parent), last, _Masked(drop.p))


def row_losses(outputs: torch.Tensor, targets: torch.Tensor, loss: str) -> torch.Tensor:
    """Return the loss of each row, the mean over what a row has."""
    if loss == "cross_entropy":
        found = functional.cross_entropy(outputs, targets, reduction="none")
    else:
        found = (outputs - targets.reshape(outputs.shape).to(outputs.dtype)).square()
    return found.reshape(len(found), -1).mean(dim=1)


def masks(
    drops: Sequence[Drop], rows: int, generator: torch.Generator, dtype: torch.dtype
) -> list[torch.Tensor]:
    """Return the scaled masks of one client's batch, drawn in the order of the layers."""
    found = []
    for drop in drops:
        mask = torch.empty((rows, *drop.shape), dtype=dtype)
        if drop.p < 1:
            mask.bernoulli_(1 - drop.p, generator=generator).div_(1 - drop.p)
        found.append(mask if drop.p < 1 else mask.zero_())
    return found


class Stepper:
    """The step of an optimiser over stacked parameters."""

    def __init__(self, optimizer: Optimizer, stacks: Tensors, mu: float) -> None:
        """Begin with empty state, and with the received models for FedProx."""
        self._optimizer, self._stacks, self._mu = optimizer, stacks, mu
        self._received = {n: t.clone() for n, t in stacks.items()} if mu else {}
        momentum = optimizer.momentum if isinstance(optimizer, SGD) else 1.0
        self._first = {n: torch.zeros_like(t) for n, t in stacks.items()} if momentum else {}
        adam = not isinstance(optimizer, SGD)
        self._second = {n: torch.zeros_like(t) for n, t in stacks.items()} if adam else {}
        self._count = 0

    def step(self, gradients: Mapping[str, torch.Tensor], active: int) -> None:
        """Move the first `active` models; the others are done and keep what they have."""
        self._count += 1
        for name, gradient in gradients.items():
            stack = self._stacks[name][:active]
            whole = gradient
            if self._mu:
                whole = whole + self._mu * (stack - self._received[name][:active])
            if self._optimizer.weight_decay:
                whole = whole + self._optimizer.weight_decay * stack
            stack.sub_(self._move(name, whole, active))

    def _move(self, name: str, gradient: torch.Tensor, active: int) -> torch.Tensor:
        """Return by how much an array moves."""
        declared = self._optimizer
        if isinstance(declared, SGD):
            if not declared.momentum:
                return declared.lr * gradient
            buffer = self._first[name][:active].mul_(declared.momentum).add_(gradient)
            return declared.lr * buffer
        beta1, beta2 = declared.betas
        first = self._first[name][:active].mul_(beta1).add_(gradient, alpha=1 - beta1)
        second = (
            self._second[name][:active].mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        )
        size, root = 1 - beta1**self._count, sqrt(1 - beta2**self._count)
        return (declared.lr / size) * first / (second.sqrt() / root + declared.eps)


def _mixes(module: torch.nn.Module) -> bool:
    """Return whether rows of a batch know of each other in a module, or it keeps statistics."""
    normalises = isinstance(module, torch.nn.modules.batchnorm._NormBase)
    alone = isinstance(module, torch.nn.modules.instancenorm._InstanceNorm)
    return normalises and not (alone and not module.track_running_stats)


def _noting(drops: list[Drop], name: str, p: float) -> Any:
    """Return a hook that notes a dropout layer's call."""

    def note(_module: torch.nn.Module, args: Any, _output: Any) -> None:
        drops.append(Drop(name, p, tuple(args[0].shape)))

    return note


class _Saved:
    """Counts the bytes that autograd keeps."""

    def __init__(self) -> None:
        self.total = 0
        self.hooks = torch.autograd.graph.saved_tensors_hooks(self._pack, lambda tensor: tensor)

    def _pack(self, tensor: torch.Tensor) -> torch.Tensor:
        self.total += tensor.nbytes
        return tensor
