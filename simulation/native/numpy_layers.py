"""Reads an `umbel.MLP`: Linear layers with ReLU between."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from .net import Layer, Linear, ReLU

if TYPE_CHECKING:
    from ...strategies.numpy_models import MLP


def layers_of(model: MLP) -> tuple[tuple[Layer, ...], bool]:
    """Return the layers, and whether they are of float64."""
    found: list[Layer] = []
    for index, (inputs, outputs) in enumerate(pairwise(model.sizes)):
        if index:
            found.append(ReLU(name=str(2 * index - 1)))
        found.append(Linear(name=str(2 * index), inputs=inputs, outputs=outputs))
    return tuple(found), model.dtype == np.float64
