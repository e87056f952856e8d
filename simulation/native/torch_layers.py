"""Reads an `nn.Sequential`, nested ones too, into a list of layers.

Only what the kernels compute exactly is read: a layer of another class, with a hook, a frozen or
shared parameter, or an option without a kernel is `Unsupported`, and the line names it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from .net import (
    GELU,
    AvgPool2d,
    Conv2d,
    Dropout,
    Embedding,
    Flatten,
    GroupNorm,
    Layer,
    LayerNorm,
    Linear,
    MaxPool2d,
    ReLU,
    Tanh,
    Unsupported,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def layers_of(model: nn.Module) -> tuple[tuple[Layer, ...], bool]:
    """Return the layers in order, and whether they are of float64.

    Raises:
        Unsupported: Something has no kernel.
    """
    if not isinstance(model, nn.Sequential):
        raise Unsupported("task.model()", "an nn.Sequential", type(model).__name__)
    found: list[Layer] = []
    for name, module in _leaves(model, ""):
        read = READERS.get(type(module))
        if read is None:
            raise Unsupported(_where(name), "a layer that has a kernel", type(module).__name__)
        found += read(name, module)
    return tuple(found), _double(model)


def _leaves(module: nn.Module, name: str) -> Iterator[tuple[str, nn.Module]]:
    """Yield the layers of a Sequential and of those inside it."""
    if any(getattr(module, kind) for kind in HOOKS):
        raise Unsupported(_where(name), "a layer without hooks", type(module).__name__)
    if "forward" in vars(module):
        raise Unsupported(_where(name), "its class's forward()", "one of an object's own")
    if not isinstance(module, nn.Sequential):
        yield name, module
    elif type(module).forward is not nn.Sequential.forward:
        raise Unsupported(_where(name), "a Sequential's own forward()", type(module).__name__)
    else:
        for key, child in module.named_children():
            yield from _leaves(child, f"{name}.{key}" if name else key)


def _double(model: nn.Module) -> bool:
    """Check parameters and buffers; return whether they are of float64."""
    for name, _ in model.named_buffers():
        raise Unsupported(f"model: {name}", "no buffers", "a buffer")
    seen: dict[int, str] = {}
    kinds = set()
    for name, parameter in model.named_parameters(remove_duplicate=False):
        kinds.add(parameter.dtype)
        if not parameter.requires_grad:
            raise Unsupported(f"model: {name}", "a parameter that is trained", "a frozen one")
        if parameter._backward_hooks:
            raise Unsupported(f"model: {name}", "a gradient without hooks", "a hook")
        if parameter.device.type != "cpu":
            raise Unsupported(f"model: {name}", "a parameter on the CPU", str(parameter.device))
        if (key := parameter.data_ptr()) in seen:
            raise Unsupported(f"model: {name}", "an array of its own", f"that of {seen[key]}")
        seen[key] = name
    if not seen:
        raise Unsupported("model", "a layer with parameters", "none")
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


def _conv2d(name: str, module: Any) -> list[Layer]:
    _option(name, module, "stride", (1, 1), module.stride)
    _option(name, module, "dilation", (1, 1), module.dilation)
    _option(name, module, "groups", 1, module.groups)
    _option(name, module, "padding_mode", "zeros", module.padding_mode)
    height, width = kernel = module.kernel_size
    padding = (0, 0) if module.padding == "valid" else module.padding
    if padding == "same":
        if not (height % 2 and width % 2):
            _option(name, module, "padding='same', kernel_size", "odd sizes", kernel)
        padding = (height // 2, width // 2)
    if padding[0] >= height or padding[1] >= width:
        _option(name, module, "padding", f"below {kernel}", padding)
    return [
        Conv2d(
            name=name,
            inputs=module.in_channels,
            outputs=module.out_channels,
            kernel=kernel,
            padding=padding,
            bias=module.bias is not None,
        )
    ]


def _max_pool2d(name: str, module: Any) -> list[Layer]:
    _option(name, module, "dilation", (1, 1), _pair(module.dilation))
    _option(name, module, "ceil_mode", False, module.ceil_mode)
    _option(name, module, "return_indices", False, module.return_indices)
    kernel, stride = _pair(module.kernel_size), _pair(module.stride)
    return [MaxPool2d(name=name, kernel=kernel, stride=stride, padding=_pair(module.padding))]


def _avg_pool2d(name: str, module: Any) -> list[Layer]:
    _option(name, module, "ceil_mode", False, module.ceil_mode)
    _option(name, module, "divisor_override", None, module.divisor_override)
    return [
        AvgPool2d(
            name=name,
            kernel=_pair(module.kernel_size),
            stride=_pair(module.stride),
            padding=_pair(module.padding),
            counts_padding=module.count_include_pad,
        )
    ]


def _group_norm(name: str, module: Any) -> list[Layer]:
    affine = module.weight is not None
    return [
        GroupNorm(
            name=name,
            groups=module.num_groups,
            channels=module.num_channels,
            eps=module.eps,
            affine=affine,
            bias=module.bias is not None,
        )
    ]


def _layer_norm(name: str, module: Any) -> list[Layer]:
    return [
        LayerNorm(
            name=name,
            shape=tuple(module.normalized_shape),
            eps=module.eps,
            affine=module.weight is not None,
            bias=module.bias is not None,
        )
    ]


def _embedding(name: str, module: Any) -> list[Layer]:
    for option in ("padding_idx", "max_norm"):
        _option(name, module, option, None, getattr(module, option))
    for option in ("scale_grad_by_freq", "sparse"):
        _option(name, module, option, False, getattr(module, option))
    return [Embedding(name=name, rows=module.num_embeddings, size=module.embedding_dim)]


def _dropout(name: str, module: Any) -> list[Layer]:
    if module.p == 1:
        _option(name, module, "p", "below 1", module.p)
    return [Dropout(name=name, rate=float(module.p))] if module.p else []


def _pair(value: Any) -> tuple[int, int]:
    """Return height and width where one number stands for both."""
    return (value, value) if isinstance(value, int) else tuple(value)


READERS: dict[type[nn.Module], Callable[[str, Any], list[Layer]]] = {
    nn.Linear: _linear,
    nn.ReLU: lambda name, _: [ReLU(name=name)],
    nn.Tanh: lambda name, _: [Tanh(name=name)],
    nn.GELU: lambda name, module: [GELU(name=name, tanh=module.approximate == "tanh")],
    nn.Dropout: _dropout,
    nn.Identity: lambda _name, _: [],
    nn.Flatten: _flatten,
    nn.Conv2d: _conv2d,
    nn.MaxPool2d: _max_pool2d,
    nn.AvgPool2d: _avg_pool2d,
    nn.GroupNorm: _group_norm,
    nn.LayerNorm: _layer_norm,
    nn.Embedding: _embedding,
}
