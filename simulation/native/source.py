"""C++ out of a list of layers: sizes are compile-time constants, kernels the pages beside this."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from importlib.resources import files
from typing import TYPE_CHECKING

import numpy as np

from .forms import Form, Parts
from .net import (
    AvgPool2d,
    Conv2d,
    Embedding,
    Flatten,
    GroupNorm,
    Layer,
    Linear,
    MaxPool2d,
    Net,
    ReLU,
    Unsupported,
)
from .placing import IMAGE, convolution, place

if TYPE_CHECKING:
    from numpy.typing import NDArray

PAGES = {
    "elementwise": ("Relu", "Tanh", "Gelu", "Dropout", "Apart"),
    "dense": ("Linear",),
    "conv": ("Conv", "PooledConv"),
    "pooled": ("PooledConv",),
    "pools": ("MaxPool", "AvgPool"),
    "norms": ("Norm",),
    "embedding": ("Embedding",),
}
"""Pages of kernels, and the types for which a program needs them."""
FIRST, LAST = ("vectors", "streams", "products", "losses"), ("workers", "pool")
IMAGES = (Conv2d, MaxPool2d, AvgPool2d, GroupNorm)
"""Layers that take an image."""


@dataclass(frozen=True, slots=True)
class Generated:
    """A program, and how its parameters lie."""

    source: str
    places: dict[str, NDArray[np.int64]]
    outputs: int
    """Values that the model gives for an example."""
    fused: bool


def generate(net: Net, lanes: int, *, fused: bool) -> Generated:
    """Return the program of a model.

    Args:
        net: The layers.
        lanes: Values in a vector of the machine.
        fused: Whether the weight gradient goes straight into the weights (plain SGD).

    Raises:
        Unsupported: Layers do not fit each other, or have no kernel where they stand.
    """
    form, inputs = _inputs(net, lanes)
    parts = Parts(lanes, form, [], {})
    steps = list(net.layers)
    reads = True
    while steps:
        layer = steps.pop(0)
        if isinstance(layer, Conv2d) and (merged := _pooled(steps)):
            relu = merged == 2  # noqa: PLR2004 - pool and ReLU
            convolution(parts, layer, relu=relu, pooled=True)
            del steps[:merged]
            continue
        relu = isinstance(layer, Linear | Conv2d) and bool(steps) and isinstance(steps[0], ReLU)
        place(parts, layer, relu=relu)
        del steps[: int(relu)]
        reads = relu or not isinstance(layer, Linear)
    if not parts.places:
        raise Unsupported("model", "a layer with parameters", "none")
    if reads:
        parts.emit(f"Apart<{parts.form.stride}>", parts.form)
    source, outputs = _text(net, parts, inputs, fused=fused), parts.form.index.size
    return Generated(source, parts.places, outputs, fused)


def _inputs(net: Net, lanes: int) -> tuple[Form, str]:
    """Return how an example lies in memory, and the C++ type that puts it there.

    An image's channels are filled up to whole vectors unless the first layer is a convolution,
    which reads them one by one.
    """
    size = math.prod(net.shape)
    first = net.layers[0] if net.layers else None
    if isinstance(first, Embedding):
        return Form(net.shape, np.arange(size), size), f"Numbers<{size}, {first.rows}>"
    before = itertools.takewhile(lambda layer: not isinstance(layer, Flatten), net.layers)
    if not any(isinstance(layer, IMAGES) for layer in before) or len(net.shape) != IMAGE:
        width = -(-size // lanes) * lanes
        return Form(net.shape, np.arange(size), width), f"Rows<{size}, {width}>"
    channels, height, width = net.shape
    stride = channels if isinstance(first, Conv2d) else -(-channels // lanes) * lanes
    form = Form.image(channels, height, width, stride)
    return form, f"Image<{channels}, {height}, {width}, {stride}>"


def _pooled(steps: list[Layer]) -> int:
    """Return how many of the next layers become one with a convolution: pool, or pool and ReLU."""
    kinds = [type(layer) for layer in steps[:2]]
    pools = [layer for layer in steps[:2] if isinstance(layer, MaxPool2d)]
    if len(pools) != 1 or not pools[0].halves:
        return 0
    if ReLU in kinds:
        return 2
    return int(kinds[0] is MaxPool2d)


def _text(net: Net, parts: Parts, inputs: str, *, fused: bool) -> str:
    """Return the whole program."""
    out = parts.form
    if out.shape != (out.index.size,):
        raise Unsupported("model", "one row of outputs an example", out.shape)
    if not np.array_equal(out.index, np.arange(out.index.size)):
        raise Unsupported("model", "outputs of one pixel, or of a Linear", "a flattened image")
    values = sum(places.size for places in parts.places.values())
    loss = "CrossEntropy" if net.loss == "cross_entropy" else "SquaredError"
    head = f"#define REAL {'double' if net.double else 'float'}\n"
    head += f"#define LANES {parts.lanes}\n#define FUSED {int(fused)}\n"
    layers = ",\n    ".join(parts.types)
    own = (
        f"constexpr int VALUES = {values};\n"
        f"typedef {inputs} Inputs;\n"
        f"typedef {loss}<{out.index.size}, {out.stride}> Loss;\n"
        f"typedef Chain<Inputs, Loss,\n    {layers}> Net;\n"
    )
    used = {kind.partition("<")[0] for kind in parts.types}
    kernels = tuple(page for page, kinds in PAGES.items() if used & set(kinds))
    return head + _pages((*FIRST, *kernels, "chain")) + own + _pages(LAST)


def _pages(names: tuple[str, ...]) -> str:
    """Return the kernels' pages, one after another."""
    folder = files(__package__)
    return "".join(folder.joinpath(f"{name}.hpp").read_text("utf-8") + "\n" for name in names)
