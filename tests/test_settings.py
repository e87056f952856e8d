"""The settings of a run are checked before anything starts."""

from __future__ import annotations

import math
from typing import Any

import pytest

from umbel.protocol.errors import SettingsError
from umbel.protocol.plan import Params
from umbel.server.settings import RunSettings


def settings(**changes: Any) -> RunSettings:
    return RunSettings(**{"run": "r", "rounds": 1, **changes})


def test_the_defaults() -> None:
    made = settings()
    assert (made.scheme, made.attempts, made.seed, made.cohort) == ("A", 1, 0, None)
    assert (made.deadline, made.trip, made.dropout, made.max_norm) == (600.0, None, 0.0, None)
    assert made.final_evaluation
    assert made.params == Params()


@pytest.mark.parametrize("run", ["a", "digits-20260101-120000-ab12", "A.b_c-1", "0" * 64])
def test_ids_of_runs(run: str) -> None:
    assert settings(run=run).run == run


@pytest.mark.parametrize("run", ["", ".", "-a", "a b", "a/b", "..", "a\n", "é", "0" * 65])
def test_an_id_that_could_not_be_a_directory_is_refused(run: str) -> None:
    with pytest.raises(SettingsError, match="run: expected letters, digits"):
        settings(run=run)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("rounds", 0), ("rounds", -1), ("attempts", 0), ("scheme", "B"), ("scheme", "a"),
        ("scheme", ""), ("deadline", 0.0), ("deadline", math.inf), ("deadline", math.nan),
        ("trip", -1.0), ("trip", math.inf), ("cohort", 4), ("cohort", 0), ("dropout", 1.0),
        ("dropout", -0.1), ("dropout", math.nan), ("max_norm", 0.0), ("max_norm", math.inf),
    ],
)  # fmt: skip
def test_a_value_outside_its_range_is_named(name: str, value: object) -> None:
    with pytest.raises(SettingsError, match=f"^{name.replace('_', '-')}: expected"):
        settings(**{name: value})


@pytest.mark.parametrize(
    ("params", "where"),
    [
        (Params(alpha=1.0), "params.alpha"),
        (Params(value_range=-1.0), "params.value-range"),
        (Params(min_members=0), "params.min-members"),
        (Params(weight_cap=2**32 + 1), "codec.weight_cap"),
        (Params(value_range=1e-320), "codec.value_range"),
    ],
)
def test_parameters_that_no_member_could_read_are_refused_here(params: Params, where: str) -> None:
    with pytest.raises(SettingsError, match=f"^{where}: expected"):
        settings(params=params)


def test_a_cohort_of_the_least_members_is_allowed() -> None:
    assert settings(cohort=5).cohort == 5
    assert settings(cohort=3, params=Params(min_members=3, min_survivors=3)).cohort == 3
