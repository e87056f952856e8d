"""Fleets for tests: the reference's formulas, and small ones by hand."""

from __future__ import annotations

import numpy as np

from umbel.simulation.fleet.counter import uniform
from umbel.simulation.fleet.devices import Load
from umbel.simulation.fleet.profiles import ArrayFleet, Behaviour, Profiles

LOAD = Load(down=240_000, up=240_000)


def reference(clients: int, seed: int = 7) -> ArrayFleet:
    """Return the fleet of which the reference's figures are."""
    c = np.arange(clients)
    radius = np.sqrt(-2 * np.log(uniform(seed, 11, c) + 1e-12))
    z = radius * np.cos(2 * np.pi * uniform(seed, 12, c))
    profiles = Profiles.of(
        clients,
        samples=np.clip(np.exp(2 * uniform(seed, 10, c) + 2.5), 4, 400).astype(np.int32),
        speed=0.02 * np.exp(0.6 * z),
        downlink=2e5 * np.exp(3 * uniform(seed, 13, c)),
        phase=86400 * uniform(seed, 14, c),
        duty=0.1 + 0.5 * uniform(seed, 15, c),
    )
    return ArrayFleet(profiles, seed, [Behaviour(jitter=0.1, dropout=0.02)])


def timed(seconds: list[float], *, dropout: float = 0.0, crash: float = 0.0) -> ArrayFleet:
    """Return clients that are always online and take so long."""
    profiles = Profiles.of(len(seconds), samples=1, speed=np.array(seconds))
    return ArrayFleet(profiles, 1, [Behaviour(dropout=dropout, crash=crash)])
