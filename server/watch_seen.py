"""What a round was, for the rules that watch it: of its entry and the event `clients` beside it.

The event has sites where devices have sessions, and cohorts in a simulation (client_times.py). A
site whose devices are all gone is asked no more, so it would be missed by nobody: what it was asked
before stands for it. In a simulation whoever is away is asked, and found to be.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from .client_times import Told
from .deadlines import TRAINING, UPLOADS
from .watch_terms import Group, Seen

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from .ledger import Event, RoundRecord

REFUSALS = ("refused", "expelled")
"""Kinds of events that say why an update is in no sum."""
_NOBODY = Told(names=(), asked=())


class Rounds:
    """The rounds of one run, one after another."""

    def __init__(self, sites: Mapping[str, str] | None, *, timed: bool, everybody: bool) -> None:
        """Begin with none.

        Args:
            sites: The site of each cohort, in a simulation; None where devices name their own.
            timed: Whether the seconds of a round's phases are those that a plan is about.
            everybody: Whether each round asks all who are here.
        """
        self._sites, self._timed, self._everybody = sites, timed, everybody
        self._known: dict[str, int] = {}
        self._codes: Counter[str] = Counter()
        self._refused = list[str]()

    def noted(self, kind: str, node: str, code: str) -> None:
        """Take an event of the attempt in progress."""
        if kind in REFUSALS:
            self._codes[_reason(kind, code)] += 1
            self._refused.append(node)

    def over(self, record: RoundRecord, beside: Event | None, here: Collection[str] | None) -> Seen:
        """Return what an attempt was that is over.

        Args:
            record: Its entry.
            beside: The event beside it, if there is one.
            here: Sites with a session now; None where nobody knows.

        Raises:
            ValueError, TypeError: The event is none that was written so.
        """
        told = _NOBODY if beside is None else Told.of(beside)
        names = _names(record, told)
        groups, metrics = _groups(record, told), record.metrics
        real = self._timed and TRAINING in record.seconds
        took = sum(record.seconds.values()) if real else None
        if "clock.closed" in metrics:
            took = metrics["clock.closed"] - metrics["clock.opened"]
        at = Counter(names[node] for node in self._refused if node in names)
        codes, self._codes, self._refused = dict(self._codes), Counter(), []
        cohorts = self._sites is not None
        return Seen(
            record=record,
            seconds=took,
            parts=_parts(record, told, real=real) if took is not None else {},
            sites=self._by_site(groups) if cohorts else self._with_gone(groups, here),
            cohorts=groups if cohorts else {},
            refused=codes,
            refused_at=dict(at),
        )

    def _by_site(self, cohorts: Mapping[str, Group]) -> dict[str, Group]:
        """Return what sites did of what cohorts did."""
        found: dict[str, Group] = {}
        for name, group in cohorts.items():
            if site := (self._sites or {}).get(name):
                asked, used = found.get(site, (0, 0))
                found[site] = Group(asked + group.asked, used + group.used)
        return found

    def _with_gone(
        self, sites: Mapping[str, Group], here: Collection[str] | None
    ) -> dict[str, Group]:
        """Return the sites, and those that were asked before and cannot be asked any more."""
        found = dict(sites)
        for name, asked in self._known.items():
            now = sites.get(name, Group(0, 0))
            if sites and (self._everybody or (here is not None and name not in here)):
                found[name] = Group(max(asked, now.asked), now.used)
        for name, group in sites.items():
            self._known[name] = max(group.asked, self._known.get(name, 0))
        return found


def _names(record: RoundRecord, told: Told) -> dict[str, str]:
    """Return the site or cohort of each member of a roster, where the event says it."""
    places = dict(zip(record.roster, told.sites, strict=False))
    return {node: told.names[place] for node, place in places.items()}


def _groups(record: RoundRecord, told: Told) -> dict[str, Group]:
    """Return how many of each site or cohort were asked and used."""
    used = told.fates.get("used")
    if used is None:
        survived = Counter(map(_names(record, told).get, record.survivors))
        if not told.sites:  # a large roster: nobody says where its members are
            return {}
        used = tuple(survived[name] for name in told.names)
    return {
        name: Group(asked, count)
        for name, asked, count in zip(told.names, told.asked, used, strict=True)
    }


def _parts(record: RoundRecord, told: Told, *, real: bool) -> dict[str, float]:
    """Return the seconds of a round's parts: of its slowest client at each place, and of phases."""
    found: dict[str, float] = {}
    for place, ready, sent in zip(told.sites, told.ready, told.sent, strict=True):
        for part, seconds in ((TRAINING, ready), (UPLOADS, sent)):
            key = f"{part} at {told.names[place]}"
            if seconds == seconds:  # noqa: PLR0124 - NaN: nothing came
                found[key] = max(seconds, found.get(key, 0.0))
    phases = record.seconds if real else {}
    return found | {
        name: seconds
        for name, seconds in phases.items()
        if not told.sites or name not in {TRAINING, UPLOADS}
    }


def _reason(kind: str, code: str) -> str:
    """Return a refusal's code; the words about an expelled member name it, and stay out."""
    return code.partition(" ")[0] if kind == "refused" else kind
