"""A fleet's description out of what runs showed, and how far they moved each of its numbers.

Who begins with a description keeps its cohorts (claims.py). Who begins with nothing gets a cohort
for each device where there are at most `FEW`, else one for each name.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .claims import claims, word
from .claims import single as single_name
from .hours import online
from .losses import DEVICE, HOURS, SAID, WEAK, WEAK_OUTAGE, Share, lasts, losses
from .moved import Moved
from .times import SAID as SAID_TIMES
from .times import WEAK as WEAK_TIMES
from .times import Belief, fitted, nig
from ..fleet.beta import LEAST
from ..fleet.counter import Purpose
from ..fleet.declared import Expect, Server, Site
from ..fleet.description import Cohort, Description
from ..fleet.distributions import Constant, LogNormal, Recorded
from ..fleet.profiles import Behaviour

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .claims import Claim
    from .losses import Losses
    from .observed import Observed
    from .times import Fitted
    from ..fleet.distributions import Distribution

FEW = 32
"""Devices, each of which is a cohort of its own."""
_DRAWN = 1000
_EACH = 10_000
"""Devices of a cohort that are written one by one."""
_UNKNOWN_LINE = 1e12
"""Bytes/s of a line about which ledgers say nothing: its time is in that of training."""
_LEAST_SPREAD = 0.05
_SERVER = WEAK_TIMES._replace(median=0.03, spread=0.5)


@dataclass(frozen=True, slots=True)
class Learned:
    """A fleet after some runs."""

    description: Description
    moved: tuple[Moved, ...]

    def measured(self, observed: Observed) -> dict[str, Any]:
        """Return what a plan says of the runs that it was told of; what moved most comes first."""
        told = [item for item in self.moved if item.factor]
        told.sort(key=lambda item: -abs(np.log(item.factor or 1.0)))
        return {
            "runs": list(observed.runs),
            "rounds": observed.rounds,
            "moved": [item.as_json() for item in told],
        }


def update(description: Description, observed: Observed) -> Learned:
    """Return what runs make of a description.

    Raises:
        SettingsError: The runs have a name that is none of its cohorts and sites.
    """
    moved: list[Moved] = []
    found = claims(description, observed)
    cohorts = [
        _updated(cohort, claim, observed, moved) if claim.nodes else cohort
        for cohort, claim in zip(description.cohorts, found, strict=True)
    ]
    of_site: dict[str, set[str]] = {}
    for cohort, claim in zip(description.cohorts, found, strict=True):
        if cohort.site:
            of_site.setdefault(cohort.site, set()).update(observed.home[n] for n in claim.nodes)
    sites = dict(description.sites)
    for site, names in of_site.items():
        if names:
            seen = losses(observed.lost(names))
            # A site of which the description says nothing has outages once one was seen.
            before = sites.get(site, None if seen.silent else Site())
            sites[site] = _site(site, before, seen, moved)
    after = replace(
        description,
        cohorts=tuple(cohorts),
        sites=sites,
        server=_server(description.server, observed, moved, said=True),
        expect=_expect(description.expect, observed, moved, said=True),
    )
    return Learned(after, tuple(moved))


def fit(observed: Observed) -> Learned:
    """Return the fleet that runs showed."""
    moved: list[Moved] = []
    names = [name for name in observed.names if observed.nodes([name])]
    everybody = _fitted(observed.nodes(names), observed, WEAK_TIMES)
    sites: dict[str, Site] = {}
    of: dict[str, str] = {}
    for name in names:
        of[name] = word(name, sites)
        sites[of[name]] = _site(of[name], None, losses(observed.lost([name])), moved)
    if len(everybody.medians) <= FEW:
        cohorts = _singles(of, everybody, observed, moved)
    else:
        # The names of one fleet are alike until they have shown otherwise.
        before = WEAK_TIMES
        if len(names) > 1:
            found = everybody.median, everybody.between, everybody.spread
            before = Belief(*found, *SAID_TIMES[3:])
        cohorts = [_cohort(name, of[name], before, observed, moved) for name in names]
    description = Description(
        path=Path("fleet.toml"),
        seed=None,
        cohorts=tuple(cohorts),
        digest="",
        sites=sites,
        server=_server(Server(), observed, moved, said=False),
        expect=_expect(Expect(), observed, moved, said=False),
    )
    return Learned(description, tuple(moved))


def _updated(cohort: Cohort, claim: Claim, observed: Observed, moved: list[Moved]) -> Cohort:
    """Return a cohort after what was seen of it."""
    nodes = claim.nodes
    samples, epochs, before, down = _thought(cohort, observed)
    after = _fitted(nodes, observed, before)
    work = samples * epochs
    # What getting the model takes is in what was seen, and the description has it beside.
    medians = np.maximum(after.medians - down, after.medians / 20)
    middle = max(after.median - down, after.median / 20)
    speed: Distribution = LogNormal(middle / work, after.between)
    if cohort.count is not None and len(nodes) <= cohort.count <= _EACH:
        more = middle * np.exp(after.between * _normals(cohort.count - len(nodes)))
        speed = Recorded(np.concatenate([medians, more]) / work)
    behaviour, found = cohort.behaviour, claim.losses(observed)
    thought = _Thought(before, Share(behaviour.dropout, SAID), Share(behaviour.crash, SAID))
    dropout, crash = _told(cohort.name, thought, after, len(nodes), found, moved)
    behaviour = replace(behaviour, jitter=0.0, spread=after.spread, dropout=dropout, crash=crash)
    return replace(
        cohort,
        samples=Constant(float(samples)),
        speed=speed,
        uplink=_uplink(nodes, observed),
        behaviour=behaviour,
    )


def _thought(cohort: Cohort, observed: Observed) -> tuple[int, int, Belief, float]:
    """Return samples, epochs, what a description thinks of seconds to be ready, those of down."""
    numbers = np.arange(_DRAWN, dtype=np.uint64)
    _, epochs = observed.work
    samples = np.floor(cohort.samples.draw(0, Purpose.SAMPLES, numbers))
    speeds = cohort.speed.draw(0, Purpose.SPEED, numbers)
    lines = cohort.downlink.draw(0, Purpose.BANDWIDTH, numbers)
    downs = observed.bytes_down / lines
    y = np.log(np.maximum(downs + epochs * samples * speeds, 1e-6))
    behaviour = cohort.behaviour
    spread = behaviour.spread or behaviour.jitter / np.sqrt(3)
    belief = SAID_TIMES._replace(
        median=float(np.exp(y.mean())),
        between=max(float(y.std()), _LEAST_SPREAD),
        spread=max(float(spread), _LEAST_SPREAD),
    )
    return max(1, int(np.median(samples))), epochs, belief, float(np.median(downs))


def _cohort(name: str, site: str, before: Belief, observed: Observed, moved: list[Moved]) -> Cohort:
    """Return the cohort of the devices of a name, their times one by one."""
    nodes, found = observed.nodes([name]), losses(observed.lost([name]))
    after = _fitted(nodes, observed, before)
    thought = _Thought(before, WEAK, WEAK)
    dropout, crash = _told(site, thought, after, len(nodes), found, moved)
    samples, epochs = observed.work
    speeds = after.medians / (samples * epochs)
    speed: Distribution = Recorded(speeds)
    if len(nodes) > _EACH:
        speed = LogNormal(after.median / (samples * epochs), after.between)
    return replace(
        _blank(site, site, observed),
        count=len(nodes),
        speed=speed,
        uplink=_uplink(nodes, observed),
        behaviour=Behaviour(
            name=site, site=site, spread=after.spread, dropout=dropout, crash=crash
        ),
    )


def _singles(
    of: Mapping[str, str], after: Fitted, observed: Observed, moved: list[Moved]
) -> list[Cohort]:
    """Return a cohort for each device.

    Args:
        of: The site of each name.
        after: What all devices together have shown.
        observed: The runs.
        moved: Takes how far each number moved.
    """
    found = losses(observed.lost(of))
    thought, nodes = _Thought(WEAK_TIMES, WEAK, WEAK), observed.nodes(of)
    dropout, crash = _told("devices", thought, after, len(nodes), found, moved)
    samples, epochs = observed.work
    speeds = after.medians / (samples * epochs)
    made: dict[str, Cohort] = {}
    for node, speed, spread in zip(nodes, speeds, after.spreads, strict=True):
        own, site = observed.own[node], of[observed.home[node]]
        name = word(single_name(site, node), made)
        behaviour = Behaviour(
            name=name,
            site=site,
            spread=float(spread),
            dropout=Share(dropout, DEVICE).after(own["lost"], own["asked"] - own["crashed"]),
            crash=Share(crash, DEVICE).after(own["crashed"], own["asked"]),
        )
        made[name] = replace(
            _blank(name, site, observed),
            speed=Constant(float(speed)),
            uplink=Constant(_rate(node, observed)),
            behaviour=behaviour,
        )
    return list(made.values())


class _Thought(NamedTuple):
    """What was thought of a cohort."""

    times: Belief
    dropout: Share
    crash: Share


def _told(
    where: str, thought: _Thought, after: Fitted, nodes: int, found: Losses, moved: list[Moved]
) -> tuple[float, float]:
    """Return dropout and crash after what was seen, and say how far each number moved."""
    before, seen = thought.times, after.observations
    dropout = thought.dropout.after(found.lost, found.asked - found.crashed)
    crash = thought.crash.after(found.crashed, found.asked)
    median = None if before.weight == WEAK_TIMES.weight else before.median
    rows: tuple[tuple[str, float | None, float, int, float, str], ...] = (
        ("median seconds to be ready", median, after.median, seen, before.weight, "devices"),
        ("spread of devices", before.between, after.between, nodes, before.devices, "devices"),
        ("spread of rounds", before.spread, after.spread, seen, before.degrees, "rounds"),
        ("dropout", thought.dropout.mean, dropout, found.asked, thought.dropout.weight, "clients"),
        ("crash", thought.crash.mean, crash, found.asked, thought.crash.weight, "clients"),
    )
    moved += [Moved(f"{where}: {row[0]}", *row[1:]) for row in rows]
    return dropout, crash


def _blank(name: str, site: str, observed: Observed) -> Cohort:
    window = online(observed.there)
    return Cohort(
        name=name,
        count=1,
        share=None,
        site=site,
        samples=Constant(float(observed.work[0])),
        speed=Constant(0.0),
        downlink=Constant(_UNKNOWN_LINE),
        uplink=None,
        hours=None if window is None else Constant(window.hours),
        begins=Constant(0.0 if window is None else window.begins),
        behaviour=Behaviour(),
    )


def _fitted(nodes: Sequence[str], observed: Observed, before: Belief) -> Fitted:
    took = [observed.took.get(node, []) for node in nodes]
    return fitted(took, [observed.bounds(node) for node in nodes], before)


def _rate(node: str, observed: Observed) -> float:
    """Return the bytes/s with which a device sends."""
    return float(np.clip(observed.bytes_up / observed.sends(node), 1.0, _UNKNOWN_LINE))


def _uplink(nodes: Sequence[str], observed: Observed) -> Distribution:
    rates = np.array([_rate(node, observed) for node in nodes] or [_UNKNOWN_LINE])
    if len(rates) <= _EACH:
        return Recorded(rates)
    logs = np.log(rates)
    return LogNormal(float(np.exp(logs.mean())), float(logs.std()))


def _normals(count: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return that many values of a normal distribution, evenly."""
    u = (np.arange(count) + 0.5) / max(count, 1)
    grid = np.linspace(-6, 6, 4001)
    cdf = np.cumsum(np.exp(-(grid**2) / 2))
    return np.interp(u, (cdf - cdf[0] / 2) / cdf[-1], grid)


