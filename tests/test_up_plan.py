"""The plan of `umbel up`: who trains, which setting goes which way, what is refused at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from umbel.protocol.errors import SettingsError
from umbel.simulation import up_plan
from umbel.simulation.up_plan import Asked, plan_up

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch is installed."""
    monkeypatch.setattr(up_plan, "find_spec", lambda _name: object())


def _app(folder: Path, config: str = "", own: str = 'task = "a.b:C"') -> Path:
    text = f"[tool.flwr.app.config]\n{config}\n"
    (folder / "pyproject.toml").write_text(text + (f"[tool.umbel]\n{own}\n" if own else ""))
    return folder


@pytest.mark.parametrize(
    ("own", "edge", "gpu", "expected"),
    [
        ('task = "a.b:C"', None, None, (5, 0)),
        ('task = "a.b:C"\ntask-torch = "a.b:D"', None, None, (4, 1)),
        ('task = "a.b:C"\ntask-torch = "a.b:D"', 6, None, (6, 0)),
        ('task = "a.b:C"', None, 2, (4, 2)),
        ('task = "a.b:C"', 3, 1, (3, 1)),
        ("", None, None, (5, 0)),
    ],
)
def test_who_trains(
    tmp_path: Path, own: str, edge: int | None, gpu: int | None, expected: tuple[int, int]
) -> None:
    plan = plan_up(_app(tmp_path, own=own), Asked(edge=edge, gpu=gpu))
    assert (plan.edge, plan.gpu) == expected


def test_without_torch_all_are_edge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(up_plan, "find_spec", lambda _name: None)
    app = _app(tmp_path, own='task = "a.b:C"\ntask-torch = "a.b:D"')
    plan = plan_up(app, Asked())
    assert (plan.edge, plan.gpu) == (5, 0)
    with pytest.raises(SettingsError, match=r"--gpu: expected torch.*pip install"):
        plan_up(app, Asked(gpu=1))


def test_a_setting_goes_where_it_is_known(tmp_path: Path) -> None:
    app = _app(tmp_path, "rounds = 7\nlr = 0.1", 'task = "a.b:C"\nvalue-range = 2.0')
    given = (("lr", 0.5), ("value-range", 1.5), ("cohort", 4))
    plan = plan_up(app, Asked(edge=5, rounds=3, settings=given))
    assert plan.umbel
    assert plan.config == {"rounds": 3, "lr": 0.5}
    assert plan.settings == {"value-range": 1.5, "cohort": 4, "clients": 5, "rejoin": 30.0}
    assert plan.rounds == 4  # three, and the evaluation of the last model


def test_rounds_count_every_attempt_of_a_device(tmp_path: Path) -> None:
    plan = plan_up(_app(tmp_path), Asked(rounds=9, settings=(("attempts", 3),)))
    assert plan.config == {}
    assert (plan.settings["rounds"], plan.rounds) == (9, 30)


def test_ranks_are_for_a_core_service(tmp_path: Path) -> None:
    assert plan_up(_app(tmp_path), Asked(ranks=2)).ranks == 2
    with pytest.raises(SettingsError, match="--ranks: expected 0 to 64, got -1"):
        plan_up(_app(tmp_path), Asked(ranks=-1))
    with pytest.raises(SettingsError, match="--ranks: expected an app that has a core service"):
        plan_up(_app(tmp_path, own=""), Asked(secure=False, ranks=2))


def test_a_plain_app_has_its_own_names(tmp_path: Path) -> None:
    app = _app(tmp_path, "num-server-rounds = 2", own="")
    plan = plan_up(app, Asked(rounds=4, secure=False))
    assert not plan.umbel
    assert (plan.config, plan.settings, plan.rounds) == ({"num-server-rounds": 4}, {}, 0)


