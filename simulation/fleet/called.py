"""A fleet that a function describes: profile(client, round) -> Profile, for what no array says.

The function is the user's own; it must return the same for the same client and round.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from .counter import Purpose, uniform
from .devices import Fate, Fates, Times
from .quantities import Range, checked
from .sites import Sites, hour_of, lost_at, word_of
from ...clients.child import boundary
from ...protocol.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from .declared import Site
    from .devices import Ids, Load, Reals

_KEPT = 4096
"""Profiles that are not asked for again: more than a round looks at."""

_ROUND = (1 << 32) - 1
"""The part of a round's word that is the round; above it is which attempt it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """One device in one round."""

    samples: int
    speed: float = 0.0
    """Seconds to train a sample once."""
    downlink: float = np.inf
    """Bytes a second."""
    uplink: float = np.inf
    begin: float = -np.inf
    """Since when, or from when, it is online: virtual seconds since the run's beginning."""
    end: float = np.inf
    """Until when; afterwards it is offline for good."""
    dropout: float = 0.0
    """Probability that its update is lost on the way."""
    crash: float = 0.0
    """Probability that it breaks off while it works."""
    site: str = ""
    """Where it is: what happens to that site happens to it."""

    def __post_init__(self) -> None:
        """Check it.

        Raises:
            SettingsError: A value is none that a device has.
        """
        checked(self, "profile", _RANGES)
        if not isinstance(self.site, str):
            raise SettingsError("profile.site", "a name", type(self.site).__name__)


_RANGES = {
    "samples": Range(1, 2**31 - 1, ""),
    "speed": Range(0, 1e9, "seconds"),
    "downlink": Range(1e-3, np.inf, "bytes/s"),
    "uplink": Range(1e-3, np.inf, "bytes/s"),
    "begin": Range(-np.inf, np.inf, ""),
    "end": Range(-np.inf, np.inf, ""),
    "dropout": Range(0, 1, ""),
    "crash": Range(0, 1, ""),
}


class CalledFleet:
    """A fleet of such devices; see `Fleet`."""

    def __init__(
        self,
        profile: Callable[[int, int], Profile],
        clients: int,
        *,
        seed: int = 0,
        sites: Mapping[str, Site] | None = None,
    ) -> None:
        """Take the function, how many devices there are, and what happens at sites, by name."""
        self.clients, self.seed = clients, seed
        self._sites = dict(sites or {})

        @lru_cache(_KEPT)
        def told(client: int, round_: int) -> tuple[str, tuple[float, ...]]:
            with boundary():
                found = profile(client, round_)
                if not isinstance(found, Profile):
                    where = f"profile({client}, {round_})"
                    raise SettingsError(where, "a Profile", type(found).__name__)
            return found.site, tuple(float(getattr(found, name)) for name in _NAMES)

        self._told = told

    def times(self, ids: Ids, round_: int | Ids, load: Load) -> Times:
        """Return seconds to get the model, to train and to send; see `Fleet`."""
        _, told = self._table(ids, round_)
        train = load.epochs * told["samples"] * told["speed"]
        return Times(load.down / told["downlink"], train, load.up / told["uplink"])

    def windows(self, ids: Ids, time: float, round_: int | Ids) -> tuple[Reals, Reals]:
        """Return when they are online next; see `Fleet`."""
        _, told = self._table(ids, round_)
        gone = told["end"] <= time
        return np.where(gone, np.inf, told["begin"]), np.where(gone, np.inf, told["end"])

    def fates(self, ids: Ids, round_: int | Ids, at: float | Reals) -> Fates:
        """Return what becomes of their work; see `Fleet`."""
        names, told = self._table(ids, round_)
        dropout = told["dropout"]
        if self._sites:
            words = np.array([word_of(name) for name in names], np.uint64)
            there = Sites.of(self._sites, names)
            dropout = lost_at(self.seed, words, there, dropout, hour_of(at))
        lost = uniform(self.seed, Purpose.LOST, ids, round_) < dropout
        crashed = uniform(self.seed, Purpose.CRASH, ids, round_) < told["crash"]
        kinds = np.where(crashed, Fate.CRASHED, np.where(lost, Fate.LOST, Fate.FINE))
        return Fates(kinds.astype(np.uint8), uniform(self.seed, Purpose.MOMENT, ids, round_))

    def _table(self, ids: Ids, round_: int | Ids) -> tuple[list[str], dict[str, Reals]]:
        """Return the site of each, and its numbers."""
        rounds = np.broadcast_to(round_, ids.shape) & _ROUND
        rows = [self._told(int(i), int(r)) for i, r in zip(ids, rounds, strict=True)]
        table = np.array([row for _, row in rows], np.float64).reshape(-1, len(_NAMES))
        return [site for site, _ in rows], dict(zip(_NAMES, table.T, strict=True))


_NAMES = tuple(field.name for field in fields(Profile) if field.name != "site")
