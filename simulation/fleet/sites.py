"""What happens to all devices of a site at once, hour by hour.

    cut off    uniform(seed, OUTAGE, site, span) < outage: what its devices were asked for in an
               hour of this span is lost. A span is an hour; where outages last for L hours it is
               floor(hour / L + uniform(seed, BEGUN, site))
    lossy      the hour's dropout of a cohort is the quantile at uniform(seed, HOUR, site, hour) of
               the Beta distribution with the cohort's mean and the site's correlation (beta.py)

An hour is floor(seconds / 3600), that in which a device was asked; a site's word is made of its
name. Over all hours as much is lost as without a correlation, but together. Cohorts of one site
have good and bad hours together.
"""

from __future__ import annotations

from functools import lru_cache
from hashlib import sha256
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from .beta import quantile
from .counter import Purpose, uniform

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from .declared import Site

    Ids = NDArray[np.int64]
    Reals = NDArray[np.float64]
    Words = NDArray[np.uint64]

HOUR = 3600.0
_BLOCK = 64
"""Hours whose quantiles are found together."""
_KEPT = 16
"""Blocks that are remembered: a run's hours come one after another."""


@lru_cache(4096)
def word_of(name: str) -> int:
    """Return the word that a site's numbers are keyed by."""
    return int.from_bytes(sha256(name.encode()).digest()[:8], "little")


def lost_at(seed: int, words: Words, sites: Sites, means: Reals, hours: Ids) -> Reals:
    """Return the probability that an update is lost; shape that of the broadcast arguments.

    Args:
        seed: Of the fleet.
        words: `word_of` each device's site.
        sites: What happens there.
        means: Of each device's dropout.
        hours: In which each is asked.
    """
    which = hours.astype(np.uint64)
    drawn = uniform(seed, Purpose.HOUR, words, which)
    spans = which
    if np.any(sites.lasts > 1):
        begun = uniform(seed, Purpose.BEGUN, words)
        long = np.floor(hours / sites.lasts + begun).astype(np.uint64)
        spans = np.where(sites.lasts > 1, long, which)
    cut = uniform(seed, Purpose.OUTAGE, words, spans) < sites.outage
    return np.where(cut, 1.0, quantile(drawn, means, sites.correlation))


class Sites(NamedTuple):
    """Of each device or group of devices what its site has."""

    outage: Reals
    correlation: Reals
    lasts: Reals
    """Hours of an outage."""

    @classmethod
    def of(cls, sites: Mapping[str, Site], names: Sequence[str]) -> Sites:
        """Return it for the sites of some names; nothing happens to one that is not known."""
        found = [sites.get(name) for name in names]
        return cls(
            np.array([0.0 if site is None else site.outage for site in found]),
            np.array([0.0 if site is None else site.correlation for site in found]),
            np.array([1.0 if site is None else site.outage_hours for site in found]),
        )


class Losses:
    """With which probability an update of each group of devices is lost in an hour."""

    def __init__(
        self, seed: int, sites: Mapping[str, Site], groups: Sequence[tuple[str, float]]
    ) -> None:
        """Take the sites to which something happens, and the groups.

        Args:
            seed: Of the fleet.
            sites: By name.
            groups: Of devices that are alike: their site, and the mean of their dropout.
        """
        names = [name for name, _ in groups]
        self._seed, self._means = seed, np.array([mean for _, mean in groups], np.float64)
        self._sites = Sites.of(sites, names)
        self._steady = not (np.any(self._sites.outage) or np.any(self._sites.correlation))
        self._words = np.array([word_of(name) for name in names], np.uint64)
        self._block = lru_cache(_KEPT)(self._found)

    def of(self, at: float | Reals, groups: Ids) -> Reals:
        """Return it for some devices: for each its group, and when it is asked."""
        if self._steady:
            return self._means[groups]
        hours, places = np.broadcast_arrays(hour_of(at), groups)
        found = np.empty(places.shape)
        for block in np.unique(hours // _BLOCK):
            here = hours // _BLOCK == block
            found[here] = self._block(int(block))[hours[here] % _BLOCK, places[here]]
        return found

    def _found(self, block: int) -> Reals:
        """Return the probabilities of some hours, shape (hours, groups)."""
        hours = np.arange(block * _BLOCK, (block + 1) * _BLOCK)[:, None]
        return lost_at(self._seed, self._words, self._sites, self._means, hours)


def hour_of(at: float | Reals) -> Ids:
    """Return the hour of some virtual seconds, 0 or more."""
    return np.floor_divide(np.asarray(at, np.float64), HOUR).astype(np.int64)