def _site(name: str, before: Site | None, found: Losses, moved: list[Moved]) -> Site:
    """Return what happens at a site, after what was seen."""
    thought = WEAK_OUTAGE if before is None else Share(before.outage, SAID)
    outage = thought.after(found.silent, found.hours)
    said = 0.0 if before is None else before.correlation
    together = said
    if found.correlation is not None:
        hours = found.hours - found.silent
        together = (HOURS * said + hours * found.correlation) / (HOURS + hours)
    last = 1.0 if before is None else before.outage_hours
    length = lasts(last, outage, found, thought.weight)
    moved += [
        Moved(f"{name}: outage", thought.mean, outage, found.hours, thought.weight, "hours"),
        Moved(f"{name}: correlation of losses", said, together, found.hours, HOURS, "hours"),
    ]
    if length != last or last > 1.0:
        what, weight = f"{name}: hours of an outage", thought.weight
        moved.append(Moved(what, last, length, found.followed, weight, "hours"))
    tied = together if together >= LEAST else 0.0
    return Site(outage=outage, outage_hours=length, correlation=tied)


def _server(before: Server, observed: Observed, moved: list[Moved], *, said: bool) -> Server:
    """Return the server's own part, after the rounds of sessions."""
    if observed.simulated:
        return before
    thought = _SERVER
    if said and before.overhead:
        spread = max(before.spread, _LEAST_SPREAD)
        thought = SAID_TIMES._replace(median=before.overhead, spread=spread)
    median, spread = nig(observed.overheads, thought)
    rounds = len(observed.clean)
    moved += [
        Moved("server: own seconds", before.overhead, median, rounds, thought.weight, "rounds"),
        Moved("server: spread", before.spread, spread, rounds, thought.degrees, "rounds"),
    ]
    return replace(before, overhead=median, spread=spread)


def _expect(before: Expect, observed: Observed, moved: list[Moved], *, said: bool) -> Expect:
    thought = Share(before.refused, SAID) if said else Share(0.001, 1.0)
    refused = thought.after(observed.refused, observed.updates)
    seen, weight = observed.updates, thought.weight
    moved.append(Moved("updates refused", thought.mean, refused, seen, weight, "updates"))
    return replace(before, refused=min(1.0, refused))
