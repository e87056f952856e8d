"""Counter-based numbers: a hash of the words that say what a number is for.

No generator and no state: `uniform(seed, purpose, client, round)` is the same number whenever,
wherever and beside whatever else it is asked for, so a client more changes nothing of the others.

    h = 0x9E3779B97F4A7C15
    for each word w:    h = (h ^ w) * 0xBF58476D1CE4E5B9;  h ^= h >> 30
                        h =  h      * 0x94D049BB133111EB;  h ^= h >> 27
                        h =  h      * 0x9E3779B97F4A7C15;  h ^= h >> 31
    mix = h                                     uint64, everything modulo 2^64
    uniform = (h >> 11) * 2^-53                 float64 in [0, 1)

The three lines are the finaliser of splitmix64 (Steele, Lea and Flood, OOPSLA 2014) with one more
multiplication. For what a device does and what it is; never for secrets.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

Word = Any
"""A non-negative integer below 2^64, or an array of them; arrays are broadcast."""

_START = 0x9E3779B97F4A7C15
_STEPS = ((0xBF58476D1CE4E5B9, 30), (0x94D049BB133111EB, 27), (0x9E3779B97F4A7C15, 31))
_MASK = (1 << 64) - 1


class Purpose(IntEnum):
    """What a number is for; the word after the seed."""

    AVAILABLE = 1
    """When a client's window of a day begins: client, day."""
    LOST = 2
    """Whether its update is lost on the way: client, round."""
    PICK = 3
    """Who is asked: round, number of the draw."""
    JITTER = 4
    """How much slower or faster than usual it is: client, round."""
    CRASH = 5
    """Whether it breaks off while it works: client, round."""
    MOMENT = 6
    """At which share of its work: client, round."""
    KIND = 7
    """Which of the fleet's cohorts it belongs to: client."""
    SPREAD = 8
    """How much slower or faster than usual it is, without bounds: client, round."""
    SAMPLES = 10
    """From here on what a client is."""
    SPEED = 11
    SPEED_ANGLE = 12
    BANDWIDTH = 13
    PHASE = 14
    DUTY = 15
    UPLINK = 16
    OUTAGE = 17
    """Whether a site is cut off: site, hour."""
    HOUR = 18
    """How much is lost at a site: site, hour."""
    MEMORY = 19
    BEGUN = 40
    """How long ago the outage had begun, or the time without one, in which a run begins: site."""
    ANGLE = 20
    """Added to a purpose for the second number of a normal draw; that of a speed is its own."""


def mix(*words: Word) -> NDArray[np.uint64]:
    """Return the hash of some words, shape that of the broadcast words."""
    prefix, rest = _START, list(words)
    while rest and isinstance(rest[0], int):
        prefix = _fold(prefix, int(rest.pop(0)))
    h = np.full(np.broadcast_shapes(*(np.shape(w) for w in rest)), prefix, np.uint64)
    flat = h.reshape(-1)
    for word in rest:
        flat ^= np.broadcast_to(np.asarray(word).astype(np.uint64, copy=False), h.shape).reshape(-1)
        for factor, shift in _STEPS:
            flat *= np.uint64(factor)
            flat ^= flat >> np.uint64(shift)
    return h


def uniform(*words: Word) -> NDArray[np.float64]:
    """Return numbers of [0, 1), 53 bits each, shape that of the broadcast words."""
    return (mix(*words) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _fold(h: int, word: int) -> int:
    """Take one word into the hash: the arithmetic of `mix` on one integer."""
    h ^= word
    for factor, shift in _STEPS:
        h = h * factor & _MASK
        h ^= h >> shift
    return h
