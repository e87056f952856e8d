"""The layers of a model for benchmarks: as uneven as real ones are, the same every time."""

from __future__ import annotations

import numpy as np

LAYERS = 100
_TAIL = 1.2  # of a Pareto distribution: a few large layers and many small ones


def layer_sizes(params: int, count: int = LAYERS) -> list[int]:
    """Return the sizes of up to `count` layers, each 1 or more, that sum to `params`."""
    count = min(count, params)
    shares = 1.0 + np.random.default_rng(0).pareto(_TAIL, count)
    ends = np.cumsum(shares / shares.sum()) * (params - count)
    cuts = np.rint(ends).astype(int) + np.arange(1, count + 1)
    return [int(size) for size in np.diff([0, *cuts[:-1], params])]
