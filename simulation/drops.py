"""Losing clients on purpose, at a named message boundary.

A boundary is the last thing that passed between a client and the server before the client
went away for good, in the order of a secure round:

    start       it got the terms and died in training
    keys        it sent its round keys (plain: that it is ready)
    roster      it got the roster
    shares      it sent its sealed shares
    inbox       it got its neighbours' shares
    upload      its vector broke off half-way
    masked      its vector arrived whole
    survivors   it got the survivor set
    vote        it sent its vote
    votes       it got the counted votes
    release     it sent its shares of the others
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from ..protocol.errors import SettingsError

BOUNDARIES = (
    "start",
    "keys",
    "roster",
    "shares",
    "inbox",
    "upload",
    "masked",
    "survivors",
    "vote",
    "votes",
    "release",
)
PLAIN = ("start", "keys", "roster", "upload", "masked")
"""Boundaries that a round with masks off has."""


@dataclass(frozen=True, slots=True)
class Drop:
    """Clients that are lost at one boundary of one round."""

    boundary: str
    clients: tuple[int, ...]
    """Indices of the clients."""
    round: int = 2
    silent: bool = False
    """Whether the server is not told, and finds out at its deadline."""

    def __post_init__(self) -> None:
        """Check that there is such a boundary."""
        if self.boundary not in BOUNDARIES:
            raise SettingsError("--drop-at", f"one of {', '.join(BOUNDARIES)}", self.boundary)


def parse(text: str, clients: int, rounds: int, *, secure: bool = True) -> Drop:
    """Read `BOUNDARY:N` or `BOUNDARY:N@ROUND`: the last N of `clients` are lost there.

    Without a round it is the second, or the only one.

    Raises:
        SettingsError: It has another form, names no boundary of this kind of round, or more
            clients or a later round than there are.
    """
    match = re.fullmatch(r"([a-z]+):([0-9]{1,6})(?:@([0-9]{1,9}))?", text)
    known = BOUNDARIES if secure else PLAIN
    if match is None or match[1] not in known:
        raise SettingsError(
            "--drop-at", f"BOUNDARY:N[@ROUND], BOUNDARY of {', '.join(known)}", text
        )
    count = int(match[2])
    if not 1 <= count <= clients:
        raise SettingsError("--drop-at", f"1 to {clients} clients", count)
    number = int(match[3] or min(2, rounds))
    if not 1 <= number <= rounds:
        raise SettingsError("--drop-at", f"a round from 1 to {rounds}", number)
    return Drop(match[1], tuple(range(clients - count, clients)), number)
