"""Between which numbers a run's rounds are to lie: what watching compares with.

    duration        quantiles of the drawn rounds, a hundredth further out, and below by the
                    server's part, which a simulated run has not
    participation   a cohort's share of m updates a round: quantiles of Binomial(m, share) / m,
                    mixed over the hours of the day that the run sees, each with a share of its
                    own, and over those in which its site is cut off: none at all
    rejections      Binomial(m, refused) / m

    hourly          which part of an hour a round takes, where rounds of one hour have so much in
                    common that they are outside together: a site whose losses are correlated by
                    more than `LOOSE`, or whose outages the run meets with more than `RARE`

`low` and `high` are p5 and p95, `low3` and `high3` p0.05 and p99.95: beyond the first two a round
is outside, beyond the others far outside. How many such rounds are a signal depends on the run's
length (docs/planning.md).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from .odds import binomial
from .weather import HOUR

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from .expected import Expected
    from ..fleet.description import Description

    Reals = NDArray[np.float64]

INNER, OUTER = 0.05, 0.0005
LOOSE, RARE = 0.02, 0.01
"""Below, rounds of one hour are as good as independent: of 60 runs of 1,000 rounds with a
correlation of 0.02 one was stopped by chance, with 0.05 fourteen."""
_NEAR = 0.01
"""Of a duration: nearer to a bound is no change that anybody would act on, and rounds that their
deadline closes have one bound, and are the difference of two times."""
_BOUNDS = {"low": INNER, "high": 1 - INNER, "low3": OUTER, "high3": 1 - OUTER}


def expectation(
    description: Description, by_hour: Sequence[Reals], expected: Expected
) -> dict[str, Any]:
    """Return `expect` of a plan's file.

    Args:
        description: The fleet.
        by_hour: Updates that a round uses, by cohort, in each hour of the day of the run.
        expected: What its rounds are like.
    """
    hours = np.array(by_hour)
    updates = max(1, round(float(hours.sum(axis=1).mean())))
    shares = hours / np.maximum(hours.sum(axis=1, keepdims=True), 1e-300)
    participation = {}
    for place, cohort in enumerate(description.cohorts):
        site = description.sites.get(cohort.site)
        cut = 0.0 if site is None else site.outage
        participation[cohort.name] = _share(updates, shares[:, place], cut)
    refused = np.array([description.expect.refused])
    overhead = description.server.overhead
    return {
        "duration": {name: _bound(expected, share, overhead) for name, share in _BOUNDS.items()},
        "hourly": _hourly(description, expected),
        "participation": participation,
        "rejections": _share(updates, refused, 0.0),
        "drop": description.expect.drop,
    }


def _bound(expected: Expected, share: float, overhead: float) -> float:
    """Return a bound of a round's seconds; the virtual clock leaves the server's part out."""
    seconds = expected.seconds.at(share)
    if share > INNER:
        return seconds * (1 + _NEAR)
    return max(0.0, seconds * (1 - _NEAR) - overhead)


def _hourly(description: Description, expected: Expected) -> float | None:
    """Return which part of an hour a round takes; None where it does not matter."""
    sites, part = description.sites.values(), expected.seconds.at(0.5) / HOUR
    hours = expected.tries * part
    calm = math.prod((1 - site.outage) ** (hours / site.outage_hours) for site in sites)
    if all(site.correlation <= LOOSE for site in sites) and 1 - calm <= RARE:
        return None
    return part


def _share(count: int, shares: Reals, cut: float) -> dict[str, float]:
    """Return the bounds of how many of `count` are of a kind, as shares of all.

    Args:
        count: Of all.
        shares: How likely one is; in some hours, all alike.
        cut: How likely there is none at all. The shares count such hours among the others.
    """
    there = 1.0 - cut
    likely = np.minimum(1.0, shares / there) if there else np.zeros_like(shares)
    spread = there * np.mean([binomial(count, float(each)) for each in likely], axis=0)
    spread[0] += cut
    below = np.cumsum(spread)
    places = np.searchsorted(below, [bound * (1 - 1e-12) for bound in _BOUNDS.values()])
    return {
        name: float(min(place, count)) / count for name, place in zip(_BOUNDS, places, strict=True)
    }
