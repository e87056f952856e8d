"""What to do about it: the deadline that would do, what closes the rounds, what to change first.

deadline    the least before which the cohort is full as surely as is asked for; where it never
            is, because too many are lost, the same for as many as most rounds get
changes     what may end the run, before what rounds wait for in vain, before what makes some of
            them fail, before what makes them slow or dear
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from .chances import dropout_for
from .expected import DEADLINE
from .words import change, money, seconds, share
from ...server.deadlines import LEASE_S

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .chances import Chances
    from .costs import Costs
    from .expected import Closer, Expected
    from .glance import Stand
    from .job import Job
    from .sensitivity import Effect

_WORK = 4.0
"""Times as many tries as a glance has."""
_BY_ITSELF = 0.99
"""Of the longest deadline: what is closed before is closed by an update."""
_MOSTLY = 0.5
_OFTEN_LOST = 0.05
_MANY = 0.2
_OFTEN = 0.05
"""Of the rounds: what so many wait for is worth a word."""
_MUCH = 0.8
_FEW = 0.3
"""Of the updates: who brings fewer can be left out."""
_DEAR = 0.5
_WORTH_A_WORD = 0.005
"""By which share a run is longer."""
_PARTS = {"down": "download of the model", "train": "training", "up": "upload"}
_REMEDIES = {
    "down": "send {} a smaller model, or over a faster line",
    "train": "train less on {}",
    "up": "let {} send less, or over a faster line",
}


class Deadline(NamedTuple):
    """The one that is set, and the one that would do."""

    set: float
    suggested: float | None
    line: str


def deadline(at: Stand, job: Job, chances: Chances) -> Deadline:
    """Return the deadline that would do.

    Args:
        at: From where to look at the run.
        job: What is asked of the fleet.
        chances: The odds of a round.
    """
    overhead, certainty = at.description.server.overhead, chances.quorum.certainty
    come = max(job.quorum, min(job.cohort, chances.usual))
    kinds = ((job.cohort, "whole cohort"), (come, f"{come:,} updates that come"))
    for wanted, what in kinds if at.ever else ():
        patient = replace(at.job, cohort=wanted, deadline=float(LEASE_S), attempts=1)
        found = at.look(job=patient, work=_WORK).seconds
        reached = found.share(_BY_ITSELF * LEASE_S)
        if reached < _MOSTLY:
            continue
        suggested = _rounded(found.at(certainty * reached) - overhead)
        line = (
            f"{seconds(job.deadline)} set; {seconds(suggested)} is enough for the {what} in "
            f"{share(certainty)} of the rounds"
        )
        if reached < certainty:
            line += f" in which so many come at all, {share(reached)}"
        return Deadline(job.deadline, suggested, line)
    line = f"{seconds(job.deadline)} set; none is enough for {come:,} updates in half of the rounds"
    return Deadline(job.deadline, None, line)


def _rounded(value: float) -> float:
    """Return a number of two digits, not below the value."""
    if value <= 0.0:  # a server whose own part varies more than rounds last
        return 1.0
    step = 10.0 ** (math.floor(math.log10(value)) - 1)
    return math.ceil(value / step - 1e-9) * step


class Bottleneck(NamedTuple):
    """What most often closes a round."""

    cohort: str
    part: str
    share: float
    line: str


def bottleneck(expected: Expected) -> Bottleneck:
    """Return it, in a sentence."""
    if not expected.closers:
        return Bottleneck("", "", 0.0, "no round is closed by an update")
    first: Closer = expected.closers[0]
    if first.part == DEADLINE:
        line = (
            f"the deadline closes {share(first.share)} of the rounds: updates are missing by then"
        )
        return Bottleneck(first.cohort, first.part, first.share, line)
    line = (
        f"the {_PARTS[first.part]} of {first.cohort} is what {share(first.share)} of the rounds "
        "wait for last"
    )
    return Bottleneck(first.cohort, first.part, first.share, line)


class Found(NamedTuple):
    """All that the first thing to change is chosen from."""

    job: Job
    expected: Expected
    costs: Costs
    chances: Chances
    deadline: Deadline
    bottleneck: Bottleneck
    masks: Mapping[str, Any] | None
    """What secure.py says; None in a plain run."""
    effects: Sequence[Effect]
    currency: str
    fewest: int
    """Members that a round must have: min-survivors below that change nothing."""


def changes(found: Found) -> list[str]:
    """Return what to change, each with why, what matters most first; at least one."""
    failing, waiting = _failing(found), _waiting(found)
    few = (_absent(found), waiting)
    ranked = (failing, *few) if _at_risk(found) else (*few, failing)
    said = [line for line in ranked if line]
    if found.bottleneck.part in _REMEDIES or not said:
        said.append(_slow(found))
    return said


def _at_risk(found: Found) -> bool:
    """Say whether the run may well end without a result: else a lost round is only tried again."""
    return found.expected.run_lost > _OFTEN_LOST or found.chances.miss > _MANY


def _failing(found: Found) -> str:
    """Return what makes rounds fail, or nothing."""
    job, certainty = found.job, found.chances.quorum.certainty
    if not found.chances.sure:
        return _missing(found)
    if found.masks is not None and found.masks["void"] > 1.0 - certainty:
        return _void(found.masks, job.attempts)
    lost = found.expected.run_lost
    if lost > _OFTEN_LOST and job.attempts == 1:
        return f"set attempts to 3: {share(lost)} of such runs end in a round that fails once"
    return ""


def _void(masks: Mapping[str, Any], attempts: int) -> str:
    """Return what to do about sums that are void by losses."""
    why = f"{share(masks['void'])} of the secure sums are void, for more than {masks['d']} are lost"
    if attempts == 1 and masks["void"] < _MANY:
        return f"set attempts to 3: {why}, and a run ends in a round that fails once"
    if masks["suited"] is not None:
        return f"set delta to {masks['suited']:g} in place of {masks['delta']:g}: {why}"
    return f"ask devices that lose less, or lower alpha: {why}, and no delta bears it"


def _missing(found: Found) -> str:
    """Return what to do about rounds below their quorum."""
    job, quorum, suggested = found.job, found.chances.quorum, found.deadline.suggested
    why = f"{share(found.chances.below)} of the rounds have fewer than {job.quorum:,} updates"
    if suggested is not None and suggested > job.deadline:
        return f"raise the deadline to {seconds(suggested)}: {why}"
    if quorum.invite is not None and quorum.invite > job.invited:
        return f"ask {_asking(job, quorum.invite)}: {why}"
    if quorum.invite is None and quorum.clients >= job.quorum:
        return _never_sure(found, why)
    most = max(hour.online for hour in found.expected.by_hour)
    return f"enrol more, or lower min-survivors: {why}, for {most:,.0f} are online at the most"


def _never_sure(found: Found, why: str) -> str:
    """Return what to do where asking all of them would not do."""
    comes, remedy = found.chances.comes, found.chances.quorum.remedy
    if comes >= found.fewest:
        return f"lower min-survivors to {comes}: {why}, and asking more is no help"
    if remedy is not None and remedy.places is not None:
        return f"spread each site's devices over {remedy.places} sites: {why}, lost together"
    if remedy is not None and remedy.outage is not None:
        hours = share(remedy.outage)
        return f"see that site {remedy.site} is cut off in at most {hours} of its hours: {why}"
    return f"enrol surer devices: {why}, and no number of these has as many often enough"


def _absent(found: Found) -> str:
    """Return what to do about a run most of which passes before enough are online, or nothing."""
    wait, length = found.expected.wait.mean, found.expected.seconds.mean
    if wait <= _MOSTLY * (wait + length):
        return ""
    fullest = max(found.expected.by_hour, key=lambda hour: hour.online)
    return (
        f"begin when devices are there, as in hour {fullest.hour}, or enrol some of other hours: "
        f"{share(wait / (wait + length))} of the run passes until {found.job.quorum:,} are online"
    )


def _waiting(found: Found) -> str:
    """Return what makes rounds wait for updates that do not come, or nothing."""
    job, suggested = found.job, found.deadline.suggested
    waits = sum(c.share for c in found.expected.closers if c.part == DEADLINE)
    if waits < _OFTEN:
        return ""
    why = f"{share(waits)} of the rounds wait for their deadline"
    if (asked := found.chances.cohort.invite) is not None and asked > job.invited:
        return f"ask {_asking(job, asked)}: {why}"
    if suggested is not None and suggested < _MUCH * job.deadline:
        return f"lower the deadline to {seconds(suggested)}: {why}, and later ones do not come"
    if (come := found.chances.comes) < max(job.quorum, 1):
        return f"enrol surer devices: {why}, and no number of these is there often enough"
    way = f"-c cohort={come} {_by_setting(come, job.invited)}"
    return f"lower cohort to {come:,}, and ask {job.invited:,} all the same ({way}): {why}"


def _asking(job: Job, asked: int) -> str:
    """Return how many to ask, and by which setting."""
    return f"{asked:,} and not {job.invited:,} ({_by_setting(job.cohort, asked)})"


def _by_setting(cohort: int, asked: int) -> str:
    """Return the setting by which a run of this cohort asks so many."""
    return f"-c dropout={dropout_for(cohort, asked):g}"


def _slow(found: Found) -> str:
    """Return what makes rounds slow or dear."""
    neck, said = found.bottleneck, found.bottleneck.line
    if neck.part in _REMEDIES:
        said = f"{_REMEDIES[neck.part].format(neck.cohort)}: {share(neck.share)} of the rounds wait"
        used = {took.cohort: took.used for took in found.expected.clients}
        if used[neck.cohort] < _FEW * sum(used.values()):
            said = said.replace(":", ", or leave it out:", 1)
    slower = next((e for e in found.effects if e.total_p50 > _WORTH_A_WORD), None)
    if slower is not None:
        longer = change(slower.total_p50).removeprefix("+")
        said += f"; with {slower.name} at {slower.change} the run is {longer} longer"
    paid = found.costs
    part, most = max(paid.parts.items(), key=lambda item: item[1])
    if paid.money >= 1.0 and most > _DEAR * paid.money:
        said += f"; {part} is {share(most / paid.money)} of {money(paid.money, found.currency)}"
    return said
