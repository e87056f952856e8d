"""A plan: everything about a run that is known before it, as one object (plan_file.py).

    subject.py ──► rounds.py ──► quorum.py, advice.py, facts.py ──► sensitivity.py ──► plan_file.py

Equal fleet, settings, seed and version give equal plans, digit for digit.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from . import advice
from .band import expectation
from .chances import chances, scarce
from .checks import checked, refuse_impossible
from .facts import Effort, Rules, facts
from .glance import stand
from .memory import server_memory
from .plan_file import percentiles, quantiles, sealed
from .rounds import rounds
from .secure import secure
from .sensitivity import Ground

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from .expected import Expected
    from .facts import Facts
    from .memory import ServerMemory
    from .subject import Subject
    from ..fleet.description import Description

_FIRST = 0.4
"""Of the work: the rounds themselves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is planned, and how surely it is to be."""

    description: Description
    subject: Subject
    certainty: float = 0.99
    seed: int = 0
    measured: Mapping[str, Any] | None = None
    """What runs have taught: `runs`, `rounds`, `moved`."""


def plan(question: Question, say: Callable[[float], None] = lambda _: None) -> dict[str, Any]:
    """Return the plan of a run.

    Args:
        question: What is planned.
        say: Told which share is done, 0 to 1.

    Raises:
        SettingsError: The fleet and the settings do not fit, or nobody can be in time.
    """
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
    return sealed(
        {
            **_asked(question),
            **_expected(expected, job.clients),
            "secure": masks,
            **_advised(facing),
            "server": _server(question, memory, found),
            "expect": expectation(at, expected),
            "lines": [*checked(description, job, expected, memory), *found.ranks.lines],
        }
    )


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


def _server(question: Question, memory: ServerMemory, found: Facts) -> dict[str, Any]:
    """Return what the server needs, and has."""
    return {
        "memory": memory.peak,
        "terms": memory.terms,
        "limit": question.description.server.memory,
        "ranks": found.ranks.needed,
        "pool": found.ranks.pool,
        "work": found.work,
    }


def _asked(question: Question) -> dict[str, Any]:
    """Return what is planned."""
    description, subject = question.description, question.subject
    job, run = subject.job, subject.run
    return {
        "seed": question.seed,
        "certainty": question.certainty,
        "fleet": {
            "file": description.path.name,
            "digest": description.digest,
            "clients": job.clients,
        },
        "model": {
            "parameters": subject.parameters,
            "bytes": job.load.up,
            "down": job.load.down,
            "dtype": subject.dtype,
            "digest": subject.digest,
        },
        "app": None if subject.app is None else subject.app.directory.name,
        "settings": {
            "clients": job.clients,
            "rounds": job.rounds,
            "cohort": job.cohort,
            "invited": job.invited,
            "quorum": job.quorum,
            "deadline": job.deadline,
            "attempts": job.attempts,
            "dropout": run.dropout,
            "epochs": job.load.epochs,
            "secure": job.secure,
            "strategy": run.rule.name,
            "robust": None if run.rule.robust is None else run.rule.robust.rule,
            "min-members": run.params.min_members,
            "min-survivors": run.params.min_survivors,
            "alpha": job.alpha,
            "delta": job.delta,
        },
        "measured": question.measured,
    }


def _expected(expected: Expected, clients: int) -> dict[str, Any]:
    """Return rounds, run, cohorts and sites."""
    asked = {took.cohort: took.asked or 1.0 for took in expected.clients}
    sites: dict[str, dict[str, float]] = {}
    everybody = sum(took.asked for took in expected.clients) or 1.0
    for took in expected.clients:
        site = sites.setdefault(took.site, {"share": 0.0, "expected": 0.0})
        site["share"] += took.asked / everybody
        site["expected"] += took.used
    outcomes = ("used", "late", "lost", "offline", "crashed")
    return {
        "round": {
            **percentiles(expected.seconds),
            "quantiles": quantiles(expected.seconds),
            "wait": percentiles(expected.wait),
            "by_hour": [
                {
                    **{key: getattr(hour, key) for key in ("hour", "p50", "p90", "miss")},
                    "online": hour.online / clients,
                }
                for hour in expected.by_hour
            ],
        },
        "total": percentiles(expected.total),
        "clients": [
            {
                "cohort": took.cohort,
                "site": took.site,
                "share": took.share,
                "asked": took.asked,
                **{name: getattr(took, name) / asked[took.cohort] for name in outcomes},
            }
            for took in expected.clients
        ],
        "sites": sites,
    }
