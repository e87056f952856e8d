"""How many of those that are asked deliver, when what happens to a site happens to all its devices.

    hour of a site    cut off with probability `outage`: nothing arrives. Otherwise its dropout is
                      Beta with the group's mean and the site's correlation (fleet/sites.py); groups
                      of one site have the same quantile of theirs
    a device          delivers with probability finishes (1 - dropout), given its site's hour,
                      whatever others do
    who is asked      n without replacement, all of them alike

Up to `FEW` devices all is exact: the devices that would deliver are counted site by site, a mixture
over the site's hours of sums of binomials, the sites convolved, and those left out are taken off
one by one, each alike: P_(m-1)[x] = P_m[x] (m - x) / m + P_m[x + 1] (x + 1) / m. No term is
negative.

Of more devices the share P that would deliver is mixed: a count is Binomial(n, P), as if who was
asked could be asked twice. That is n / N from the truth at most (Ehm 1991, in total variation), and
only where groups differ. P's distribution is a sum over sites, kept in `_BINS` bins that keep their
means: some 1e-4 of a probability among a thousand sites, nothing among ten.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from .odds import binomial, log_tails, mixture
from .site_hours import LEAST_NODES, kinds

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from ..fleet.declared import Site

    Reals = NDArray[np.float64]
    Mixed = tuple[Reals, Reals]

T = TypeVar("T")
FEW = 4096
_BINS = 512
_BINS_OF_ALL = 2048
_ASKED = 10_000
"""Up to so many the hours of a site are as fine as its devices are."""
_ROUNDING = 1e-12
"""A certainty that is this close is reached."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Devices that are alike, at one site."""

    size: int
    """How many may be asked."""
    finishes: float = 1.0
    """Share that would deliver in time if nothing were lost on the way."""
    dropout: float = 0.0
    """Share of updates that is lost on the way, in hours without an outage."""
    site: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Count:
    """How many of n: the probability of each number."""

    shares: Reals
    """Shape (n + 1,)."""

    def below(self, k: int) -> float:
        """Return how likely fewer than k is."""
        return float(self.shares[: max(k, 0)].sum())

    def at_least(self, k: int) -> float:
        """Return how likely k or more is."""
        return float(self.shares[max(k, 0) :].sum())


