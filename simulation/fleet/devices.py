"""What can be asked of a fleet: how long a device takes, when it is online, whether it fails.

Everything is a function of the device, the round and the time; nothing is remembered. So a plan and
a clock that share a fleet see the same devices, and a run that goes on sees what it saw before.

    time of one client = down / downlink + epochs * samples * speed * jitter + up / uplink

Whether something arrives may depend on the hour as well, as a site may be cut off.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Ids = NDArray[np.int64]
    Reals = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What a round asks of each client."""

    down: int = 0
    """Bytes of the model."""
    up: int = 0
    """Bytes of its update."""
    epochs: int = 1


class Times(NamedTuple):
    """Seconds of each part of a client's work."""

    down: Reals
    train: Reals
    up: Reals


class Fate(IntEnum):
    """What would become of a client's work if it stayed online."""

    FINE = 0
    LOST = 1
    """It is done, and lost on the way."""
    CRASHED = 2
    """It breaks off."""


class Fates(NamedTuple):
    """For each client a `Fate`, and at which share of getting the model and training it crashes."""

    kinds: NDArray[np.uint8]
    moments: Reals


class Fleet(Protocol):
    """Devices, numbered 0 to `clients - 1`."""

    @property
    def clients(self) -> int:
        """How many there are."""

    def times(self, ids: Ids, round_: int | Ids, load: Load) -> Times:
        """Return how long some clients take in a round.

        Args:
            ids: Who.
            round_: The round, and 2^32 more for each attempt after its first; or for each client
                the number of its launch.
            load: What is asked of them.
        """

    def windows(self, ids: Ids, time: float, round_: int | Ids) -> tuple[Reals, Reals]:
        """Return when some clients are online next: since or from when, and until when.

        Virtual seconds since the run's beginning. The end is later than `time`; a client is online
        at `time` where the beginning is not later, and then all the way to the end. A client that
        never comes again has infinity for both.
        """

    def fates(self, ids: Ids, round_: int | Ids, at: float | Reals) -> Fates:
        """Return what becomes of their work.

        Args:
            ids: Who.
            round_: As for `times`.
            at: When they are asked, or for each client when it is, in virtual seconds. Only the
                hour counts, floor(at / 3600): a clock looks at a client once an hour.
        """
