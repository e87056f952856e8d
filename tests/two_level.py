"""How many of those that are asked deliver, in fractions: hours of sites, and devices in them.

The count of those that are drawn at each site is hypergeometric, and all compositions are gone
through; in an hour of a site without an outage those that are not lost are beta-binomial.
"""

from __future__ import annotations

import itertools
import math
from fractions import Fraction
from typing import NamedTuple

F = Fraction
Shares = list[Fraction]


class Place(NamedTuple):
    """A site with one group, in fractions."""

    size: int
    dropout: Fraction = Fraction(0)
    finishes: Fraction = Fraction(1)
    outage: Fraction = Fraction(0)
    tie: Fraction = Fraction(0)


def _rising(x: Fraction, k: int) -> Fraction:
    return math.prod((x + i for i in range(k)), start=Fraction(1))


def _kept(n: int, place: Place) -> Shares:
    """How many of n updates are not lost in an hour without an outage."""
    p, tie = place.dropout, place.tie
    if tie == 0:
        return [math.comb(n, y) * (1 - p) ** y * p ** (n - y) for y in range(n + 1)]
    if tie == 1:
        return [p, *[F(0)] * (n - 1), 1 - p] if n else [F(1)]
    a, b = p * (1 - tie) / tie, (1 - p) * (1 - tie) / tie
    whole = _rising(a + b, n)
    return [math.comb(n, y) * _rising(b, y) * _rising(a, n - y) / whole for y in range(n + 1)]


def _at(n: int, place: Place) -> Shares:
    """How many of n at a site deliver."""
    f, found = place.finishes, [Fraction(0)] * (n + 1)
    for y, share in enumerate(_kept(n, place)):
        for x in range(y + 1):
            found[x] += share * math.comb(y, x) * f**x * (1 - f) ** (y - x)
    found = [share * (1 - place.outage) for share in found]
    found[0] += place.outage
    return found


def _convolved(one: Shares, other: Shares) -> Shares:
    found = [Fraction(0)] * (len(one) + len(other) - 1)
    for (i, x), (j, y) in itertools.product(enumerate(one), enumerate(other)):
        found[i + j] += x * y
    return found


def exact(places: list[Place], n: int) -> Shares:
    """How many of n deliver that are drawn without replacement: over all compositions."""
    whole = math.comb(sum(place.size for place in places), n)
    found = [Fraction(0)] * (n + 1)
    for takes in itertools.product(*(range(min(n, place.size) + 1) for place in places)):
        if sum(takes) != n:
            continue
        ways = math.prod(math.comb(p.size, take) for p, take in zip(places, takes, strict=True))
        count = [Fraction(1)]
        for place, take in zip(places, takes, strict=True):
            count = _convolved(count, _at(take, place))
        for x, share in enumerate(count):
            found[x] += share * ways / whole
    return found


def claims(places: list[Place], asked: int, needed: int) -> tuple[Fraction, Fraction]:
    """What independence claims, and the truth, in fractions."""
    sure = [Place(p.size, finishes=(1 - p.outage) * p.finishes * (1 - p.dropout)) for p in places]
    found = [sum(exact(each, asked)[needed:], Fraction(0)) for each in (sure, places)]
    return found[0], found[1]


def fleet(places: list[Place]) -> str:
    """The same devices as a fleet.toml; they take 4,000 s, so each round has its own hour."""
    text = "seed = 1\n"
    for i, place in enumerate(places):
        text += f"[cohorts.c{i}]\ncount = {place.size}\nsite = 's{i}'\nsamples = 4000\n"
        text += f"speed = 1.0\nbandwidth = 1e9\ndropout = {float(place.dropout)}\n"
        text += f"[sites.s{i}]\noutage = {float(place.outage)}\ncorrelation = {float(place.tie)}\n"
    return text
