"""The settings of a run by name: who overrides whom, and what is refused before anything starts."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from umbel.protocol.errors import SettingsError
from umbel.server.run_config import (
    KEYS,
    TRAINING,
    Value,
    from_environment,
    new_run_id,
    parsed,
    run_settings,
    tables,
)
from umbel.strategies.server_rules import FedAvg


def test_defaults_are_those_of_the_page() -> None:
    table, config = tables({}, {})
    assert table == KEYS
    assert (table["rounds"], table["min-members"], table["min-survivors"]) == (10, 3, 3)
    assert config == {"seed": 0}
    settings = run_settings(table, config, run="r", secure=True, rule=FedAvg())
    assert (settings.scheme, settings.cohort, settings.deadline) == ("A", None, 600.0)
    assert settings.params.value_range == 1.0


def test_the_caller_stands_above_the_app_and_the_app_above_the_defaults() -> None:
    own: dict[str, Value] = {"rounds": 7, "clients": 9, "lr": 0.5, "width": 32}
    table, config = tables(own, {"rounds": 3, "width": 64, "batch-size": 8})
    assert (table["rounds"], table["clients"], table["attempts"]) == (3, 9, 1)
    assert config == {"lr": 0.5, "width": 64, "batch-size": 8, "seed": 0}


def test_the_seed_is_the_runs_and_the_tasks() -> None:
    table, config = tables({"seed": 4}, {"seed": 5})
    assert table["seed"] == config["seed"] == 5
    assert run_settings(table, config, run="r", secure=True, rule=FedAvg()).seed == 5


@pytest.mark.parametrize("key", ["roundz", "width", "task"])
def test_the_caller_names_nothing_that_the_app_does_not_have(key: str) -> None:
    with pytest.raises(SettingsError, match=r"run-config: expected one of .*lr.* got") as caught:
        tables({}, {key: 1})
    assert repr(key) in str(caught.value)


@pytest.mark.parametrize(
    ("key", "value", "wanted"),
    [
        ("rounds", 3.0, "int"),
        ("rounds", True, "int"),
        ("rounds", "3", "int"),
        ("deadline", True, "float"),
        ("deadline", "60", "float"),
        ("value-range", "1", "float"),
        ("seed", 1.5, "int"),
    ],
)
def test_a_setting_has_the_type_of_its_default(key: str, value: Value, wanted: str) -> None:
    with pytest.raises(SettingsError, match=f"{key}: expected {wanted}, got {value!r}"):
        tables({}, {key: value})
    with pytest.raises(SettingsError, match=f"{key}: expected {wanted}"):
        tables({key: value}, {})


def test_an_integer_stands_for_a_float() -> None:
    table, _ = tables({"deadline": 60}, {"value-range": 2})
    assert (table["deadline"], table["value-range"]) == (60.0, 2.0)
    assert type(table["deadline"]) is type(table["value-range"]) is float


@pytest.mark.parametrize(
    ("key", "value"), [("lr", 0.0), ("lr", "fast"), ("local-epochs", 0), ("batch-size", -1)]
)
def test_what_no_client_could_train_with_ends_here(key: str, value: Value) -> None:
    with pytest.raises(SettingsError, match=key):
        tables({}, {key: value})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("rounds", 0),
        ("attempts", 0),
        ("deadline", 0.0),
        ("trip", -1.0),
        ("alpha", 1.0),
        ("delta", -0.1),
        ("min-members", 0),
        ("weight-cap", 0),
        ("value-range", 0.0),
        ("cohort", 2),
        ("evaluators", -1),
    ],
)
def test_a_value_outside_its_range_is_named(key: str, value: Value) -> None:
    table, config = tables({}, {key: value})
    with pytest.raises(SettingsError, match=key):
        run_settings(table, config, run="r", secure=True, rule=FedAvg())


def test_a_plain_run_and_a_cohort() -> None:
    table, config = tables(
        {}, {"cohort": 4, "attempts": 3, "deadline": 9.0, "trip": 2.0, "dropout": 0.2}
    )
    settings = run_settings(table, config, run="r", secure=False, rule=FedAvg())
    assert (settings.scheme, settings.cohort, settings.attempts) == ("plain", 4, 3)
    assert (settings.deadline, settings.trip, settings.dropout) == (9.0, 2.0, 0.2)


def test_zero_leaves_the_trips_to_the_deadline() -> None:
    table, config = tables({}, {"trip": 0})
    assert run_settings(table, config, run="r", secure=True, rule=FedAvg()).trip is None


@given(st.text(max_size=80))
def test_any_name_makes_a_run_id(name: str) -> None:
    made = new_run_id(name)
    assert re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", made)
    table, config = tables({}, {})
    assert run_settings(table, config, run=made, secure=True, rule=FedAvg()).run == made


def test_run_ids_tell_the_app_and_differ() -> None:
    made = [new_run_id("digits") for _ in range(20)]
    assert all(re.fullmatch(r"digits-\d{8}-\d{6}-[0-9a-f]{4}", each) for each in made)
    assert len(set(made)) > 15


def test_every_setting_has_its_variable() -> None:
    said = {f"UMBEL_{key.upper().replace('-', '_')}": "7" for key in (*KEYS, *TRAINING)}
    assert from_environment(said) == dict.fromkeys((*KEYS, *TRAINING), 7)


def test_other_variables_and_empty_ones_say_nothing() -> None:
    assert from_environment({"UMBEL_HOME": "/x", "ROUNDS": "3", "UMBEL_ROUNDS": ""}) == {}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3", 3),
        ("0.5", 0.5),
        ("1e-3", 0.001),
        ("true", True),
        ("false", False),
        ('"3"', "3"),
        ("1" * 20, int("1" * 20)),
        ("9" * 400, float("inf")),
        ("-" + "9" * 400, float("-inf")),
    ],
)
def test_a_variables_value_is_read_as_toml_has_it(text: str, value: Value) -> None:
    assert parsed(text) == value
    assert type(parsed(text)) is type(value)


@pytest.mark.parametrize("name", ["UMBEL_DEADLINE", "UMBEL_LR", "UMBEL_SEED", "UMBEL_ALPHA"])
def test_a_number_that_no_float_holds_is_refused(name: str) -> None:
    def settings() -> object:
        table, config = tables({}, from_environment({name: "9" * 400}))
        return run_settings(table, config, run="r", secure=True, rule=FedAvg())

    with pytest.raises(SettingsError):
        settings()
