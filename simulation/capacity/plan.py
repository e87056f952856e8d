"""A plan: everything about a run that is known before it, as one object (plan_file.py).

    subject.py ──► rounds.py ──► quorum.py, advice.py, facts.py ──► sensitivity.py ──► plan_file.py

Equal fleet, settings, seed and version give equal plans, digit for digit.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from . import advice
from .asynchronous import asynchronous
from .band import expectation
from .chances import chances, scarce
from .checks import checked, refuse_impossible
from .facts import Effort, Rules, facts
from .glance import stand
from .memory import server_memory
from .parts import asked, rounds_of, server
from .plan_file import sealed
from .rounds import rounds
from .secure import secure
from .sensitivity import Ground

if TYPE_CHECKING:
    from collections.abc import Callable

    from .parts import Question

_FIRST = 0.4
"""Of the work: the rounds themselves."""


def plan(question: Question, say: Callable[[float], None] = lambda _: None) -> dict[str, Any]:
    """Return the plan of a run.

    Args:
        question: What is planned.
        say: Told which share is done, 0 to 1.

    Raises:
        SettingsError: The fleet and the settings do not fit, or nobody can be in time.
    """
    made = asynchronous if question.subject.buffer else _synchronous
    return sealed(made(question, say))


def _synchronous(question: Question, say: Callable[[float], None]) -> dict[str, Any]:
    description, subject, seed = question.description, question.subject, question.seed
    job, run = subject.job, subject.run
    expected = rounds(description, job, seed, lambda done: say(_FIRST * done))
    refuse_impossible(description, job, expected, seed)
    memory = server_memory(subject.layout, run.rule, job.invited, subject.graph)
    rules = Rules(graph=subject.graph, robust=run.rule.robust)
    found = facts(description, job, Effort.expected(expected), rules)
    at = stand(description, job, expected, seed)
    odds = chances(at, job, expected, question.certainty)
    masks = secure(subject, odds.losses, question.certainty)
    limit = advice.deadline(at, job, odds)
    ground = Ground(
        at=at, rules=rules, online=float(odds.losses.size), scarce=scarce(job, expected)
    )
    effects = ground.effects(found.costs, lambda done: say(_FIRST + (1 - _FIRST) * done))
    facing = advice.Found(
        job=job,
        expected=expected,
        costs=found.costs,
        chances=odds,
        deadline=limit,
        bottleneck=advice.bottleneck(expected),
        masks=masks,
        effects=effects,
        currency=description.prices.currency,
        fewest=run.params.min_members,
    )
    return {
        **asked(question),
        **rounds_of(expected, job.clients),
        "secure": masks,
        "asynchronous": None,
        **_advised(facing),
        "server": server(question, memory, found),
        "expect": expectation(description, at.by_hour(), expected),
        "lines": [*checked(description, job, expected, memory), *found.ranks.lines],
    }


def _advised(found: advice.Found) -> dict[str, Any]:
    """Return odds, costs, and what to do."""
    first, *then = advice.changes(found)
    return {
        "quorum": found.chances.described(),
        "deadline": found.deadline._asdict(),
        **found.costs.described(found.job.rounds, found.currency),
        "bottleneck": {
            **found.bottleneck._asdict(),
            "shares": list(map(asdict, found.expected.closers)),
        },
        "sensitivity": [effect.described() for effect in found.effects],
        "first": first,
        "then": then,
    }
