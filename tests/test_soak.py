"""The short form of `make soak`: twelve rounds among six clients, and the bounds of its table."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from umbel.server.ledger import RoundRecord
from umbel.tests.integers import weight
from umbel.tests.soak_rounds import DEADLINE, Soak
from umbel.tests.soak_task import Chain
from umbel.tests.soak_vitals import Vital, growth

ROUNDS, CLIENTS = 12, 6
SEED = 2765
"""Of it a stop, two cuts, and the kills of a training child and of a process come in rounds 3 to 7,
each to a client that no fault has hit before: none finds its client gone, or the run over."""
STOP = DEADLINE + 0.5
"""Seconds: however fast the machine is, a client that stands still for them misses a round."""


def test_every_round_finishes_with_its_exact_sum_while_clients_are_cut_stopped_and_killed() -> None:
    with (
        tempfile.TemporaryDirectory(prefix="soak-") as folder,
        Soak(Path(folder), ROUNDS, CLIENTS, seed=SEED, share=0.1, stop=STOP) as soak,
    ):
        soak.play()
        report = soak.report()
    assert report.broken == []
    assert (report.wrong_aggregates, report.lost_finished) == (0, 0)
    assert report.outcomes["train finished"] == ROUNDS
    assert sum(report.faults.values()) >= ROUNDS * CLIENTS * 0.05
    assert {"cut", "stop", "child"} <= report.faults.keys()
    assert report.fewest_survivors < CLIENTS


# ---- what would be found -------------------------------------------------------------------------


def _record(chain: Chain, **changes: object) -> RoundRecord:
    """Return the record of round 1 with three members, as a right run would write it."""
    nodes = ("a", "b", "c")
    examples = float(sum(map(weight, range(3))))
    loss = sum((i + 1) / 8 + 1 for i in range(3)) / examples
    metrics = {"eval.examples": examples, "eval.loss": loss, "weight.mean": examples / 3}
    right = RoundRecord(
        round=1, attempt=0, phase="train", outcome="finished", roster=nodes, survivors=nodes,
        metrics=metrics,
    )  # fmt: skip
    twin = Chain({"a": 0, "b": 1, "c": 2})
    twin.take(right)
    return replace(right, **{"model": twin.digest, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({}, ""),
        ({"model": "00" * 32}, "model 0000"),
        ({"survivors": ("a", "b")}, "examples"),
        ({"survivors": ("a", "b", "c", "c")}, "survivors"),
        ({"roster": ("a", "b")}, "survivors"),
        ({"roster": ("a", "b", "c", "a", "b")}, "model"),
    ],
)
def test_a_record_that_is_not_the_sum_over_its_survivors_is_named(
    changes: dict[str, object], why: str
) -> None:
    chain = Chain({"a": 0, "b": 1, "c": 2})
    record = _record(chain, **changes)
    found = chain.take(record)
    assert bool(found) is bool(why)
    assert why in "; ".join(found)


def test_a_round_that_finishes_twice_is_named() -> None:
    chain = Chain({"a": 0, "b": 1, "c": 2})
    record = _record(chain)
    assert chain.take(record) == []
    assert "finished again" in "; ".join(chain.take(record))


@pytest.mark.parametrize(
    ("what", "a_round", "why"),
    [
        ("rss", 0.09, ""),
        ("rss", 0.11, "core: memory grows 0.110 MB a round"),
        ("files", 1, "core: 19 files became 99"),
        ("threads", 1, "core: 19 threads became 99"),
        ("children", 1, "core: 19 children became 99"),
        ("zombies", 1, "core: 19 zombies became 99"),
    ],
)
def test_what_grows_is_named(what: str, a_round: float, why: str) -> None:
    flat = Vital(0, 10.0, 10, 10, 10, 10)
    changes: list[dict[str, Any]] = [{"round": n, what: 10 + a_round * n} for n in range(100)]
    seen = [replace(flat, **change) for change in changes]
    assert "; ".join(growth("core", seen).broken) == why
