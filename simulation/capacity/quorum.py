"""How sure a quorum is, what independence would claim, and what to do about the difference.

Devices of one site are lost together, so a count has a heavier tail than that of devices which are
as sure one by one. Where a site is cut off in more hours than may fail, and the others are too few
for the quorum, no number of clients helps. What does is one of three things, each found exactly:

* a quorum that is smaller: the largest that all devices together reach as often as wanted;
* the same devices at more places, that do not share their hours;
* an outage that is rarer: with all asked, the odds are linear in how often one site is cut off.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from .losses import Losses, first

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .losses import Group
    from ..fleet.declared import Site

_MOST_PLACES = 64
_MOST_SITES = 1000
_MOST_NAMED = 3
_SUSPECTS = 8
"""Sites that are tried without their outages: those in whose outages most is lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quorum:
    """The odds of one try of a round."""

    needed: int
    """Updates."""
    asked: int
    clients: int
    """That could be asked."""
    certainty: float
    """That is wanted."""
    miss: float
    """How likely fewer arrive than are needed."""
    independent: float
    """The same of devices that are as sure one by one, but independent of each other."""
    invite: int | None
    """The fewest to ask for the certainty; None: all are too few."""
    invite_independent: int | None
    least: float
    """How likely fewer arrive than are needed if all clients are asked."""
    shared: str
    """What devices have in common, in words; empty: nothing."""
    remedy: Remedy | None
    """Where no invitation reaches the certainty."""

    @property
    def line(self) -> str:
        """Return it in a sentence."""
        return _line(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """What would reach the certainty; None and 0: not that."""

    quorum: int
    """The largest, with all clients asked."""
    places: int | None = None
    """At how many places each site's devices would have to be."""
    invite: int | None = None
    """The fewest to ask then."""
    site: str = ""
    """Whose outages alone would have to be rarer."""
    outage: float | None = None
    """Share of hours, at most."""


def quorum(
    groups: Sequence[Group],
    sites: Mapping[str, Site],
    *,
    needed: int,
    asked: int,
    certainty: float,
) -> Quorum:
    """Return how sure a quorum is.

    Args:
        groups: Devices that may be asked.
        sites: What happens to all devices of a site.
        needed: Updates without which a try has no result.
        asked: Clients; all, where there are fewer.
        certainty: How often the quorum is to be reached, in (0, 1).
    """
    losses = Losses(groups, sites)
    apart = losses.apart()
    n = min(asked, losses.size)
    invite = losses.invite(needed, certainty)
    return Quorum(
        needed=needed,
        asked=n,
        clients=losses.size,
        certainty=certainty,
        miss=losses.miss(n, needed),
        independent=apart.miss(n, needed),
        invite=invite,
        invite_independent=apart.invite(needed, certainty),
        least=losses.miss(losses.size, needed),
        shared=_shared(losses),
        remedy=None if invite is not None else _remedy(losses, needed, certainty),
    )


def _remedy(losses: Losses, needed: int, certainty: float) -> Remedy:
    """Return what would reach a certainty that no invitation reaches."""
    site, outage = _rarer(losses, needed, certainty)
    found = Remedy(quorum=losses.largest(needed, certainty), site=site, outage=outage)
    if losses.apart().invite(needed, certainty) is None:
        return found  # more places come close to independence, and that is not enough
    most = min(_MOST_PLACES, _MOST_SITES // max(1, len(losses.sites)))
    places = first(lambda k: losses.spread(k).sure(needed, certainty), 2, most)
    if places is None:
        return found
    invite = losses.spread(places).invite(needed, certainty)
    return replace(found, places=places, invite=invite)


def _rarer(losses: Losses, needed: int, certainty: float) -> tuple[str, float | None]:
    """Return the site that stands in the way alone, and how often it might be cut off."""
    size: dict[str, int] = {}
    for group in losses.groups:
        size[group.site] = size.get(group.site, 0) + group.size
    cut = {name: site.outage for name, site in losses.sites.items() if name in size}
    suspects = sorted(cut, key=lambda name: -cut[name] * size[name])[:_SUSPECTS]
    best: tuple[str, float | None] = "", None
    for name in suspects:
        never, always = (_missed_by_all(losses, name, outage, needed) for outage in (0.0, 1.0))
        if never <= 1.0 - certainty and never < always:
            allowed = (1.0 - certainty - never) / (always - never)
            if best[1] is None or allowed / cut[name] > best[1] / cut[best[0]]:
                best = name, allowed
    return best


def _missed_by_all(losses: Losses, name: str, outage: float, needed: int) -> float:
    """Return how likely all devices miss the quorum, if a site is cut off that often."""
    site = replace(losses.sites[name], outage=outage)
    changed = Losses(losses.groups, {**losses.sites, name: site})
    return changed.miss(changed.size, needed)


def _shared(losses: Losses) -> str:
    """Return in words what devices have in common."""
    there = {group.site for group in losses.groups}
    cut = [name for name, site in losses.sites.items() if name in there and site.outage]
    tied = any(site.correlation for name, site in losses.sites.items() if name in there)
    said = []
    if cut:
        named = "site " if len(cut) == 1 else "sites "
        many = len(cut) > _MOST_NAMED
        said.append(f"outages of {f'{len(cut)} sites' if many else named + _listed(cut)}")
    if tied:
        said.append("losses that go together")
    return " and ".join(said)


def _line(q: Quorum) -> str:
    """Return the odds in a sentence."""
    wanted = f"{100 * q.certainty:g} %"
    what = f"{q.needed} of {q.asked} asked"
    head, claims = f"{what} deliver with probability {percent(1.0 - q.miss)}", ""
    if q.shared:
        head = f"independence would claim {percent(1.0 - q.independent)} for {what}; with "
        head += f"{q.shared} it is {percent(1.0 - q.miss)}"
        if q.invite_independent is not None and q.invite_independent != q.invite:
            claims = f" (independence would say {q.invite_independent})"
    if q.invite is None:
        most = f"{percent(1.0 - q.least)} with all {q.clients}"
        return f"{head}: no number of clients reaches {wanted}, {most}{_would(q.remedy)}"
    if q.invite > q.asked:
        return f"{head}: ask {q.invite} in place of {q.asked} for {wanted}{claims}"
    if q.invite < q.asked:
        return f"{head}: {q.invite} would do for {wanted}{claims}"
    return f"{head}: just enough for {wanted}{claims}"


def _would(remedy: Remedy | None) -> str:
    """Return what would reach the certainty, as the end of a sentence."""
    ways = []
    if remedy and remedy.places is not None:
        ways.append(f"each site's clients spread over {remedy.places} sites (ask {remedy.invite})")
    if remedy and remedy.outage is not None:
        hours = f"{math.floor(1e4 * remedy.outage) / 100:g} %"
        ways.append(f"outages of site {remedy.site} in at most {hours} of its hours")
    if remedy and remedy.quorum:
        ways.append(f"a quorum of {remedy.quorum}")
    return f"; {_listed(ways, 'or')} would" if ways else "; more or surer clients would"


def _listed(words: Sequence[str], last: str = "and") -> str:
    """Return words as a list in a sentence."""
    if len(words) == 1:
        return words[0]
    return f"{', '.join(words[:-1])} {last} {words[-1]}"


def percent(share: float) -> str:
    """Return a share in percent, with two digits of what is missing to 0 or to 100."""
    least = min(share, 1.0 - share)
    if least < 1e-9:  # noqa: PLR2004
        return "0 %" if share < 0.5 else "100 %"  # noqa: PLR2004
    digits = min(max(1, -math.floor(math.log10(least)) - 1), 8)
    return f"{100 * share:.{digits}f} %"
