"""How an example lies between two layers, and what the layers of a program add up to.

An activation lies in memory in an order of its own: images channels last, rows filled up to whole
vectors. `Form.index` says where each value of torch's order lies, so weights are permuted in one
place: `Parts.places` tells for each value of an array where it lies in the kernels' parameters.
Nothing else knows about layouts. What fills up is zero and stays zero.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


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
    def image(cls, channels: int, height: int, width: int, stride: int) -> Form:
        """Return the form of an image that lies channels last, `stride` values a pixel."""
        pixels = np.arange(height * width)[None, :] * stride
        index = (pixels + np.arange(channels)[:, None]).reshape(-1)
        return cls((channels, height, width), index, height * width * stride)

    @classmethod
    def rows(cls, shape: tuple[int, ...], width: int) -> Form:
        """Return the form of rows of `shape[-1]` values, `width` apart."""
        count = math.prod(shape[:-1])
        index = np.arange(count)[:, None] * width + np.arange(shape[-1])[None, :]
        return cls(shape, index.reshape(-1), count * width)


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
