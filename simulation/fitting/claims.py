"""Whose devices are which cohort's: by a device's own cohort, a cohort's name, its site.

A device has a cohort of its own where that is named after its name in the runs and the first eight
digits of its id, as `umbel fleet fit` names them. Else its name is the cohort's, or the site of one
cohort alone; a description of one cohort has all. Of a site where devices have cohorts of their
own, a device that has none is passed over.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from .losses import Losses, losses
from ...protocol.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Collection

    from .observed import Observed
    from ..fleet.description import Description

_LONGEST = 46
"""Letters of a name that a device's cohort is named after."""


@dataclass(slots=True)
class Claim:
    """What of the runs is a cohort's."""

    names: list[str] = field(default_factory=list)
    """Of the runs; empty for the cohort of single devices."""
    nodes: list[str] = field(default_factory=list)

    def losses(self, observed: Observed) -> Losses:
        """Return what became of its devices."""
        if self.names:
            return losses(observed.lost(self.names))
        own = [observed.own[node] for node in self.nodes]
        asked, crashed, lost = (sum(c[k] for c in own) for k in ("asked", "crashed", "lost"))
        return Losses(asked, crashed, lost, 0, 0, None)


def claims(description: Description, observed: Observed) -> list[Claim]:
    """Return what is each cohort's.

    Raises:
        SettingsError: The runs have a name for which there is no cohort, or several.
    """
    found = [Claim() for _ in description.cohorts]
    place_of = {cohort.name: place for place, cohort in enumerate(description.cohorts)}
    for name in observed.names:
        nodes = observed.nodes([name])
        own = [node for node in nodes if single(name, node) in place_of]
        for node in own:
            found[place_of[single(name, node)]].nodes.append(node)
        if not own:
            claim = found[_place(description, word(name))]
            claim.names.append(name)
            claim.nodes += nodes
    return found


def _place(description: Description, name: str) -> int:
    """Return the one cohort of a name or a site."""
    cohorts = description.cohorts
    for those in (
        [place for place, cohort in enumerate(cohorts) if cohort.name == name],
        [place for place, cohort in enumerate(cohorts) if cohort.site == name],
        range(len(cohorts)),
    ):
        if len(those) == 1:
            return those[0]
        if those:
            break
    expected = f"one cohort of the name or the site {name!r}, as the runs have"
    got = ", ".join(f"{c.name} at {c.site or 'no site'}" for c in cohorts)
    move = "name it in `site`, or fit without this file"
    raise SettingsError(f"{description.path}: cohorts", expected, got, move)


def single(name: str, node: str) -> str:
    """Return what the cohort of one device is called."""
    return f"{word(name)[:_LONGEST]}-{node[:8]}"


def word(name: str, taken: Collection[str] = ()) -> str:
    """Return a name as fleet.toml may have it, none of those taken."""
    made = re.sub(r"[^A-Za-z0-9_-]", "-", name).lstrip("-_")[:55] or "clients"
    found, number = made, 2
    while found in taken:
        found, number = f"{made}-{number}", number + 1
    return found
