"""The peer of `umbel bench unmask`: how Flower 1.42's SecAgg+ takes masks off a sum."""

from __future__ import annotations

import os
import time
from importlib.metadata import version

import numpy as np
from flwr.common.secure_aggregation import ndarrays_arithmetic as arithmetic
from flwr.common.secure_aggregation.secaggplus_utils import pseudo_rand_gen

NAME = f"flwr {version('flwr')} SecAgg+ masks"
MODULUS = 1 << 32
"""Default of Flower's workflow."""


def unmask(words: int, masks: int) -> float:
    """Return the CPU seconds in which `masks` masks are generated and subtracted from a vector.

    Its server takes the modulus once for all masks; here as well.
    """
    vector = [np.zeros(words, np.int64)]
    start = time.thread_time()
    for _ in range(masks):
        mask = pseudo_rand_gen(os.urandom(32), MODULUS, arithmetic.get_parameters_shape(vector))
        vector = arithmetic.parameters_subtraction(vector, mask)
    arithmetic.parameters_mod(vector, MODULUS)
    return time.thread_time() - start
