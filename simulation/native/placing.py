"""Each layer's C++ type, the form of its outputs, and where its weights lie."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from .forms import Form
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
    from numpy.typing import NDArray

    from .forms import Parts

IMAGE = 3
"""Dimensions of an image: channels, height, width."""


def place(parts: Parts, layer: Layer, *, relu: bool) -> None:
    """Add one layer, with the ReLU that follows it where it is part of the kernel.

    Raises:
        Unsupported: It does not fit what comes before, or has no kernel there.
    """
    form = parts.form
    if isinstance(layer, Flatten):
        parts.form = Form((form.index.size,), form.index, form.stride)
    elif isinstance(layer, Linear):
        _linear(parts, layer, relu=relu)
    elif isinstance(layer, Conv2d):
        convolution(parts, layer, relu=relu, pooled=False)
    elif isinstance(layer, MaxPool2d | AvgPool2d):
        _pool(parts, layer)
    elif isinstance(layer, GroupNorm):
        _group_norm(parts, layer)
    elif isinstance(layer, LayerNorm):
        _layer_norm(parts, layer)
    elif isinstance(layer, Embedding):
        _embedding(parts, layer)
    else:
        parts.emit(_elementwise(layer, form.stride, len(parts.types)), form)


def _where(layer: Layer) -> str:
    """Return how an error names a layer."""
    return f"model: layer {layer.name} ({type(layer).__name__})"


def _elementwise(layer: ReLU | Tanh | GELU | Dropout, size: int, number: int) -> str:
    """Return the C++ type of a layer that treats each value by itself."""
    if isinstance(layer, ReLU):
        return f"Relu<{size}>"
    if isinstance(layer, Tanh):
        return f"Tanh<{size}>"
    if isinstance(layer, GELU):
        return f"Gelu<{size}, {_word(layer.tanh)}>"
    return f"Dropout<{size}, {number}, {min(round(layer.rate * 2**32), 2**32 - 1)}u>"


def convolution(parts: Parts, layer: Conv2d, *, relu: bool, pooled: bool) -> None:
    """Add a convolution; weights lie by tap, or by output channel where the kernel wants that."""
    form, where = parts.form, _where(layer)
    if len(form.shape) != IMAGE or form.shape[0] != layer.inputs:
        raise Unsupported(where, f"{layer.inputs} channels of an image", form.shape)
    channels, height, width = form.shape
    stride = form.stride // (height * width)
    rows, columns = (
        size + 2 * padding - kernel + 1
        for size, padding, kernel in zip((height, width), layer.padding, layer.kernel, strict=True)
    )
    if pooled:
        rows, columns = rows // 2, columns // 2
    if min(rows, columns) < 1:
        raise Unsupported(where, f"an image larger than {layer.kernel}", (height, width))
    out = parts.pad(layer.outputs)
    major = pooled and stride % parts.lanes == 0
    inside = stride if pooled else channels
    o, i, u, q = np.ogrid[: layer.outputs, :channels, : layer.kernel[0], : layer.kernel[1]]
    tap = (u * layer.kernel[1] + q) * inside + i
    taps = math.prod(layer.kernel) * inside
    places = o * taps + tap if major else tap * out + o
    parts.places[f"{layer.name}.weight"] = parts.at + places.reshape(-1)
    size = taps * (layer.outputs if major else out)
    if layer.bias:
        parts.places[f"{layer.name}.bias"] = parts.at + size + np.arange(layer.outputs)
    numbers = (channels, stride, height, width, layer.outputs, *layer.kernel, *layer.padding)
    kind = "PooledConv" if pooled else "Conv"
    text = f"{kind}<{', '.join(map(str, numbers))}, {_word(layer.bias)}, {_word(relu)}>"
    parts.emit(text, Form.image(layer.outputs, rows, columns, out), size + out * layer.bias)


def _linear(parts: Parts, layer: Linear, *, relu: bool) -> None:
    """Add y = x W + b; the rows of W lie as the inputs do."""
    form = parts.form
    if form.shape != (layer.inputs,):
        raise Unsupported(_where(layer), f"inputs of shape ({layer.inputs},)", form.shape)
    rows = int(form.index.max()) + 1
    width = parts.pad(layer.outputs)
    outputs = np.arange(layer.outputs)
    parts.places[f"{layer.name}.weight"] = (
        parts.at + form.index[None, :] * width + outputs[:, None]
    ).reshape(-1)
    if layer.bias:
        parts.places[f"{layer.name}.bias"] = parts.at + rows * width + outputs
    flags = f"{_word(layer.bias)}, {_word(relu)}"
    kind = f"Linear<{rows}, {form.stride}, {layer.outputs}, {flags}>"
    parts.emit(kind, Form.rows((layer.outputs,), width), (rows + layer.bias) * width)


def _pool(parts: Parts, layer: MaxPool2d | AvgPool2d) -> None:
    """Add a pool by itself, windows of any size and stride."""
    form = parts.form
    if len(form.shape) != IMAGE:
        raise Unsupported(_where(layer), "an image", form.shape)
    channels, height, width = form.shape
    stride = form.stride // (height * width)
    rows, columns = (
        (size + 2 * padding - kernel) // step + 1
        for size, padding, kernel, step in zip(
            (height, width), layer.padding, layer.kernel, layer.stride, strict=True
        )
    )
    if min(rows, columns) < 1:
        raise Unsupported(_where(layer), f"an image of at least {layer.kernel}", (height, width))
    sizes = (height, width, stride, *layer.kernel, *layer.stride, *layer.padding)
    text = ", ".join(map(str, sizes))
    if isinstance(layer, AvgPool2d):
        text = f"AvgPool<{text}, {_word(layer.counts_padding)}>"
    else:
        text = f"MaxPool<{text}>"
    parts.emit(text, Form.image(channels, rows, columns, stride))


def _group_norm(parts: Parts, layer: GroupNorm) -> None:
    """Add a GroupNorm: a group is some channels of all pixels."""
    form = parts.form
    if form.shape[0] != layer.channels or len(form.shape) not in (1, IMAGE):
        raise Unsupported(_where(layer), f"{layer.channels} channels of an image", form.shape)
    size = layer.channels // layer.groups
    pixels = math.prod(form.shape[1:])
    stride = form.stride // pixels
    _norm(parts, layer, (layer.groups, size, pixels, stride, size), np.arange(layer.channels))


def _layer_norm(parts: Parts, layer: LayerNorm) -> None:
    """Add a LayerNorm over the last dimension, or over all of an example that has no gaps."""
    form, count = parts.form, math.prod(layer.shape)
    if form.shape[len(form.shape) - len(layer.shape) :] != layer.shape:
        raise Unsupported(_where(layer), f"inputs that end in {layer.shape}", form.shape)
    groups = form.index.size // count
    if groups == 1 and form.stride - form.index.size < parts.lanes and form.index.max() < count:
        _norm(parts, layer, (1, 0, 1, 0, count), form.index)
    elif len(layer.shape) == 1 and len(form.shape) != IMAGE:
        _norm(parts, layer, (groups, form.stride // groups, 1, 0, count), np.arange(count))
    else:
        raise Unsupported(
            _where(layer), "the last dimension of rows, or all of an image", "another"
        )


def _norm(
    parts: Parts,
    layer: GroupNorm | LayerNorm,
    numbers: tuple[int, int, int, int, int],
    index: NDArray[np.int64],
) -> None:
    """Add the kernel of both norms; `index` says where each weight lies among them."""
    shared = isinstance(layer, LayerNorm)
    wide = parts.pad(numbers[-1] * (1 if shared else numbers[0]))
    if layer.affine:
        parts.places[f"{layer.name}.weight"] = parts.at + index
    if layer.bias:
        parts.places[f"{layer.name}.bias"] = parts.at + wide + index
    words = ", ".join(_word(flag) for flag in (shared, layer.affine, layer.bias))
    text = ", ".join(map(str, numbers))
    kind = f"Norm<{parts.form.stride}, {text}, {words}, {round(layer.eps * 1e15)}>"
    parts.emit(kind, parts.form, wide * (layer.affine + layer.bias))


def _embedding(parts: Parts, layer: Embedding) -> None:
    """Add a table of rows."""
    form = parts.form
    if parts.types or len(form.shape) != 1:
        raise Unsupported(_where(layer), "the first layer, over a row of numbers", form.shape)
    width = parts.pad(layer.size)
    rows, columns = np.ogrid[: layer.rows, : layer.size]
    parts.places[f"{layer.name}.weight"] = (parts.at + rows * width + columns).reshape(-1)
    count = form.shape[0]
    kind = f"Embedding<{count}, {layer.rows}, {layer.size}>"
    parts.emit(kind, Form.rows((count, layer.size), width), layer.rows * width)


def _word(flag: bool) -> str:
    return "true" if flag else "false"
