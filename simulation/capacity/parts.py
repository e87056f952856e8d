"""Parts of a plan's object that rounds of both kinds have: what was asked, rounds, the server."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .plan_file import percentiles, quantiles

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .expected import Expected
    from .facts import Facts
    from .memory import ServerMemory
    from .subject import Subject
    from ..fleet.description import Description


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is planned, and how surely it is to be."""

    description: Description
    subject: Subject
    certainty: float = 0.99
    seed: int = 0
    measured: Mapping[str, Any] | None = None
    """What runs have taught: `runs`, `rounds`, `moved`."""


def server(question: Question, memory: ServerMemory, found: Facts) -> dict[str, Any]:
    """Return what the server needs, and has."""
    return {
        "memory": memory.peak,
        "terms": memory.terms,
        "limit": question.description.server.memory,
        "ranks": found.ranks.needed,
        "pool": found.ranks.pool,
        "work": found.work,
    }


def asked(question: Question) -> dict[str, Any]:
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
            "quorum": None if job.buffer else job.quorum,
            "deadline": job.deadline,
            "attempts": job.attempts,
            "buffer": job.buffer,
            "staleness": job.staleness if job.buffer else None,
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


def rounds_of(expected: Expected, clients: int) -> dict[str, Any]:
    """Return rounds, run, cohorts and sites."""
    each = {took.cohort: took.asked or 1.0 for took in expected.clients}
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
                **{name: getattr(took, name) / each[took.cohort] for name in outcomes},
            }
            for took in expected.clients
        ],
        "sites": sites,
    }
