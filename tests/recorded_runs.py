"""Runs that were never run, for tests of pages: ledgers written by hand, as those of real runs."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

from umbel.server.ledger import RoundRecord
from umbel.server.reviews import Item, decide
from umbel.server.run_directory import RunDirectory

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from umbel.server.ledger import Ledger

_PARTS = {"train": 0.02, "aggregate": 0.001, "evaluate": 0.004, "write": 0.002}
_AT = "2026-01-02T04:05:06+00:00"
HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'&\u202e\x00"
"""What a name, a cause or a code could be, in the worst case."""


def node(number: int) -> str:
    """Return a node id, hex."""
    return f"{number:032x}"


def begin(
    home: Path, run: str, config: Mapping[str, object], security: str = "on (development CA)"
) -> RunDirectory:
    """Make a run; the caller closes it."""
    directory = RunDirectory.create(home, run)
    directory.ledger.create_run(run, "2026-01-02T03:04:05+00:00", config, security)
    return directory


def entry(
    number: int,
    *,
    metrics: Mapping[str, float] | None = None,
    seconds: Mapping[str, float] | None = None,
    roster: Sequence[str] = (),
    survivors: Sequence[str] | None = None,
    outcome: str = "finished",
    cause: str = "",
    phase: str = "train",
    attempt: int = 0,
    model: str = "",
) -> RoundRecord:
    """Return a round's entry; 1,000 bytes went up and 2,000 down."""
    return RoundRecord(
        round=number,
        attempt=attempt,
        phase=phase,
        outcome=outcome,
        cause=cause,
        roster=tuple(roster),
        survivors=tuple(roster if survivors is None else survivors),
        model=model or f"{number:064x}",
        metrics=metrics or {},
        seconds=seconds or {},
        bytes_up=1000,
        bytes_down=2000,
    )


def commit(directory: RunDirectory, number: int, **said: Any) -> None:
    """Write what `entry` makes."""
    directory.ledger.commit_round(entry(number, **said))


