"""What a plan is made for, and the distributions that it has of it."""

from __future__ import annotations

import ast
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from umbel.protocol.errors import SettingsError
from umbel.simulation.capacity.job import Job
from umbel.simulation.capacity.sample import Sample
from umbel.simulation.fleet.devices import Load

JOB = Job(
    clients=100, cohort=10, invited=13, quorum=5, rounds=50, deadline=60.0, load=Load(),
    parameters=1000,
)  # fmt: skip


ROOT = Path(__file__).resolve().parents[1]
APART = {"capacity": {"clock", "engine"}, "fleet": {"clock", "engine", "capacity", "fitting"}}
"""Folders of simulation/ that may not know others: a plan shares the fleet with the simulator, and
nothing else."""


@pytest.mark.parametrize("folder", [*APART, "clock", "engine"])
def test_a_plan_and_the_simulator_do_not_know_each_other(folder: str) -> None:
    forbidden = APART.get(folder, {"capacity", "fitting"})
    for path in sorted((ROOT / "simulation" / folder).glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.level >= 2:
                names = [(node.module or "").split(".")[0], *(alias.name for alias in node.names)]
                assert not forbidden.intersection(names), f"{path.name}:{node.lineno}"


def test_a_quantile_is_the_least_value_that_is_not_passed_more_often() -> None:
    found = Sample.of([4.0, 1.0, 3.0, 2.0])
    assert [found.at(p) for p in (0.01, 0.25, 0.26, 0.5, 0.75, 0.9, 1.0)] == [1, 1, 2, 2, 3, 4, 4]
    assert [found.share(v) for v in (0.5, 1.0, 2.5, 4.0)] == [0.0, 0.25, 0.5, 1.0]
    assert found.mean == 2.5


def test_weights_count_and_what_never_happens_is_infinite() -> None:
    found = Sample.of([5.0, math.inf, 1.0], [2, 1, 7])
    assert (found.at(0.7), found.at(0.71), found.at(0.9), found.at(0.95)) == (1, 5, 5, math.inf)
    assert found.share(1e300) == pytest.approx(0.9)
    assert found.mean == math.inf


@pytest.mark.parametrize(
    ("values", "weights"),
    [([], None), ([1.0, math.nan], None), ([1.0], [0.0]), ([1.0, 2.0], [3.0, -1.0])],
)
def test_what_is_no_distribution_is_refused(values: list[float], weights: list[float]) -> None:
    with pytest.raises(ValueError, match="no distribution"):
        Sample.of(values, weights)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"cohort": 101}, "cohort: expected 1 to 100"),
        ({"invited": 9}, "invited: expected at least the cohort, 10"),
        ({"quorum": 11}, "quorum: expected 1 to 10"),
        ({"rounds": 0}, "rounds: expected 1 or more"),
        ({"deadline": math.inf}, "deadline: expected finite seconds"),
    ],
)
def test_numbers_that_contradict_each_other_are_refused(changed: dict[str, Any], said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        replace(JOB, **changed)
