"""The likeliest cause of what a watched run did, in words: a round's parts beside their own past.

Whoever reads an item for review wants a name first: the phase of the round that grew, the site or
cohort that stayed away. Words only; nothing is decided here.
"""

from __future__ import annotations

from collections import defaultdict, deque
from statistics import median
from typing import TYPE_CHECKING

from .deadlines import TRAINING, UPLOADS

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from .watch_terms import Group, Seen

KEPT = 50
"""Rounds that the past is made of."""
_LEAST = 3
"""Rounds without which there is no past."""
_WORDS = {TRAINING: "local training", UPLOADS: "the uploads", "sharing": "the trip of the shares"}
_FALL = 0.1
"""By which share fewer of those asked were used, for a site or cohort to be named."""


class Past:
    """What the rounds before were."""

    def __init__(self) -> None:
        """Know of none."""
        self._parts: dict[str, deque[float]] = defaultdict(lambda: deque(maxlen=KEPT))
        self._groups: dict[tuple[str, str], deque[Group]] = defaultdict(lambda: deque(maxlen=KEPT))

    def learn(self, seen: Seen, without: Collection[str]) -> None:
        """Take a round that is over, but the sites that stayed away in it."""
        for name, seconds in seen.parts.items():
            self._parts[name].append(seconds)
        for kind, groups in _kinds(seen):
            for name, group in groups.items():
                if kind != "site" or name not in without:
                    self._groups[kind, name].append(group)

    def share(self, kind: str, name: str) -> float | None:
        """Return which share of a group's asked were used; None where there is no past."""
        past = self._groups.get((kind, name), ())
        asked = sum(group.asked for group in past)
        return sum(g.used for g in past) / asked if len(past) >= _LEAST and asked else None

    def of_time(self, seen: Seen, *, longer: bool) -> str:
        """Return why a round took long, or was short."""
        grown = {
            name: (seconds - median(self._parts[name])) * (1 if longer else -1)
            for name, seconds in seen.parts.items()
            if len(self._parts[name]) >= _LEAST
        }
        if grown and grown[part := max(grown, key=grown.__getitem__)] > 0:
            now, before = seen.parts[part], median(self._parts[part])
            phase, at, where = part.partition(" at ")
            said = f"{_WORDS.get(phase, phase)}{at}{where}"
            return f"{said} took {now:.3g} s, before {before:.3g} s"
        return self.of_groups(seen) or "no part of the round stands out"

    def of_groups(self, seen: Seen) -> str:
        """Return which site or cohort stayed away more than before; empty where none did."""
        falls: dict[tuple[str, str, Group], float] = {}
        for kind, groups in _kinds(seen):
            for name, group in groups.items():
                before = self.share(kind, name)
                if before is not None and group.asked:
                    falls[kind, name, group] = before - group.used / group.asked
        if not falls:
            return ""
        kind, name, group = max(falls, key=falls.__getitem__)
        return self.of_group(kind, name, group) if falls[kind, name, group] >= _FALL else ""

    def of_group(self, kind: str, name: str, group: Group) -> str:
        """Return what a group did beside what it did before."""
        before = self.share(kind, name)
        past = "" if before is None else f", before {before:.0%}"
        return f"{kind} {name}: {group.used} updates of {group.asked} that were asked{past}"


def of_refusals(seen: Seen) -> str:
    """Return why updates were refused, and where the most were."""
    codes = ", ".join(f"{n} x {code}" for code, n in _most(seen.refused))
    if not seen.refused_at:
        return codes
    site, count = _most(seen.refused_at)[0]
    kind = "of cohort" if seen.cohorts else "at site"  # simulated devices are known by cohorts
    return f"{codes}; {count} of {sum(seen.refused_at.values())} {kind} {site}"


def _most(counts: Mapping[str, int]) -> list[tuple[str, int]]:
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))


def _kinds(seen: Seen) -> tuple[tuple[str, Mapping[str, Group]], ...]:
    return ("site", seen.sites), ("cohort", seen.cohorts)
