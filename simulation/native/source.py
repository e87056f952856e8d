"""C++ out of a list of layers: sizes are compile-time constants, kernels the pages beside this.

An activation lies in memory in an order of its own (channels last, rows filled up to whole
vectors). `Form.index` says where each value of torch's order lies, so weights are permuted in one
place: `Generated.places` tells for each value of the flat model, in manifest order, where it lies
in the kernels' parameters. Nothing else knows about layouts. What fills up is zero and stays zero.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from importlib.resources import files
from typing import TYPE_CHECKING

import numpy as np

from .net import Flatten, Layer, Linear, Net, ReLU, Unsupported

if TYPE_CHECKING:
    from numpy.typing import NDArray

PAGES = ("vectors", "streams", "products", "losses", "dense", "chain")
LAST = ("workers", "pool")


@dataclass(frozen=True, slots=True)
class Form:
    """One example between two layers."""

    shape: tuple[int, ...]
    """As torch has it, without the batch."""
    index: NDArray[np.int64]
    """Where the values of torch's C order lie."""
    stride: int
    """Values from one example to the next, what fills up included."""

    @classmethod
    def plain(cls, shape: tuple[int, ...], stride: int) -> Form:
        """Return the form in torch's own order."""
        return cls(shape, np.arange(math.prod(shape)), stride)


@dataclass(slots=True)
class Parts:
    """What the layers add up to so far."""

    lanes: int
    form: Form
    types: list[str]
    places: dict[str, NDArray[np.int64]]
    """By array: where its values lie, in C order."""
    at: int = 0
    """Values of parameters so far."""

    def pad(self, count: int) -> int:
        """Return the count filled up to whole vectors."""
        return -(-count // self.lanes) * self.lanes

    def emit(self, kind: str, form: Form, size: int = 0) -> None:
        """Add one C++ layer with `size` values of parameters."""
        self.types.append(kind)
        self.form = form
        self.at += self.pad(size)


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
    size = math.prod(net.shape)
    parts = Parts(lanes, Form.plain(net.shape, size), [], {})
    steps = list(net.layers)
    while steps:
        layer = steps.pop(0)
        relu = bool(steps) and isinstance(layer, Linear) and isinstance(steps[0], ReLU)
        if relu:
            steps.pop(0)
        _add(parts, layer, relu=relu)
    if not parts.places:
        raise Unsupported("model", "a layer with parameters", "none")
    source, outputs = _text(net, parts, size, fused=fused), parts.form.index.size
    return Generated(source, parts.places, outputs, fused)


def _add(parts: Parts, layer: Layer, *, relu: bool) -> None:
    """Add one layer, with the ReLU that follows it where it is part of the kernel."""
    form = parts.form
    if isinstance(layer, Flatten):
        parts.form = Form((form.index.size,), form.index, form.stride)
    elif isinstance(layer, Linear):
        _linear(parts, layer, relu=relu)
    else:
        parts.emit(f"Relu<{form.stride}>", form)


def _linear(parts: Parts, layer: Linear, *, relu: bool) -> None:
    """Add y = x W + b; the rows of W lie as the inputs do."""
    form = parts.form
    if form.shape != (layer.inputs,):
        raise Unsupported(
            f"model: layer {layer.name} (Linear)", f"inputs of shape ({layer.inputs},)", form.shape
        )
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
    parts.emit(kind, Form.plain((layer.outputs,), width), (rows + layer.bias) * width)


def _text(net: Net, parts: Parts, size: int, *, fused: bool) -> str:
    """Return the whole program."""
    out = parts.form
    if out.shape != (out.index.size,):
        raise Unsupported("model", "one row of outputs an example", out.shape)
    values = sum(places.size for places in parts.places.values())
    loss = "CrossEntropy" if net.loss == "cross_entropy" else "SquaredError"
    head = f"#define REAL {'double' if net.double else 'float'}\n"
    head += f"#define LANES {parts.lanes}\n#define FUSED {int(fused)}\n"
    layers = ",\n    ".join(parts.types)
    own = (
        f"constexpr int VALUES = {values};\n"
        f"typedef Rows<{size}> Inputs;\n"
        f"typedef {loss}<{out.index.size}, {out.stride}> Loss;\n"
        f"typedef Chain<Inputs, Loss,\n    {layers}> Net;\n"
    )
    return head + _pages(PAGES) + own + _pages(LAST)


def _pages(names: tuple[str, ...]) -> str:
    """Return the kernels' pages, one after another."""
    folder = files(__package__)
    return "".join(folder.joinpath(f"{name}.hpp").read_text("utf-8") + "\n" for name in names)


def _word(flag: bool) -> str:
    return "true" if flag else "false"
