"""A fleet as arrays: 20 bytes a client, and a few numbers for each cohort.

    samples   int32      examples
    speed     float32    seconds to train a sample once
    downlink  float32    bytes a second
    uplink    float32    the same array where one line is meant
    phase     float32    how far the client's day is ahead of the run's, seconds of 0 to 86,400
    duty      float32    share of the longest window, 0.8 day, for which it is online a day;
                         infinite: always

A client's day d begins at d * 86,400 - phase, and its window at that + 0.2 * 86,400 * u(seed,
AVAILABLE, client, d); it lasts 0.8 * 86,400 * duty. So a window never reaches the next day.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from .counter import Purpose, uniform
from .devices import Fate, Fates, Times
from .distributions import normal, place_of
from .quantities import Range, checked
from .sites import Losses
from ...protocol.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from .declared import Site
    from .devices import Ids, Load, Reals
    from .traces import Availability

DAY = 86400.0
LATEST = 0.2
"""Share of a day after which a window has begun."""
LONGEST = 0.8
"""Share of a day that a window lasts at most."""
_INT32 = 2**31 - 1


@dataclass(frozen=True, slots=True, eq=False)
class Profiles:
    """What each client is, shape (clients,); `of` makes them of numbers and arrays."""

    samples: NDArray[np.int32]
    speed: NDArray[np.float32]
    downlink: NDArray[np.float32]
    uplink: NDArray[np.float32]
    phase: NDArray[np.float32]
    duty: NDArray[np.float32]

    @classmethod
    def of(
        cls,
        clients: int,
        *,
        samples: object,
        speed: object = 0.0,
        downlink: object = np.inf,
        uplink: object = None,
        phase: object = 0.0,
        duty: object = np.inf,
    ) -> Self:
        """Return profiles; each quantity is one number for all, or an array of one a client.

        Raises:
            SettingsError: An array has another length, or a value is none that a device has.
        """
        given = {
            "samples": samples, "speed": speed, "downlink": downlink,
            "uplink": downlink if uplink is None else uplink, "phase": phase, "duty": duty,
        }  # fmt: skip
        made: dict[int, NDArray[Any]] = {}
        arrays: dict[str, NDArray[Any]] = {}
        for name, value in given.items():
            if id(value) not in made or name == "samples":
                made[id(value)] = _array(name, value, clients)
            arrays[name] = made[id(value)]
        return cls(**arrays)


@dataclass(frozen=True, slots=True, kw_only=True)
class Behaviour:
    """How the devices of one cohort behave."""

    jitter: float = 0.0
    """Training takes 1 - jitter to 1 + jitter times as long, differently in each round."""
    spread: float = 0.0
    """Training takes exp(spread z) times as long, z normal, differently in each round."""
    dropout: float = 0.0
    """Probability that an update is lost on the way."""
    crash: float = 0.0
    """Probability that a client breaks off while it works."""
    trace: Availability | None = None
    """When its clients are online, in place of phase and duty."""
    name: str = ""
    site: str = ""
    """Where they are; empty: nowhere in particular."""

    def __post_init__(self) -> None:
        """Check it.

        Raises:
            SettingsError: A value is none that devices have.
        """
        checked(self, "behaviour", _BEHAVIOUR)


_BEHAVIOUR = {
    "jitter": Range(0, 1, ""),
    "spread": Range(0, 10, ""),
    "dropout": Range(0, 1, ""),
    "crash": Range(0, 1, ""),
}


@dataclass(frozen=True, slots=True, eq=False)
class Members:
    """Which cohort a client belongs to, and its number there, which keys what it is and does.

    By counts, clients of a cohort stand together, and one more at its end changes the number of
    none, though the clients of later cohorts move on by a place. By shares each client is drawn.
    """

    firsts: NDArray[np.int64] | None = None
    """By counts: the first client of each cohort."""
    shares: Reals | None = None
    """By shares: where each cohort's part of [0, 1) ends, the last left out."""
    offsets: NDArray[np.uint64] = field(default_factory=lambda: np.zeros(1, np.uint64))
    """For each cohort what is added to a client to give its number."""
    seed: int = 0

    def cohorts(self, ids: Ids) -> NDArray[np.int64]:
        """Return each client's cohort."""
        if self.firsts is not None:
            return np.searchsorted(self.firsts, ids, side="right").astype(np.int64) - 1
        if self.shares is not None and len(self.shares):
            drawn = uniform(self.seed, Purpose.KIND, ids)
            return np.searchsorted(self.shares, drawn, side="right").astype(np.int64)
        return np.zeros(len(ids), np.int64)

    def numbers(self, ids: Ids, cohorts: NDArray[np.int64]) -> NDArray[np.uint64]:
        """Return each client's number."""
        return ids.astype(np.uint64) + self.offsets[cohorts]


