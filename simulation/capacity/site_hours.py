"""The hours of a site as a few kinds of them, weighted: an integral over its Beta distribution.

In an hour the dropout of each of its groups is the quantile of Beta, with the group's mean and the
site's correlation, at one number u that the site's groups share (fleet/sites.py).

Where all groups have one mean the nodes are Gauss's for Beta itself: exact for counts of up to 47
devices, and near rounding for some thousands, where nodes lie closer than a binomial count is wide;
5e-6 at ten thousand. Otherwise the integral goes over u by tanh-sinh, whose nodes crowd at both
ends: good to 1e-10 below a correlation of a half, and to some thousandths near 1.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from ..fleet.beta import quantile

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Reals = NDArray[np.float64]

LEAST_NODES = 24
_MOST_NODES = 200


@lru_cache(4096)
def kinds(means: tuple[float, ...], tie: float, size: int) -> tuple[Reals, Reals]:
    """Return the kinds of hours: weights (h,), and the dropout of each group in them (h, groups).

    Args:
        means: Of each group's dropout.
        tie: The site's correlation.
        size: Devices that the weights are to be fine enough for.
    """
    drawn = [mean for mean in means if 0.0 < mean < 1.0]
    if tie == 0.0 or not drawn:
        return np.ones(1), np.array([means])
    nodes = min(size // 2 + 1, max(LEAST_NODES, math.ceil(4 * math.sqrt(size))), _MOST_NODES)
    if len(set(means)) > 1:
        u, weights = _tanh_sinh(4 * max(nodes, 2 * LEAST_NODES))
        return weights, quantile(u[:, None], np.array(means), tie)
    if tie == 1.0:
        return np.array([1.0 - means[0], means[0]]), np.array([[0.0], [1.0]]).repeat(len(means), 1)
    rest = (1.0 - tie) / tie
    at, weights = _gauss(means[0] * rest, (1.0 - means[0]) * rest, nodes)
    return weights, at[:, None].repeat(len(means), 1)


def _gauss(a: float, b: float, nodes: int) -> tuple[Reals, Reals]:
    """Return nodes and weights for an integral over Beta(a, b) (Golub and Welsch 1969).

    The recurrence is made of the distribution's canonical moments, (a + i) / (a + b + 2i) and
    (i + 1) / (a + b + 2i + 1): sums of positive numbers only (Dette and Studden 1997).
    """
    i = np.arange(nodes)
    moments = np.empty(2 * nodes)
    moments[0::2] = (a + i) / (a + b + 2 * i)
    moments[1::2] = (i + 1) / (a + b + 2 * i + 1)
    rest = np.concatenate([[1.0], 1.0 - moments[:-1]])
    chain = rest * moments
    inner = np.concatenate([[0.0], chain[1:-1:2]])
    beside = np.sqrt(chain[0:-2:2] * chain[1:-1:2])
    values, vectors = np.linalg.eigh(np.diag(inner + chain[0::2]) + np.diag(beside, -1))
    return np.clip(values, 0.0, 1.0), vectors[0] ** 2


def _tanh_sinh(nodes: int) -> tuple[Reals, Reals]:
    """Return nodes and weights for an integral over [0, 1) (Takahasi and Mori 1974)."""
    x = np.linspace(-3.4, 3.4, nodes)
    u = 1.0 / (1.0 + np.exp(-math.pi * np.sinh(x)))
    weights = np.cosh(x) * u * (1.0 - u)
    return u, weights / weights.sum()