def full(home: Path, run: str = "fleet-1", rounds: int = 60, clients: int = 1000) -> None:
    """Make a simulated run that records everything, and in which much goes wrong."""
    draw = random.Random(5)  # noqa: S311 - nothing is secret here
    config = {
        "clients": clients,
        "rounds": rounds,
        "seed": 7,
        "config": {"lr": 0.1},
        "simulation": {
            "tier": "T0",
            "reason": "tier T0 (native): 2.1 times as fast as T1 in a trial",
            "hand-over": "hand-over sum: nothing needs single updates",
            "cohorts": {"boxes": clients // 5, "phones": clients - clients // 5},
        },
        "versions": {"umbel": "0.1.0", "numpy": "2.3.0"},
    }
    with begin(home, run, config, "off") as directory:
        for n in range(1, rounds + 1):
            if n % 17 == 0:
                commit(directory, n, outcome="aborted", cause="3 members, needs 5", attempt=1)
            cohort = [node(int(clients * draw.random() ** 2)) for _ in range(100)]
            accuracy = 1 - 0.9 * 0.95**n + 0.02 * draw.random()
            metrics = {
                "test.accuracy": min(1.0, accuracy),
                "test.loss": 2.3 * 0.93**n,
                "train.loss": 2.0 * 0.92**n,
                "eval.accuracy": max(0.0, accuracy - 0.03),
                "clock.closed": 431.0 * n,
                "clock.work": 9000.0,
                "clients.late": 20.0 + draw.randrange(10),
                "clients.lost": 1.0,
                "clients.offline": 3.0,
                "clients.crashed": 2.0,
                "test.f1": accuracy / 2,
                "weight.mean": 50.0,
                "clients.loss.p10": 1.1 * 0.93**n,
                "clients.loss.p50": 2.1 * 0.93**n,
                "clients.loss.p90": 4.2 * 0.93**n,
            }
            for _ in cohort:
                age = f"staleness.{int(draw.expovariate(0.2))}"
                metrics[age] = metrics.get(age, 0.0) + 1
            for name, under in (("p10", 0.3), ("p25", 0.2), ("p50", 0.1), ("p75", 0.05)):
                metrics[f"clients.accuracy.{name}"] = max(0.0, accuracy - under)
            metrics["clients.accuracy.p90"] = min(1.0, accuracy + 0.05)
            for member in cohort[: n % 4]:
                kind, code = draw.choice([("lost", "training"), ("refused", "not finite")])
                directory.ledger.event(kind, round=n, attempt=0, node=member, code=code)
            metrics |= _groups(directory.ledger, n, accuracy)
            commit(directory, n, metrics=metrics, seconds=_PARTS, roster=cohort)


def _groups(ledger: Ledger, n: int, accuracy: float) -> dict[str, float]:
    """Say who was asked by cohort; return quantiles of their clients' accuracy."""
    detail = {"names": '["boxes","phones"]', "asked": "40 90", "used": "35 65"}
    ledger.event("clients", round=n, attempt=0, code="train", detail=detail)
    return {
        f"clients.{name}.accuracy.{quantile}": min(1.0, max(0.0, accuracy - under + more))
        for name, under in (("boxes", 0.1), ("phones", 0.3))
        for quantile, more in (("p10", -0.1), ("p50", 0.0), ("p90", 0.1))
    }


def planned(home: Path, plan: Mapping[str, Any], run: str = "planned", rounds: int = 60) -> None:
    """Make a run of devices that was started with a plan, and is half as slow again.

    Its record keeps of the plan what a run keeps (server/run_plan.py); round 20 takes three times
    as long, and item 1 is decided where item 2 waits.
    """
    draw = random.Random(11)  # noqa: S311 - nothing is secret here
    kept = {
        key: plan[key]
        for key in (
            *("digest", "fleet", "model", "settings", "round", "quorum", "clients", "bytes"),
            "expect",
        )
    }
    times = [seconds for _, seconds in plan["round"]["quantiles"]]
    with begin(
        home, run, {"rounds": rounds, "clients": 12, "flower-run": "1", "plan": kept}
    ) as directory:
        for n in range(1, rounds + 1):
            seconds = 1.5 * draw.choice(times) * (3 if n == 20 else 1)
            cohort = [node(i) for i in range(12) if draw.random() < 0.9]
            metrics = {"train.loss": 2.0 * 0.95**n, "test.loss": 2.1 * 0.95**n}
            metrics |= {"test.accuracy": 1 - 0.9 * 0.95**n, "saturation": 1e-5 * n}
            parts = {"inviting": 0.9 * seconds, "summing": 0.1 * seconds}
            detail = {"names": '["fast","slow"]', "asked": "78 52", "used": "90 10"}
            directory.ledger.event(
                "clients", round=n, attempt=int(n % 25 == 0), code="train", detail=detail
            )
            if n % 25 == 0:
                cause = "4 members are ready, at least 5 are needed"
                commit(directory, n, outcome="aborted", cause=cause, seconds={"inviting": 180.0})
            if n % 7 == 0:
                directory.ledger.event(
                    "refused", round=n, attempt=int(n % 25 == 0), node=node(1), code="REASON_LIMITS"
                )
            commit(
                directory,
                n,
                metrics=metrics,
                seconds=parts,
                roster=cohort,
                attempt=int(n % 25 == 0),
            )
        _reviewed(directory.ledger, times, rounds)


def _reviewed(ledger: Ledger, times: Sequence[float], last: int) -> None:
    """Raise two items, and decide about the first."""
    for number, n in ((1, 20), (2, last)):
        item = Item(
            number=number, signal="duration", round=n, value=4.5 * times[50], low=times[0],
            high=times[-1], cause="the devices' training took longer", pauses=True, at=_AT,
        )  # fmt: skip
        detail = item.detail()
        ledger.event("review", round=n, attempt=0, code=item.signal, detail=detail, at=_AT)
    decide(ledger, 1, approve=True, by="ada@ward", why="the ward's line was down", at=_AT)