def test_a_flag_stands_above_the_environment_and_that_above_the_app(tmp_path: Path) -> None:
    app = _app(tmp_path, "rounds = 7\nlr = 0.1", 'task = "a.b:C"\ntrip = 2.0\nalpha = 0.2')
    said = {"rounds": 5, "lr": 0.7, "trip": 3.0, "clients": 99}
    plan = plan_up(app, Asked(edge=5, rounds=3, settings=(("lr", 0.5),), environment=said))
    assert plan.config == {"rounds": 3, "lr": 0.5}
    assert plan.settings == {"trip": 3.0, "clients": 5, "rejoin": 30.0}


def test_a_plain_app_takes_its_own_names_from_the_environment(tmp_path: Path) -> None:
    app = _app(tmp_path, "lr = 0.1", own="")
    plan = plan_up(app, Asked(secure=False, environment={"lr": 0.7, "trip": 3.0}))
    assert (plan.config, plan.settings) == ({"lr": 0.7}, {})


def test_a_model_to_begin_with_is_there(tmp_path: Path) -> None:
    model = tmp_path / "m.safetensors"
    with pytest.raises(SettingsError, match="--init"):
        plan_up(_app(tmp_path), Asked(init=model))
    model.touch()
    assert plan_up(_app(tmp_path), Asked(init=model)).init == model
    with pytest.raises(SettingsError, match="--init"):
        plan_up(_app(tmp_path, own=""), Asked(init=model, secure=False))


def test_a_wrapped_app_is_told_how_many_clients_there_are(tmp_path: Path) -> None:
    app = _app(tmp_path, "num-server-rounds = 2", own="")
    plan = plan_up(app, Asked(edge=5, rounds=4, drop=1, settings=(("trip", 9.0),)))
    assert plan.config == {"num-server-rounds": 4}
    assert plan.settings == {"clients": 5, "rejoin": 30.0, "trip": 9.0}
    assert (plan.umbel, plan.rounds) == (False, 5)


@pytest.mark.parametrize(
    ("own", "asked", "said"),
    [
        ('task = "a.b:C"', Asked(settings=(("colour", 1),)), "run-config.*colour"),
        ('task = "a.b:C"', Asked(settings=(("trip", -1.0),)), "trip"),
        ('task = "a.b:C"', Asked(settings=(("clients", 9),)), "--edge and --gpu"),
        ('task = "a.b:C"', Asked(edge=2), "--edge: expected 3 or more clients in all, got 2"),
        ('task = "a.b:C"', Asked(edge=0, gpu=0), "--edge: expected 1 or more"),
        ('task = "a.b:C"', Asked(edge=-1, gpu=4), "--edge: expected 1 or more"),
        # Scheme A's own numbers: five members bear one loss, four none.
        ('task = "a.b:C"', Asked(edge=5, drop=2), "--drop: expected 0 to 1 of 5 clients, got 2"),
        ('task = "a.b:C"', Asked(edge=4, drop=1), "--drop: expected 0 to 0 of 4 clients, got 1"),
        ('task = "a.b:C"', Asked(drop=1, rounds=2), "--drop: expected 3 or more rounds"),
        ("", Asked(secure=False, settings=(("lr", 1.0),)), "a key that the app declares: nothing"),
        ("", Asked(rounds=3), "--rounds"),
        ("", Asked(drop=1, secure=False), "--drop"),
        ("", Asked(settings=(("colour", 1),)), "run-config.*colour"),
        ("", Asked(edge=2), "--edge: expected 3 or more clients in all, got 2"),
    ],
)
def test_what_cannot_be_is_said_before_anything_starts(
    tmp_path: Path, own: str, asked: Asked, said: str
) -> None:
    with pytest.raises(SettingsError, match=said):
        plan_up(_app(tmp_path, own=own), asked)


def test_a_plain_run_bears_more_losses(tmp_path: Path) -> None:
    assert plan_up(_app(tmp_path), Asked(edge=5, drop=2, secure=False)).drop == 2


def test_no_app_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"pyproject\.toml"):
        plan_up(tmp_path, Asked())
