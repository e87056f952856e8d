"""Counts of events: binomial and hypergeometric, exact far into their tails.

The k-th of n independent arrivals is there by x as often as k of them or more are: with F(x) the
share that arrives by x (below 1 for ever where some never do),

    P[T_k <= x] = P[Binomial(n, F(x)) >= k] = sum_{j >= k} C(n, j) F^j (1 - F)^(n - j)

A sum starts at the end of its tail that lies at the mode and has positive terms only, so nothing
cancels. Its first term comes by deviances (Loader, "Fast and Accurate Computation of Binomial
Probabilities", 2000): differences of ln n! would lose as many digits as n has. What comes out is as
good as p itself: about 1e-12 of the value at n = 10,000, wherever it does not underflow.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    Reals = NDArray[np.float64]
    Ints = NDArray[np.int64]

_NEAR = 0.1  # a deviance by its series where |x - m| is below this share of x + m
_SERIES = 12  # terms of it: 0.1^24 is nothing beside 1
_TABLE = 16  # Stirling's error is taken from ln n! below, from its series above
_ENOUGH = 1e-17
_CELLS = 1 << 16  # of a matrix of terms at a time


def kth_arrival(cdf: ArrayLike, n: ArrayLike, k: ArrayLike) -> Reals:
    """Return how likely the k-th of n independent arrivals has come: P[Binomial(n, cdf) >= k].

    Args:
        cdf: Share of single arrivals that have come, in [0, 1]; any shape.
        n: Those that may arrive, 0 or more; broadcast against `cdf`.
        k: The arrival asked for; 0 or less has always come, above n never comes.

    Returns:
        float64 of the shape that the three have together.

    Raises:
        ValueError: A share outside [0, 1], or n below 0.
    """
    return np.exp(log_tails(cdf, n, k)[1])


def log_tails(p: ArrayLike, n: ArrayLike, k: ArrayLike) -> tuple[Reals, Reals]:
    """Return (ln P[X < k], ln P[X >= k]) for X ~ Binomial(n, p); -infinity is never.

    Args, shapes and errors as `kth_arrival`.
    """
    chance = np.asarray(p, np.float64)
    tries = np.asarray(n, np.int64)
    if not ((chance >= 0) & (chance <= 1)).all() or (tries < 0).any():
        raise ValueError("a binomial count: expected shares in [0, 1] and 0 or more tries")
    chance, tries, wanted = np.broadcast_arrays(chance, tries, np.asarray(k, np.int64))
    below, above = np.full(chance.shape, -np.inf), np.full(chance.shape, -np.inf)
    sure = (wanted <= 0) | ((chance == 1) & (wanted <= tries))
    never = ~sure & ((wanted > tries) | (chance == 0))
    above[sure] = 0.0
    below[never] = 0.0
    open_ = ~(sure | never)
    upper = open_ & (wanted >= (tries + 1) * chance)
    lower = open_ & ~upper
    success, fail = chance[upper], 1.0 - chance[upper]
    above[upper] = _tail(success, fail, tries[upper], wanted[upper])
    below[upper] = _rest(above[upper])
    success, fail = 1.0 - chance[lower], chance[lower]
    below[lower] = _tail(success, fail, tries[lower], tries[lower] - wanted[lower] + 1)
    above[lower] = _rest(below[lower])
    return below, above


def binomial(n: int, p: float) -> Reals:
    """Return P[Binomial(n, p) = x] for x = 0 .. n, float64 (n + 1,)."""
    return mixture(n, np.array([p]), np.ones(1))


def mixture(n: int, p: Reals, weights: Reals) -> Reals:
    """Return P[X = x] for x = 0 .. n, where X is Binomial(n, p[i]) with the odds weights[i].

    Returns:
        float64 (n + 1,).
    """
    found = np.zeros(n + 1)
    found[0] += weights[p == 0.0].sum()
    found[n] += weights[p == 1.0].sum()
    inner = np.flatnonzero((p > 0.0) & (p < 1.0))
    rows = max(1, _CELLS // (n + 1))
    for i in range(0, len(inner), rows):
        here = inner[i : i + rows]
        grid = np.broadcast_arrays(p[here, None], 1.0 - p[here, None], n, np.arange(n + 1))
        logs = _log_term(*(array.reshape(-1) for array in grid))
        found += weights[here] @ np.exp(logs).reshape(len(here), -1)
    return found


def hypergeometric(population: int, marked: int, sample: int) -> Reals:
    """Return P[x marked ones in a sample without replacement], x = 0 .. sample, float64.

    Raises:
        ValueError: More marked or sampled than there are.
    """
    if not (0 <= marked <= population and 0 <= sample <= population):
        got = f"{sample} of {population}, {marked} marked"
        raise ValueError(f"a sample without replacement: expected both within, got {got}")
    least, most = max(0, sample + marked - population), min(sample, marked)
    x = np.arange(least, most + 1)
    found = np.zeros(sample + 1)
    if population in (0, sample) or marked in (0, population):
        found[least] = 1.0
        return found
    share = np.full(len(x), sample / population)  # any works: it falls out
    parts = (marked, x), (population - marked, sample - x)
    logs = sum(_log_term(share, 1 - share, np.full(len(x), of), take) for of, take in parts)
    one = np.array([sample])
    whole = _log_term(share[:1], 1 - share[:1], np.array([population]), one)
    found[least : most + 1] = np.exp(logs - whole)
    return found


def _tail(success: Reals, fail: Reals, n: Ints, first: Ints) -> Reals:
    """Return ln P[Binomial(n, success) >= first] where `first` is at the mode or beyond."""
    odds = success / fail
    term, total = np.ones(len(n)), np.ones(len(n))
    step = 0
    while (term > _ENOUGH * total).any():
        term = term * ((n - first - step) * odds / (first + step + 1))
        total += term
        step += 1
    return np.minimum(_log_term(success, fail, n, first) + np.log(total), 0.0)


def _rest(log: Reals) -> Reals:
    """Return ln(1 - exp(log)); the value is well below 1."""
    return np.log1p(-np.exp(log))


def _log_term(success: Reals, fail: Reals, n: Ints, x: Ints) -> Reals:
    """Return ln P[Binomial(n, success) = x], 0 <= x <= n and 0 < success < 1."""
    inner = (x > 0) & (x < n)
    among = np.where(inner, x, 1)
    rest = np.where(inner, n - x, 1)
    whole = among + rest
    found = _stirling_error(whole) - _stirling_error(among) - _stirling_error(rest)
    found -= _deviance(among, whole * success) + _deviance(rest, whole * fail)
    found += 0.5 * np.log(whole / (2.0 * math.pi * among * rest))
    found = np.where(x == 0, n * _log(fail, success), found)
    return np.where((x == n) & (n > 0), n * _log(success, fail), found)


def _log(share: Reals, other: Reals) -> Reals:
    """Return ln(share), by the other one, its complement, where that is the small one."""
    small = np.minimum(share, other)
    return np.where(other < share, np.log1p(-small), np.log(share))


def _deviance(x: Ints, mean: Reals) -> Reals:
    """Return x ln(x / mean) + mean - x, without cancelling where the two are close."""
    with np.errstate(divide="ignore", over="ignore"):
        far = x * np.log(x / mean) + mean - x
    v = (x - mean) / (x + mean)
    square = v * v
    series = np.zeros(len(v))
    for j in range(_SERIES, 0, -1):
        series = (series + 1.0 / (2 * j + 1)) * square
    near = (x - mean) * v + 2.0 * x * v * series
    return np.where(np.abs(v) < _NEAR, near, far)


def _stirling_error(n: Ints) -> Reals:
    """Return ln n! - ln(sqrt(2 pi n) (n / e)^n) of whole numbers, 1 or more."""
    small = _SMALL[np.minimum(n, _TABLE - 1)]
    m = np.maximum(n, _TABLE).astype(np.float64)
    s = 1.0 / (m * m)
    tail = 1 / 1260 - s * (1 / 1680 - s * (1 / 1188 - s * (691 / 360360)))
    series = (1 / 12 - s * (1 / 360 - s * tail)) / m
    return np.where(n < _TABLE, small, series)


def _small_errors() -> Reals:
    """Return Stirling's error of 0 .. 15 by the factorials; that of 0 is never used."""
    found = [0.0]
    for n in range(1, _TABLE):
        found.append(
            math.log(math.factorial(n)) - 0.5 * math.log(2 * math.pi * n) - n * (math.log(n) - 1)
        )
    return np.array(found)


_SMALL = _small_errors()
