"""When the clients of one attempt answered: an event beside its entry in the ledger.

Kind `clients`, code the phase, no node; its detail has texts:

    names   sites of those who were asked, a JSON list
    asked   how many of each were asked, by name in that order
    sites   for each of the roster, in its order, the place of its site among the names
    ready   ... milliseconds from the start's going out until it was ready: it had trained
    sent    ... and from the roster's going out until its vector was whole; `-` where none came
    slow    node ids of those who were still there and not ready when the roster was frozen

A roster of more than `MOST` has names and asked only. In a simulated round the times are its
clock's, `ready` is got and trained, `sent` the sending; the names are the cohorts of its fleet, and
`used`, `late`, `lost`, `offline` and `crashed` say how many of each became that.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

from .ledger import Event

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from datetime import datetime

    from .attempt import Attempt
    from .invitation import Joined

KIND = "clients"
MOST = 4096
"""Members of whom single times are written."""
NONE = "-"
FATES = ("used", "late", "lost", "offline", "crashed")


class Answers:
    """When members of one attempt answered, on the coordinator's clock."""

    def __init__(self, now: float) -> None:
        """Begin when the members are asked; monotonic seconds, here and below."""
        self._asked = self._frozen = now
        self._ready, self._sent = dict[str, float](), dict[str, float]()
        self._slow = list[str]()

    def ready(self, node: str, now: float) -> None:
        """Note that a member is ready."""
        self._ready[node] = now - self._asked

    def frozen(self, slow: Iterable[str], now: float) -> None:
        """Note that the roster goes out, and who was not ready."""
        self._frozen, self._slow = now, sorted(slow)

    def whole(self, node: str, now: float) -> None:
        """Note that a member's vector is there."""
        self._sent[node] = now - self._frozen

    def detail(self, cohort: Mapping[str, Joined], roster: Sequence[str]) -> dict[str, str]:
        """Return what the event says; nothing for an attempt that another process began."""
        if not cohort or (roster and not self._ready):
            return {}
        site = {node: joined.member.site for node, joined in cohort.items()}
        names = sorted(set(site.values()))
        of = [names.index(name) for name in site.values()]
        asked = numbers(of.count(place) for place in range(len(names)))
        found = {"names": json.dumps(names), "asked": asked}
        if not 0 < len(roster) <= MOST:
            return found
        places = {name: place for place, name in enumerate(names)}
        found["sites"] = numbers(places[site[node]] for node in roster)
        found["ready"] = milliseconds(self._ready[node] for node in roster)
        found["sent"] = milliseconds(self._sent.get(node, math.nan) for node in roster)
        return found | ({"slow": " ".join(self._slow)} if self._slow else {})


def event(attempt: Attempt, at: datetime) -> Event | None:
    """Return the event of an attempt that is over; None where there is nothing to say.

    Args:
        attempt: The attempt.
        at: Civil time.
    """
    terms, own = attempt.plan.terms, attempt.beside.clients
    detail = own or attempt.answers.detail(attempt.plan.cohort, attempt.roster)
    if not detail:
        return None
    stamp = at.isoformat(timespec="milliseconds")
    return Event(
        kind=KIND,
        round=terms.round,
        attempt=terms.attempt,
        code=terms.phase,
        detail=detail,
        at=stamp,
    )


def numbers(values: Iterable[int]) -> str:
    """Return whole numbers as a text."""
    return " ".join(map(str, values))


def milliseconds(seconds: Iterable[float]) -> str:
    """Return times as a text: whole milliseconds, `NONE` for NaN."""
    return " ".join(NONE if math.isnan(s) else str(round(1000 * s)) for s in seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What an event says."""

    names: tuple[str, ...]
    """Sites or cohorts."""
    asked: tuple[int, ...]
    """By name, as the fates below."""
    fates: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Of a simulated round: how many became what."""
    sites: tuple[int, ...] = ()
    """For each of the roster the place of its name; empty, as what follows, for a large roster."""
    ready: tuple[float, ...] = ()
    """Seconds."""
    sent: tuple[float, ...] = ()
    """Seconds; NaN where no vector came."""
    slow: tuple[str, ...] = ()
    """Node ids, hex."""

    @classmethod
    def of(cls, event: Event) -> Self:
        """Read an event of this kind.

        Raises:
            ValueError, TypeError: It was not written by `event`.
        """
        said = {name: str(value) for name, value in event.detail.items()}
        names = json.loads(said["names"]) if "names" in said else []
        if not isinstance(names, list):
            raise TypeError("names of clients: no list")

        def counts(name: str) -> tuple[int, ...]:
            return tuple(map(int, said.get(name, "").split()))

        def times(name: str) -> tuple[float, ...]:
            texts = said.get(name, "").split()
            return tuple(math.nan if text == NONE else int(text) / 1000 for text in texts)

        found = cls(
            names=tuple(map(str, names)),
            asked=counts("asked"),
            fates={name: counts(name) for name in FATES if name in said},
            sites=counts("sites"),
            ready=times("ready"),
            sent=times("sent"),
            slow=tuple(said.get("slow", "").split()),
        )
        by_name = {len(found.names), len(found.asked), *map(len, found.fates.values())}
        by_member = {len(found.sites), len(found.ready), len(found.sent)}
        if len(by_name) > 1 or len(by_member) > 1 or not set(found.sites) <= set(range(len(names))):
            raise ValueError("clients: lists of different lengths")
        return found
