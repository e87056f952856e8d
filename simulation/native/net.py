"""A model as the native tier reads it: layers in a row, from no framework.

torch_layers.py and numpy_layers.py make such a list, source.py makes C++ of it. What has no kernel
is `Unsupported`: one line that names the layer and why, and the engine takes another tier.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...protocol.errors import SettingsError

Pair = tuple[int, int]
"""Height and width."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Conv2d:
    """Convolution of stride 1 with zeros around; `NAME.weight` (outputs, inputs, *kernel)."""

    name: str
    inputs: int
    outputs: int
    kernel: Pair
    padding: Pair = (0, 0)
    bias: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class MaxPool2d:
    """The largest value of each window; what is around counts as minus infinity."""

    name: str
    kernel: Pair
    stride: Pair
    padding: Pair = (0, 0)

    @property
    def halves(self) -> bool:
        """Whether windows are 2x2, side by side."""
        return (self.kernel, self.stride, self.padding) == ((2, 2), (2, 2), (0, 0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Tanh:
    """tanh(x)."""

    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GELU:
    """x Phi(x), or its approximation by tanh."""

    name: str
    tanh: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Dropout:
    """In training each value is zero with probability `rate`, the others are 1 / (1 - rate) larger.

    Which ones follows from seed, round, client, step, layer and place: not from torch's generator.
    """

    name: str
    rate: float


@dataclass(frozen=True, slots=True, kw_only=True)
class AvgPool2d:
    """The mean of each window; `counts_padding`: with the zeros around."""

    name: str
    kernel: Pair
    stride: Pair
    padding: Pair = (0, 0)
    counts_padding: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupNorm:
    """Normalised over groups of channels; `NAME.weight` and bias of shape (channels,)."""

    name: str
    groups: int
    channels: int
    eps: float
    affine: bool = True
    bias: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerNorm:
    """Normalised over the last dimensions; `NAME.weight` and bias of their shape."""

    name: str
    shape: tuple[int, ...]
    eps: float
    affine: bool = True
    bias: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Embedding:
    """Rows of a table by number; `NAME.weight` (rows, size). Inputs are integers."""

    name: str
    rows: int
    size: int


Layer = (
    Linear
    | Conv2d
    | MaxPool2d
    | AvgPool2d
    | GroupNorm
    | LayerNorm
    | Embedding
    | ReLU
    | Tanh
    | GELU
    | Dropout
    | Flatten
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Net:
    """Layers and what goes in; arrays are named as the task's model names them."""

    layers: tuple[Layer, ...]
    shape: tuple[int, ...]
    """Of one example, without the batch; images are (channels, height, width)."""
    double: bool = False
    """float64 instead of float32."""
    loss: str = "cross_entropy"
