"""Several processes, on one machine or many, that train shares of each cohort: who takes what.

    torchrun ... --no-python -- umbel simulate APP ...     in every process, with the same arguments

Rank 0 is the run: coordinator, ledger, files. Each other rank has the same task and the same tier
and waits for its shares (torch_replicas.py). Where the longest clients go first, each to the
process that will be free first, the processes end at about the same time (longest processing time
first, Graham 1969). What a client costs is learned: seconds = a * clients + b * examples, and how
fast each process is beside that.

Integers make the sum's bits independent of shares, so nothing of this changes a result.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ...protocol.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from .torch_group import Group
    from .work import Tier

FORGET = 0.8
"""What of the earlier rounds' measurements counts after another round."""


class World(NamedTuple):
    """This process among the others."""

    rank: int
    size: int
    local: int
    """Among those of its machine: which GPU is its own."""
    beside: int
    """How many there are on its machine."""
    address: str
    """Where they meet."""


def world(environment: Mapping[str, str] = os.environ) -> World | None:
    """Return what torchrun says of this process; None for one that is alone.

    Raises:
        SettingsError: A variable is missing, or no number.
    """
    if environment.get("WORLD_SIZE", "1") == "1":
        return None
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    rank, size, local, beside = (_number(environment, name) for name in names)
    if rank >= size:
        raise SettingsError("RANK", f"an integer below {size}, from torchrun", rank)
    return World(rank, size, local, max(1, beside), environment.get("MASTER_ADDR", ""))


def group(found: World) -> Group:
    """Return all ranks; returns when all are there.

    Raises:
        SettingsError: There is no torch to talk with.
        StateError: They do not come.
    """
    try:
        from .torch_group import Group  # noqa: PLC0415 - one process needs no torch
    except ModuleNotFoundError:
        raise SettingsError("WORLD_SIZE", "1, for several need torch", found.size) from None
    return Group(found)


def spread(ranks: Group, tier: Tier) -> Tier:
    """Return rank 0's tier that trains on all ranks by this one.

    Raises:
        StateError: One of them cannot make it.
    """
    from .torch_replicas import Replicas  # noqa: PLC0415 - as above

    return Replicas(ranks, tier)


def follow(ranks: Group, make: Callable[[str], Tier]) -> None:
    """Train shares until rank 0 ends, in every other rank.

    Args:
        ranks: All ranks.
        make: Returns the tier of a name.

    Raises:
        StateError: Rank 0, or another rank, is gone.
    """
    from .torch_replicas import follow as wait  # noqa: PLC0415 - as above

    wait(ranks, make)


def _number(environment: Mapping[str, str], name: str) -> int:
    text = environment.get(name, "")
    if not text.isdecimal() or len(text) > 9:  # noqa: PLR2004 - beyond any world
        raise SettingsError(name, "an integer, from torchrun", text)
    return int(text)


def longest_first(costs: NDArray[np.float64], speeds: Sequence[float]) -> list[NDArray[np.int64]]:
    """Return for each process the places of its clients, ascending.

    Args:
        costs: Of each client, above 0.
        speeds: Of each process, above 0.
    """
    loads = np.zeros(len(speeds))
    shares: list[list[int]] = [[] for _ in speeds]
    for place in np.argsort(-costs, kind="stable").tolist():
        ends = loads + costs[place] / np.asarray(speeds)
        rank = int(ends.argmin())
        loads[rank] = ends[rank]
        shares[rank].append(place)
    return [np.array(sorted(share), np.int64) for share in shares]


class Costs:
    """What clients cost and how fast processes are, learned while a run goes on."""

    def __init__(self, processes: int) -> None:
        """Know nothing: all clients alike, all processes alike."""
        self.a, self.b = 1.0, 0.0
        self.speeds = [1.0] * processes
        self._examples: dict[int, int] = {}
        self._moments = np.zeros((2, 2))
        self._seconds = np.zeros(2)

    def of(self, clients: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return what each is expected to cost.

        A client that is new has as many examples as those that are known have on average.
        """
        known = self._examples
        mean = sum(known.values()) / len(known) if known else 1.0
        examples = np.array([known.get(int(client), mean) for client in clients], np.float64)
        return np.maximum(self.a + self.b * examples, 1e-9)

    def learn(
        self,
        clients: NDArray[np.int64],
        examples: NDArray[np.int64],
        shares: Sequence[NDArray[np.int64]],
        seconds: Sequence[float],
    ) -> None:
        """Take a round's measurements.

        Args:
            clients: Who trained.
            examples: Of each.
            shares: The places of each process.
            seconds: What each process took.
        """
        self._examples.update(zip(clients.tolist(), examples.tolist(), strict=True))
        self._moments *= FORGET
        self._seconds *= FORGET
        for share, took, speed in zip(shares, seconds, self.speeds, strict=True):
            row = np.array([len(share), examples[share].sum()], np.float64)
            self._moments += np.outer(row, row)
            self._seconds += row * took * speed
        self._fit()
        for rank, (share, took) in enumerate(zip(shares, seconds, strict=True)):
            expected = float(self.of(clients[share]).sum())
            if len(share) and took > 0 and expected > 0:
                ratio = min(4.0, max(0.25, expected / took))
                self.speeds[rank] += (1 - FORGET) * (ratio - self.speeds[rank])

    def _fit(self) -> None:
        """Fit a and b by least squares, neither below 0."""
        (clients, both), (_, examples) = self._moments
        wide = clients * examples - both * both
        if wide > 1e-9 * clients * examples:  # shares of different mixtures
            a = (self._seconds[0] * examples - self._seconds[1] * both) / wide
            b = (self._seconds[1] * clients - self._seconds[0] * both) / wide
            if a >= 0 and b >= 0:
                self.a, self.b = float(a), float(b)
                return
        if examples > 0:
            self.a, self.b = 0.0, float(self._seconds[1] / examples)
