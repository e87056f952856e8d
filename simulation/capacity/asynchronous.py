"""The plan of an asynchronous run: what is said of it, and in place of what makes no sense there.

A version takes the updates that come first, so there is no quorum, nobody to ask for one, and no
last update that a round waits for; each line says so. A deadline only gives up who is at work for
longer. What takes their place is how old updates are, and whose they are.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from .band import expectation
from .buffers import IN_VAIN
from .checks import checked
from .facts import Effort, Rules, facts
from .flow import flow
from .memory import server_memory
from .parts import asked, rounds_of, server
from .sensitivity import Looked, effect, of_prices
from .variants import variants
from .words import change, money, seconds, share

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from .facts import Facts
    from .flow import Flow
    from .job import Job
    from .parts import Question
    from .sensitivity import Effect
    from ..fleet.description import Description

_FIRST = 0.4
"""Of the work: the run itself."""
_GLANCE = 30_000
"""Launches of a variant."""
_LEAST_ROUNDS = 20
_OFTEN = 0.05
_LITTLE = 0.5
"""Of a fresh update: what counts less is worth a word."""
_RARELY = 0.05
"""Of the updates: what the slowest tenth brings, where it is half of its share."""
_WORTH_A_WORD = 0.005
_DEAR = 0.5
_BESIDE = 0.1


def asynchronous(question: Question, say: Callable[[float], None]) -> dict[str, Any]:
    """Return the content of a plan's file.

    Args:
        question: What is planned.
        say: Told which share is done, 0 to 1.

    Raises:
        SettingsError: The fleet and the settings do not fit.
    """
    description, subject = question.description, question.subject
    job, run = subject.job, subject.run
    found = flow(description, job, question.seed, lambda done: say(_FIRST * done))
    expected = found.expected
    rules = Rules(graph=None, robust=run.rule.robust)
    told = facts(description, job, Effort.expected(expected), rules)
    memory = server_memory(subject.layout, run.rule, job.buffer, None)
    effects = _effects(question, rules, told, lambda done: say(_FIRST + (1 - _FIRST) * done))
    first, *then = _changes(description, job, found, told, effects)
    return {
        **asked(question),
        **rounds_of(expected, job.clients),
        "secure": None,
        "asynchronous": {**found.described(job), "lines": list(_lines(job, found))},
        "quorum": _quorum(question, job, found),
        "deadline": {"set": job.deadline, "suggested": None, "line": _deadline(job, found)},
        **told.costs.described(job.rounds, description.prices.currency),
        "bottleneck": {
            "cohort": "", "part": "", "share": 0.0, "shares": [],
            "line": "no version waits for anybody: the updates that come first are taken",
        },
        "sensitivity": [one.described() for one in effects],
        "first": first,
        "then": then,
        "server": server(question, memory, told),
        "expect": expectation(description, list(found.by_hour), expected),
        "lines": [
            *checked(description, job, expected, memory),
            *_overhead(description, found),
            *told.ranks.lines,
        ],
    }  # fmt: skip


def _lines(job: Job, found: Flow) -> Iterator[str]:
    """Yield how old updates are, and whose."""
    stale = found.described(job)["staleness"]
    yield (
        f"{stale['mean']:.2g} versions on average, at most {stale['p50']} in half of the updates, "
        f"{stale['p90']} in 90 % and {stale['p99']} in 99 %; by `{job.staleness}` they count "
        f"{share(found.factor)} of a fresh one"
    )
    whose = [
        f"{took.cohort} {share(float(part))} and is {share(took.share)} of the devices"
        for took, part in zip(found.expected.clients, found.used, strict=True)
    ]
    tenths = (
        f"the fastest tenth of the devices brings {share(found.fastest)}, the slowest "
        f"{share(found.slowest)}"
    )
    yield "; ".join([*whose, tenths] if len(whose) > 1 else [tenths])


def _quorum(question: Question, job: Job, found: Flow) -> dict[str, Any]:
    line = "none: a version takes the first updates that come, and nobody is asked in vain for one"
    if found.expected.miss:
        most = IN_VAIN * (job.buffer + job.cohort)
        line += (
            f"; {share(found.expected.miss)} of the buffers are given up, as they do not fill "
            f"within {most:,} launches"
        )
    return {
        "needed": job.buffer,
        "wanted": job.buffer,
        "miss": found.expected.miss,
        "independent": None,
        "run_lost": found.expected.run_lost,
        "invite": None,
        "invite_independent": None,
        "certainty": question.certainty,
        "line": line,
        "by_asked": [],
    }


def _late(found: Flow) -> float:
    """Return the share of those asked who are given up at the deadline."""
    clients = found.expected.clients
    return sum(took.late for took in clients) / max(sum(took.asked for took in clients), 1e-300)


def _deadline(job: Job, found: Flow) -> str:
    if not (late := _late(found)):
        return f"{seconds(job.deadline)} set; nobody is at work for so long"
    return f"{seconds(job.deadline)} set; {share(late)} of those who are asked are given up then"


def _overhead(description: Description, found: Flow) -> Iterator[str]:
    own, usual = description.server.overhead, found.expected.seconds.at(0.5)
    if own > _BESIDE * usual:
        yield (
            f"the server's own part, {seconds(own)}, is {share(min(1.0, own / usual))} of the time "
            "between versions, or more; these times take it to go on beside"
        )


def _effects(
    question: Question, rules: Rules, told: Facts, say: Callable[[float], None]
) -> list[Effect]:
    """Return the effect of each assumption, the largest first."""
    description, job = question.description, question.subject.job

    def look(fleet: Description, of: Job) -> Looked:
        rounds = min(of.rounds, max(_LEAST_ROUNDS, round(_GLANCE / (2 * of.buffer))))
        some = replace(of, rounds=rounds)
        expected = flow(fleet, some, question.seed, work=_GLANCE).expected
        effort = Effort.expected(expected)
        return Looked(
            seconds=expected.seconds.at(0.9),
            run=effort.run,
            miss=expected.miss,
            money=facts(fleet, some, effort, rules).costs.money,
        )

    before, found = look(description, job), list(of_prices(told.costs))
    listed = list(variants(description, job, scarce=False))
    for place, variant in enumerate(listed):
        found.append(effect(variant, before, look(variant.description, variant.job)))
        say((place + 1) / len(listed))
    return sorted(found, key=lambda one: (-one.size, one.name))


def _changes(
    description: Description, job: Job, found: Flow, told: Facts, effects: list[Effect]
) -> list[str]:
    """Return what to change, each with why, what matters most first; at least one."""
    said, expected = [], found.expected
    if expected.run_lost > _OFTEN:
        said.append(
            f"raise attempts, or enrol devices that lose less: {share(expected.run_lost)} of such "
            "runs end in a buffer that does not fill"
        )
    if (late := _late(found)) > _OFTEN:
        said.append(f"raise the deadline: {share(late)} of those at work are given up at it")
    if found.factor < _LITTLE and job.cohort > job.buffer:
        said.append(
            f"put fewer than {job.cohort:,} to work, or fill a buffer with more than "
            f"{job.buffer:,}: an update counts {share(found.factor)} of a fresh one"
        )
    if found.slowest < _RARELY:
        said.append(
            f"train less on slow devices, or ask them for longer: the slowest tenth brings "
            f"{share(found.slowest)} of the updates"
        )
    said.append(_slow(description, told, effects))
    return said


def _slow(description: Description, told: Facts, effects: list[Effect]) -> str:
    """Return what makes the run slow or dear."""
    said, paid = [], told.costs
    timed = [one for one in effects if not math.isnan(one.total_p50)]
    slower = max(timed, key=lambda one: one.total_p50, default=None)
    if slower is not None and slower.total_p50 > _WORTH_A_WORD:
        longer = change(slower.total_p50).removeprefix("+")
        said.append(f"with {slower.name} at {slower.change} the run is {longer} longer")
    part, most = max(paid.parts.items(), key=lambda item: item[1])
    if paid.money >= 1.0 and most > _DEAR * paid.money:
        whole = money(paid.money, description.prices.currency)
        said.append(f"{part} is {share(most / paid.money)} of {whole}")
    return "; ".join(said) or "nothing stands out: no assumption makes the run longer by itself"
