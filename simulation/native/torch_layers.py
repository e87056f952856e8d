"""Reads an `nn.Sequential`, nested ones too, into a list of layers.

Only what the kernels compute exactly is read: a layer of another class, with a hook, a frozen or
shared parameter, or an option without a kernel is `Unsupported`, and the line names it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from .net import Flatten, Layer, Linear, ReLU, Unsupported

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def layers_of(model: nn.Module) -> tuple[tuple[Layer, ...], bool]:
    """Return the layers in order, and whether they are of float64.

    Raises:
        Unsupported: Something has no kernel.
    """
    double = _check_arrays(model)
    found: list[Layer] = []
    for name, module in _leaves(model, ""):
        read = READERS.get(type(module))
        if read is None:
            raise Unsupported(_where(name), "a layer that has a kernel", type(module).__name__)
        found += read(name, module)
    return tuple(found), double


def _leaves(module: nn.Module, name: str) -> Iterator[tuple[str, nn.Module]]:
    """Yield the layers of a Sequential and of those inside it."""
    if any(getattr(module, kind) for kind in HOOKS):
        raise Unsupported(_where(name), "a layer without hooks", type(module).__name__)
    if not isinstance(module, nn.Sequential):
        yield name, module
    elif type(module).forward is not nn.Sequential.forward:
        raise Unsupported(_where(name), "a Sequential's own forward()", type(module).__name__)
    else:
        for key, child in module.named_children():
            yield from _leaves(child, f"{name}.{key}" if name else key)


def _check_arrays(model: nn.Module) -> bool:
    """Check parameters and buffers; return whether they are of float64."""
    if not isinstance(model, nn.Sequential):
        raise Unsupported("task.model()", "an nn.Sequential", type(model).__name__)
    for name, _ in model.named_buffers():
        raise Unsupported(f"model: {name}", "no buffers", "a buffer")
    seen: dict[int, str] = {}
    kinds = set()
    for name, parameter in model.named_parameters(remove_duplicate=False):
        kinds.add(parameter.dtype)
        if not parameter.requires_grad:
            raise Unsupported(f"model: {name}", "a parameter that is trained", "a frozen one")
        if parameter.device.type != "cpu":
            raise Unsupported(f"model: {name}", "a parameter on the CPU", str(parameter.device))
        if (key := parameter.data_ptr()) in seen:
            raise Unsupported(f"model: {name}", "an array of its own", f"that of {seen[key]}")
        seen[key] = name
    if kinds not in ({torch.float32}, {torch.float64}):
        raise Unsupported(
            "model", "parameters in float32, or all in float64", ", ".join(sorted(map(str, kinds)))
        )
    return kinds == {torch.float64}


def _where(name: str) -> str:
    """Return how an error names a layer."""
    return f"model: layer {name}" if name else "task.model()"


def _option(name: str, module: nn.Module, option: str, expected: object, got: object) -> None:
    """Refuse an option that no kernel has."""
    if got != expected:
        label = f"{_where(name)} ({type(module).__name__}): {option}"
        raise Unsupported(label, str(expected), got)


def _linear(name: str, module: Any) -> list[Layer]:
    bias = module.bias is not None
    inputs, outputs = module.in_features, module.out_features
    return [Linear(name=name, inputs=inputs, outputs=outputs, bias=bias)]


def _flatten(name: str, module: Any) -> list[Layer]:
    _option(name, module, "start_dim, end_dim", (1, -1), (module.start_dim, module.end_dim))
    return [Flatten(name=name)]


READERS: dict[type[nn.Module], Callable[[str, Any], list[Layer]]] = {
    nn.Linear: _linear,
    nn.ReLU: lambda name, _: [ReLU(name=name)],
    nn.Identity: lambda _name, _: [],
    nn.Flatten: _flatten,
}