class ArrayFleet:
    """A fleet whose devices are arrays; see `Fleet`."""

    def __init__(
        self,
        profiles: Profiles,
        seed: int = 0,
        behaviours: Sequence[Behaviour] = (Behaviour(),),
        members: Members | None = None,
        sites: Mapping[str, Site] | None = None,
    ) -> None:
        """Take the arrays.

        Args:
            profiles: What each client is.
            seed: Of what they do.
            behaviours: One for each cohort.
            members: Which cohort a client belongs to; None: there is one.
            sites: Those that something happens to, by name.
        """
        self.profiles, self.seed = profiles, seed
        self.clients = len(profiles.samples)
        self._members = members or Members()
        self._jitter, self._spread, self._crash = (
            np.array([getattr(b, name) for b in behaviours])
            for name in ("jitter", "spread", "crash")
        )
        self._losses = Losses(seed, sites or {}, [(b.site, b.dropout) for b in behaviours])
        self.cohorts = tuple(b.name for b in behaviours)
        """Names of the cohorts, in the order of their numbers."""
        self.sites = tuple(dict.fromkeys(b.site for b in behaviours))
        """Names of the sites, in the order in which cohorts name them; empty for none."""
        self._sites = np.array([self.sites.index(b.site) for b in behaviours], np.int64)
        self._traces = [(i, b.trace) for i, b in enumerate(behaviours) if b.trace is not None]

    def times(self, ids: Ids, round_: int | Ids, load: Load) -> Times:
        """Return seconds to get the model, to train and to send; see `Fleet`."""
        cohorts = self._members.cohorts(ids)
        train = load.epochs * self.profiles.samples[ids] * self.profiles.speed[ids].astype(float)
        jitter, spread = self._jitter[cohorts], self._spread[cohorts]
        if np.any(jitter):
            numbers = self._members.numbers(ids, cohorts)
            train *= 1 - jitter + 2 * jitter * uniform(self.seed, Purpose.JITTER, numbers, round_)
        if np.any(spread):
            numbers = self._members.numbers(ids, cohorts)
            train *= np.exp(spread * normal(self.seed, Purpose.SPREAD, numbers, round_))
        down = load.down / self.profiles.downlink[ids].astype(float)
        return Times(down, train, load.up / self.profiles.uplink[ids].astype(float))

    def windows(self, ids: Ids, time: float, round_: int | Ids) -> tuple[Reals, Reals]:
        """Return when they are online next; see `Fleet`."""
        cohorts = self._members.cohorts(ids)
        numbers = self._members.numbers(ids, cohorts)
        phase, duty = self.profiles.phase[ids].astype(float), self.profiles.duty[ids].astype(float)
        begin, end = _daily(self.seed, numbers, phase, duty, time)
        for cohort, trace in self._traces:
            here = cohorts == cohort
            if here.any():
                begin[here], end[here] = trace.windows(place_of(numbers[here]), time)
        return begin, end

    def fates(self, ids: Ids, round_: int | Ids, at: float | Reals) -> Fates:
        """Return what becomes of their work; see `Fleet`."""
        cohorts = self._members.cohorts(ids)
        numbers = self._members.numbers(ids, cohorts)
        kinds, moments = np.zeros(len(ids), np.uint8), np.ones(len(ids))
        dropout, crash = self._losses.of(at, cohorts), self._crash[cohorts]
        if np.any(dropout):
            lost = uniform(self.seed, Purpose.LOST, numbers, round_) < dropout
            kinds[lost] = Fate.LOST
        if np.any(crash):
            crashed = uniform(self.seed, Purpose.CRASH, numbers, round_) < crash
            kinds[crashed] = Fate.CRASHED
            moments = uniform(self.seed, Purpose.MOMENT, numbers, round_)
        return Fates(kinds, moments)

    def cohort_of(self, ids: Ids) -> NDArray[np.int64]:
        """Return each client's cohort, its place in `cohorts`."""
        return self._members.cohorts(ids)

    def numbers_of(self, ids: Ids) -> NDArray[np.uint64]:
        """Return the numbers that key what each client is and does."""
        return self._members.numbers(ids, self._members.cohorts(ids))

    def site_of(self, ids: Ids) -> NDArray[np.int64]:
        """Return each client's site, its place in `sites`."""
        return self._sites[self._members.cohorts(ids)]


def _daily(
    seed: int, numbers: NDArray[np.uint64], phase: Reals, duty: Reals, time: float
) -> tuple[Reals, Reals]:
    """Return the window of the day, or the next day's where that is over."""
    day = np.floor((time + phase) / DAY)
    begin, end = _window(seed, numbers, phase, duty, day)
    over = end <= time
    if over.any():
        begin[over], end[over] = _window(
            seed, numbers[over], phase[over], duty[over], day[over] + 1
        )
    return begin, end


def _window(
    seed: int, numbers: NDArray[np.uint64], phase: Reals, duty: Reals, day: Reals
) -> tuple[Reals, Reals]:
    drawn = uniform(seed, Purpose.AVAILABLE, numbers, day.astype(np.uint64))
    begin = (day + LATEST * drawn) * DAY - phase
    end = begin + LONGEST * DAY * duty
    begin[np.isinf(duty)] = -np.inf
    return begin, end


def _array(name: str, value: object, clients: int) -> NDArray[Any]:
    """Return one quantity of every client; one number for all takes no memory."""
    dtype, low, high = _DOMAINS[name]
    try:
        given = np.asarray(value)
    except ValueError:
        given = np.empty(0, object)
    if given.dtype.kind not in "iuf" or given.shape not in ((), (clients,)):
        expected = f"a number, or an array of {clients}"
        raise SettingsError(name, expected, f"{given.dtype} of shape {given.shape}")
    if given.size and not (given.min() >= low and given.max() <= high):  # false for NaN as well
        wrong = given.reshape(-1)[np.argmin((given >= low) & (given <= high))]
        raise SettingsError(name, f"{low:g} to {high:g}", float(wrong))
    return np.broadcast_to(given.astype(dtype, copy=False), (clients,))


_DOMAINS: dict[str, tuple[type[np.generic], float, float]] = {
    "samples": (np.int32, 1, _INT32),
    "speed": (np.float32, 0, 1e9),
    "downlink": (np.float32, 1e-3, np.inf),
    "uplink": (np.float32, 1e-3, np.inf),
    "phase": (np.float32, 0, DAY),
    "duty": (np.float32, 1e-6, np.inf),
}
