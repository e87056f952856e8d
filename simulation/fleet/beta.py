"""The Beta distribution's quantiles: a probability that is itself drawn.

    p ~ Beta(a, b),   a = mean (1 - c) / c,   b = (1 - mean) (1 - c) / c

has the mean that is asked for, and of two events that share p the correlation is c (intra-class
correlation, 1 / (a + b + 1)). Counts of n such events are beta-binomial (Skellam 1948).

The quantile solves log I_p(a, b) = log u for t = log(p / (1 - p)), on the side of the smaller tail.
In t the logarithm of a Beta distribution's cumulative function rises and is concave, because its
density in t is log-concave; so Newton's steps are at or below the root from the first one on, and
rise to it from anywhere. I is the continued fraction of Abramowitz and Stegun 26.5.8 by Lentz's
method.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    Reals = NDArray[np.float64]

_STEPS = 100
"""Of Newton: some ten are taken, forty where a and b are far below 1."""
_TERMS = 20_000
"""Of the fraction: it takes a few times the root of the larger of a and b."""
_CLOSE = 1e-13
"""Of t: what is left of a step when it has arrived, against 1 + |t|."""
_SMALL = 1e-300
_EDGE = 1e-9
"""A mean or a correlation that is closer to 0 or 1 is taken for that; a correlation below
`LEAST` too."""
LEAST = 1e-6


def quantile(u: ArrayLike, mean: ArrayLike, correlation: ArrayLike) -> Reals:
    """Return the probability p that is not passed with probability u.

    Args:
        u: In [0, 1).
        mean: Of p, in [0, 1].
        correlation: 0, where p is the mean; up to 1, where p is 0 or 1.

    Returns:
        float64, shape that of the broadcast arguments.
    """
    shares, means, ties = np.broadcast_arrays(
        *(np.asarray(value, np.float64) for value in (u, mean, correlation))
    )
    found = np.where(ties > 1 - _EDGE, (shares >= 1 - means).astype(np.float64), means)
    tied, drawn = (ties >= LEAST) & (ties <= 1 - _EDGE), (means >= _EDGE) & (means <= 1 - _EDGE)
    inner = tied & drawn
    if inner.any():
        rest = (1 - ties[inner]) / ties[inner]
        found[inner] = _inverse(shares[inner], means[inner] * rest, (1 - means[inner]) * rest)
    return found


def _inverse(u: Reals, a: Reals, b: Reals) -> Reals:
    """Return the quantiles, shape (n,): the upper half is the lower one of 1 - p."""
    lower = u <= 0.5  # noqa: PLR2004
    first, second = np.where(lower, a, b), np.where(lower, b, a)
    with np.errstate(divide="ignore"):
        wanted = np.log(np.where(lower, u, 1 - u))  # of 0: nothing is below it
    t = _solved(wanted, first, second)
    small, large = np.exp(-np.logaddexp(0, -t)), np.exp(-np.logaddexp(0, t))
    return np.where(lower, small, large)


def _solved(wanted: Reals, a: Reals, b: Reals) -> Reals:
    """Return the t at which log I is what is wanted."""
    scale = _log_beta(a, b)
    with np.errstate(over="ignore"):
        guess = (wanted + np.log(a) + scale) / a  # of log p, where p is far below 1
    start = np.minimum(guess, np.log(a / b))
    t, open_ = np.where(np.isfinite(start), start, -np.inf), np.isfinite(start)
    for _ in range(_STEPS):
        here = np.flatnonzero(open_)
        if not len(here):
            break
        log, slope = _log_share(t[here], a[here], b[here], scale[here])
        step = (wanted[here] - log) / slope
        t[here] += step
        open_[here] = np.abs(step) > _CLOSE * (1 + np.abs(t[here]))
    return t


def _log_share(t: Reals, a: Reals, b: Reals, scale: Reals) -> tuple[Reals, Reals]:
    """Return log I_p(a, b), and how it rises with t."""
    p, q = np.exp(-np.logaddexp(0, -t)), np.exp(-np.logaddexp(0, t))
    front = -a * np.logaddexp(0, -t) - b * np.logaddexp(0, t) - scale
    near = p < (a + 1) / (a + b + 2)
    fraction = _fraction(np.where(near, p, q), np.where(near, a, b), np.where(near, b, a))
    with np.errstate(divide="ignore", invalid="ignore"):
        beyond = np.log1p(-np.minimum(np.exp(front) * fraction / b, 1.0))
        log = np.where(near, front + np.log(fraction / a), beyond)
    return log, np.exp(front - log)


def _fraction(x: Reals, a: Reals, b: Reals) -> Reals:
    """Return the continued fraction F with I_x(a, b) = x^a (1 - x)^b F / (a B(a, b))."""
    c = np.ones_like(x)
    d = 1 / _away(1 - (a + b) * x / (a + 1))
    found, open_ = d.copy(), np.ones(len(x), bool)
    for m in range(1, _TERMS):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for part in (even, odd):
            d = 1 / _away(1 + part * d)
            c = _away(1 + part / c)
            factor = c * d
            found = np.where(open_, found * factor, found)
        open_ &= np.abs(factor - 1) > 1e-16  # noqa: PLR2004
        if not open_.any():
            break
    return found


def _away(x: Reals) -> Reals:
    return np.where(np.abs(x) < _SMALL, _SMALL, x)


_lgamma = np.vectorize(math.lgamma, otypes=[np.float64])


def _log_beta(a: Reals, b: Reals) -> Reals:
    found: Reals = _lgamma(a) + _lgamma(b) - _lgamma(a + b)
    return found
