"""How unlikely a count is: tails of the binomial and of the beta-binomial distribution.

    P[X >= k],  X ~ Binomial(n, p)
    P[X >= k],  X ~ Binomial(n, P), P ~ Beta(a, b)

The second one is what a failures and b successes, a prior's among them, say about the next n. Terms
are formed in log space; a sum has at most n of them.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ..protocol.graph import log_choose

if TYPE_CHECKING:
    from collections.abc import Iterable


def binomial(n: int, k: int, p: float) -> float:
    """Return P[X >= k] for n trials that each succeed with probability p, 0 < p < 1."""
    if k <= 0:
        return 1.0
    return _sum(
        log_choose(n, j) + j * math.log(p) + (n - j) * math.log1p(-p) for j in range(k, n + 1)
    )


def beta_binomial(n: int, k: int, a: float, b: float) -> float:
    """Return P[X >= k] for n trials whose common probability is Beta(a, b), both above 0."""
    if k <= 0:
        return 1.0
    return _sum(
        log_choose(n, j) + _log_beta(a + j, b + n - j) - _log_beta(a, b) for j in range(k, n + 1)
    )


def _sum(terms: Iterable[float]) -> float:
    return min(1.0, math.fsum(map(math.exp, terms)))


def _log_beta(a: float, b: float) -> float:
    return math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)
