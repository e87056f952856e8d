"""A model as the native tier reads it: layers in a row, from no framework.

torch_layers.py and numpy_layers.py make such a list, source.py makes C++ of it. What has no kernel
is `Unsupported`: one line that names the layer and why, and the engine takes another tier.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...protocol.errors import SettingsError


class Unsupported(SettingsError):
    """The native tier has no kernel for this, or no compiler; another tier trains it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Linear:
    """y = x W^T + b over the last dimension; arrays `NAME.weight` (outputs, inputs) and bias."""

    name: str
    inputs: int
    outputs: int
    bias: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ReLU:
    """max(x, 0)."""

    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Flatten:
    """All of an example as one row."""

    name: str


Layer = Linear | ReLU | Flatten


@dataclass(frozen=True, slots=True, kw_only=True)
class Net:
    """Layers and what goes in; arrays are named as the task's model names them."""

    layers: tuple[Layer, ...]
    shape: tuple[int, ...]
    """Of one example, without the batch; images are (channels, height, width)."""
    double: bool = False
    """float64 instead of float32."""
    loss: str = "cross_entropy"