class Losses:
    """What becomes of the updates of some devices; see the module."""

    def __init__(self, groups: Sequence[Group], sites: Mapping[str, Site]) -> None:
        """Take the devices, and what happens to their sites."""
        self.groups = tuple(group for group in groups if group.size > 0)
        self.sites = sites
        self.size = sum(group.size for group in self.groups)
        self._known: dict[int, Reals] = {}

    def apart(self) -> Losses:
        """Return devices that are as sure one by one, but independent of each other."""
        kept = []
        for group in self.groups:
            site = self.sites.get(group.site)
            stays = 1.0 - (site.outage if site else 0.0)
            sure = stays * group.finishes * (1.0 - group.dropout)
            kept.append(Group(size=group.size, finishes=sure))
        return Losses(kept, {})

    def spread(self, places: int) -> Losses:
        """Return the same devices where each site is `places` sites that know no common hours."""
        groups, sites = [], {}
        for group in self.groups:
            if group.site not in self.sites:
                groups.append(group)
                continue
            for i in range(places):
                name = f"{group.site}/{i}"
                sites[name] = self.sites[group.site]
                size = (group.size + i) // places
                groups.append(replace(group, size=size, site=name))
        return Losses(groups, sites)

    def arrivals(self, n: int) -> Count:
        """Return how many of n that are asked deliver.

        Raises:
            ValueError: n is below 0 or above the number of devices.
        """
        self._check(n)
        if self.size > FEW:
            return Count(mixture(n, *self._mixed))
        shares = self._all
        while len(shares) > n + 1:
            shares = _one_left_out(shares)
        return Count(shares)

    def miss(self, n: int, k: int) -> float:
        """Return how likely fewer than k of n that are asked deliver; errors as `arrivals`."""
        self._check(n)
        if k <= 0:
            return 0.0
        if self.size > FEW:
            return self._missed(n, k)
        return float(self._all[:k].sum() if n == self.size else self._misses(k)[n])

    def misses(self, needs: Mapping[int, int]) -> dict[int, float]:
        """Return for each number of asked how likely fewer than it needs deliver.

        Raises:
            ValueError: More would be asked than there are.
        """
        self._check(max(needs))
        if self.size > FEW:
            return {n: self._missed(n, k) for n, k in needs.items()}
        shares, found = self._all, {}
        for n in sorted(needs, reverse=True):
            while len(shares) > n + 1:
                shares = _one_left_out(shares)
            found[n] = float(shares[: max(needs[n], 0)].sum())
        return found

    def invite(self, k: int, certainty: float) -> int | None:
        """Return the fewest to ask, so that k or more deliver at least as often as `certainty`.

        None: not even all of them would do.
        """
        if k <= 0:
            return 0
        if not self.sure(k, certainty):
            return None
        wanted = 1.0 - certainty + _ROUNDING
        if self.size > FEW:
            return first(lambda n: self._missed(n, k) <= wanted, k, self.size)
        return first(lambda n: float(self._misses(k)[n]) <= wanted, k, self.size)

    def sure(self, k: int, certainty: float) -> bool:
        """Return whether all devices together deliver k at least as often as `certainty`."""
        return self.miss(self.size, k) <= 1.0 - certainty + _ROUNDING

    def largest(self, below: int, certainty: float) -> int:
        """Return the largest k < `below` that all devices deliver as often as `certainty`."""
        over = first(lambda k: not self.sure(k, certainty), 1, below)
        return below if over is None else over - 1

    def _check(self, n: int) -> None:
        if not 0 <= n <= self.size:
            raise ValueError(f"{n} are asked: expected 0 to {self.size}, all of them")

    def _misses(self, k: int) -> Reals:
        """Return how likely fewer than k deliver of 0, 1, .. all that are asked."""
        if k not in self._known:
            found, shares = np.ones(self.size + 1), self._all
            for n in range(self.size, k - 1, -1):
                found[n] = shares[:k].sum()
                shares = _one_left_out(shares)
            self._known[k] = found
        return self._known[k]

    def _missed(self, n: int, k: int) -> float:
        values, weights = self._mixed
        return float(weights @ np.exp(log_tails(values, n, k)[0]))

    @cached_property
    def _all(self) -> Reals:
        """How many would deliver if all were asked."""
        parts, known = [], {}
        for name, here in self._by_site.items():
            alike = self.sites.get(name), tuple(replace(group, site="") for group in here)
            if alike not in known:
                known[alike] = self._of_site(name, here)
            parts.append(known[alike])
        return _in_pairs(parts, np.convolve) if parts else np.ones(1)

    def _of_site(self, name: str, here: Sequence[Group]) -> Reals:
        """How many of a site would deliver if all were asked."""
        weights, chances = self._hours(name, here, sum(group.size for group in here))
        if len(here) == 1:
            return mixture(here[0].size, chances[:, 0], weights)
        sizes = [group.size for group in here]
        rows = [_together(sizes, chance) for chance in chances]
        found: Reals = weights @ np.array(rows)
        return found

    @cached_property
    def _mixed(self) -> tuple[Reals, Reals]:
        """The share that would deliver, of endless devices: values and their weights."""
        parts = []
        for name, here in self._by_site.items():
            shares = np.array([group.size for group in here]) / self.size
            weights, chances = self._hours(
                name, here, 2 * LEAST_NODES + math.ceil(_ASKED * shares.sum())
            )
            parts.append(_binned(chances @ shares, weights))
        values, weights = _in_pairs(parts, _sum) if parts else (np.zeros(1), np.ones(1))
        return np.clip(values, 0.0, 1.0), weights

    @cached_property
    def _by_site(self) -> dict[str, list[Group]]:
        found: dict[str, list[Group]] = {}
        for group in self.groups:
            found.setdefault(group.site, []).append(group)
        return found

    def _hours(self, name: str, here: Sequence[Group], size: int) -> tuple[Reals, Reals]:
        """Return the kinds of hours of a site, and each group's chance in them (h, groups).

        `size`: devices of the site that are asked at most.
        """
        site = self.sites.get(name)
        means = tuple(group.dropout for group in here)
        weights, dropout = kinds(means, site.correlation if site else 0.0, size)
        chances = np.array([group.finishes for group in here]) * (1.0 - dropout)
        outage = site.outage if site else 0.0
        if outage == 0.0:
            return weights, chances
        cut = np.zeros((1, len(here)))
        return np.append(weights * (1.0 - outage), outage), np.concatenate([chances, cut])


def _together(sizes: Sequence[int], chances: Reals) -> Reals:
    """Return how many of some groups deliver whose devices are independent."""
    parts = [binomial(n, float(p)) for n, p in zip(sizes, chances, strict=True)]
    return _in_pairs(parts, np.convolve)


def _one_left_out(shares: Reals) -> Reals:
    """Return the count of one device fewer, each left out alike."""
    m = len(shares) - 1
    x = np.arange(m)
    found: Reals = (shares[:-1] * (m - x) + shares[1:] * (x + 1)) / m
    return found


def _sum(one: Mixed, other: Mixed) -> Mixed:
    """Return the sum of two independent numbers."""
    values = np.add.outer(one[0], other[0]).reshape(-1)
    return _binned(values, np.multiply.outer(one[1], other[1]).reshape(-1))


def _binned(values: Reals, weights: Reals) -> Mixed:
    """Return a distribution of few values, each the mean of those that it stands for.

    Those of a small site have fewer bins: of all sites together as much of the variance is lost.
    """
    low, width = values.min(), max(float(np.ptp(values)), 1e-300)
    count = min(_BINS, math.ceil(_BINS_OF_ALL * math.sqrt(width)))
    if len(values) <= count:
        return values, weights
    bins = np.minimum(((values - low) * (count / width)).astype(np.int64), count - 1)
    held = np.asarray(np.bincount(bins, weights, count), np.float64)
    sums = np.bincount(bins, weights * values, count)
    there = held > 0
    return sums[there] / held[there], held[there]


def _in_pairs(parts: Sequence[T], join: Callable[[T, T], T]) -> T:
    """Return all of one or more parts joined, neighbours first."""
    left = list(parts)
    while len(left) > 1:
        pairs = [join(left[i], left[i + 1]) for i in range(0, len(left) - 1, 2)]
        left = pairs + left[len(left) // 2 * 2 :]
    return left[0]


def first(does: Callable[[int], bool], low: int, high: int) -> int | None:
    """Return the least number of low .. high that does, where all above it do; None: none."""
    if low > high or not does(high):
        return None
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if does(middle) else (middle + 1, high)
    return low
