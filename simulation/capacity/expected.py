"""What a plan expects of a run's rounds."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .sample import Sample


class End(IntEnum):
    """What becomes of a device that is asked."""

    USED = 0
    """Its update arrives in time; also where it is not known yet when a round closes."""
    LATE = 1
    LOST = 2
    """On the way."""
    OFFLINE = 3
    """It goes before its update has arrived."""
    CRASHED = 4


PARTS = ("down", "train", "up")
"""Of the work of a device."""
DEADLINE = "deadline"
"""The part of a round whose deadline closes it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Took:
    """What the devices of one cohort have of a round, on average."""

    cohort: str
    site: str
    share: float
    """Of all clients."""
    asked: float
    """Devices; each of them has one of the five outcomes."""
    used: float
    late: float
    lost: float
    """On the way, a site's outages among it."""
    offline: float
    crashed: float
    work: float
    """Seconds at work, of all of them together."""
    received: float
    """Bytes."""
    sent: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Closer:
    """How often a round is closed by the last update of a cohort, most of whose time went there."""

    cohort: str
    """Empty where the deadline closes it."""
    part: str
    """`down`, `train`, `up`, or `deadline`."""
    share: float
    """Of all rounds."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Hour:
    """A round that is asked for in one hour of the virtual day."""

    hour: int
    p50: float
    """Seconds; NaN where too few are online all the hour."""
    p90: float
    miss: float
    """How likely fewer than the quorum arrive; NaN as before."""
    online: float
    """Devices, on average."""
    short: float
    """The share of the hour in which a round would have to wait: too few are online."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Expected:
    """One try of a round, from which time on, and a whole run of them."""

    seconds: Sample
    """From asking to the close, with the server's own part."""
    wait: Sample
    """Seconds before it in which too few are online."""
    total: Sample
    """Seconds of a run; infinity where a round fails at all its attempts and ends it."""
    miss: float
    """How likely one try has fewer updates than the quorum, or masks that do not come off."""
    run_lost: float
    """How likely a round fails at all its attempts before the run's end."""
    tries: float
    """Tries of a whole run, on average; without those after a loss."""
    clients: tuple[Took, ...]
    """By cohort, in the order of fleet.toml."""
    closers: tuple[Closer, ...]
    """The most frequent first; their shares add up to 1 where every round has a close."""
    by_hour: tuple[Hour, ...]
    """24 hours of the first day."""
