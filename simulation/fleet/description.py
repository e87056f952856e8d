"""A fleet by cohorts: what each kind of device is drawn from, and the devices themselves.

A client's quantities are drawn by its number (`Members`), each by a purpose of its own, so that a
client more changes nothing of the others.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import sha256
from typing import TYPE_CHECKING

import numpy as np

from .counter import Purpose
from .declared import Expect, Prices, Server
from .profiles import DAY, LONGEST, ArrayFleet, Members, Profiles
from ...protocol.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from .declared import Pool, Site
    from .distributions import Distribution, Numbers, Reals
    from .profiles import Behaviour

_CHUNK = 1 << 16
"""Clients whose quantities are drawn at once: what is needed beside the arrays stays small."""
_HOUR = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Cohort:
    """One kind of device."""

    name: str
    count: int | None
    share: float | None
    site: str
    samples: Distribution
    speed: Distribution
    downlink: Distribution
    uplink: Distribution | None
    """None: that of `downlink`."""
    hours: Distribution | None
    """None: always online, or as its trace says."""
    begins: Distribution
    behaviour: Behaviour
    memory: Distribution | None = None
    """Bytes that a training process may use; None: not said."""
    power: float = 0.0
    """Watts while a device is at work, beyond those of idling."""
    price: float = 0.0
    """Money for a device's hour at work."""
    line_price: float = 0.0
    """Money for 1e9 bytes over its line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """What a fleet.toml says."""

    path: Path
    seed: int | None
    cohorts: tuple[Cohort, ...]
    digest: str
    """SHA-256, hex, over the files that it was read from."""
    sites: Mapping[str, Site] = field(default_factory=dict)
    """Those that something happens to, by the names that cohorts have for them."""
    server: Server = field(default_factory=Server)
    prices: Prices = field(default_factory=Prices)
    pools: Mapping[str, Pool] = field(default_factory=dict)
    expect: Expect = field(default_factory=Expect)

    @property
    def clients(self) -> int | None:
        """How many clients the file counts; None where it says shares."""
        counts = [c.count for c in self.cohorts if c.count is not None]
        return sum(counts) if counts else None

    def fleet(self, clients: int, seed: int) -> ArrayFleet:
        """Return the devices.

        Args:
            clients: How many the run has.
            seed: The run's, where the file has none.

        Raises:
            SettingsError: The file counts another number of clients.
        """
        if self.clients not in (None, clients):
            move = f"ask for {self.clients} clients, or give shares in place of counts"
            expected = f"cohorts of {clients} clients together"
            raise SettingsError(f"{self.path}: cohorts", expected, self.clients, move)
        used = seed if self.seed is None else self.seed
        members = self._members(used)
        behaviours = [cohort.behaviour for cohort in self.cohorts]
        drawn = _drawn(self.cohorts, members, clients, used)
        return ArrayFleet(drawn, used, behaviours, members, self.sites)

    def _members(self, seed: int) -> Members:
        """Number the clients: by shares as they stand, by counts beginning anew in each cohort."""
        if self.clients is None:
            shares = np.cumsum([cohort.share or 0.0 for cohort in self.cohorts])
            offsets = np.zeros(len(self.cohorts), np.uint64)
            return Members(shares=(shares / shares[-1])[:-1], offsets=offsets, seed=seed)
        firsts = np.cumsum([0, *(cohort.count or 0 for cohort in self.cohorts)])[:-1]
        halves = np.array([_half(cohort.name) for cohort in self.cohorts], np.uint64)
        return Members(firsts=firsts, offsets=halves - firsts.astype(np.uint64), seed=seed)


def _half(name: str) -> int:
    """Return the upper half of the numbers of a cohort's clients."""
    return int.from_bytes(sha256(name.encode()).digest()[:4], "little") << 32


def _drawn(cohorts: Sequence[Cohort], members: Members, clients: int, seed: int) -> Profiles:
    """Draw what every client is, some at a time."""
    two_ways = any(cohort.uplink is not None for cohort in cohorts)
    names = ("speed", "downlink", *(("uplink",) if two_ways else ()), "phase", "duty")
    arrays: dict[str, NDArray[np.generic]] = {"samples": np.empty(clients, np.int32)}
    arrays |= {name: np.empty(clients, np.float32) for name in names}
    for start in range(0, clients, _CHUNK):
        ids = np.arange(start, min(start + _CHUNK, clients))
        kinds = members.cohorts(ids)
        for kind, cohort in enumerate(cohorts):
            here = ids[kinds == kind]
            if len(here):
                numbers = members.numbers(here, kinds[kinds == kind])
                for name, values in _quantities(cohort, numbers, seed).items():
                    if name in arrays:
                        arrays[name][here] = values
    return Profiles.of(clients, **arrays)


def _quantities(cohort: Cohort, numbers: Numbers, seed: int) -> dict[str, Reals]:
    """Return what some devices of one cohort are, by the names of `Profiles`."""
    down = cohort.downlink.draw(seed, Purpose.BANDWIDTH, numbers)
    up = down if cohort.uplink is None else cohort.uplink.draw(seed, Purpose.UPLINK, numbers)
    begins = cohort.begins.draw(seed, Purpose.PHASE, numbers)
    always = np.full(len(numbers), np.inf)
    hours = always if cohort.hours is None else cohort.hours.draw(seed, Purpose.DUTY, numbers)
    return {
        "samples": np.floor(cohort.samples.draw(seed, Purpose.SAMPLES, numbers)),
        "speed": cohort.speed.draw(seed, Purpose.SPEED, numbers),
        "downlink": down,
        "uplink": up,
        "phase": (DAY - begins * _HOUR) % DAY,
        "duty": hours * _HOUR / (LONGEST * DAY),
    }
