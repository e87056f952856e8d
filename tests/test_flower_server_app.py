"""`umbel.server_app`: whose settings a run has, and what is handed to `umbel.train`."""

from __future__ import annotations

import importlib
import itertools
import sys
from typing import TYPE_CHECKING, Any

import pytest
from flwr.app import Context, RecordDict

import umbel
from umbel.protocol.errors import SettingsError
from umbel.server import flower_server_app
from umbel.server.flower_app_settings import merged
from umbel.tests.federations import made
from umbel.tests.flower_grid import Desk, identified

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from flwr.serverapp import ServerApp

CODE = """
import umbel

class Task(umbel.Task):
    def model(self):
        return umbel.LogisticRegression(2, 2)

    def train_data(self, site):
        raise NotImplementedError

task = Task()
"""
PROJECT = """
[tool.flwr.app.config]
rounds = 4
lr = 0.1
width = 8
[tool.flwr.app.config.data]
kind = "iid"

[tool.umbel]
task = "{name}.task:Task"
task-torch = "{name}.torch_task:Task"
rounds = 6
value-range = 0.5
"""
DECLARED: dict[str, bool | int | float | str] = {
    "rounds": 4,
    "lr": 0.1,
    "width": 8,
    "data.kind": "iid",
}
"""What Flower's run-config is without overrides."""
_NUMBERS = itertools.count()


class Called(Exception):
    """`umbel.train` was called with these."""

    def __init__(self, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        self.grid, self.strategy = arguments
        self.named = named


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Import the module of an app of its own and return it."""
    name = f"app_of_a_server_{next(_NUMBERS)}"
    package = tmp_path / name
    package.mkdir()
    (tmp_path / "pyproject.toml").write_text(PROJECT.format(name=name))
    (package / "__init__.py").write_text("")
    (package / "task.py").write_text(CODE)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield importlib.import_module(f"{name}.task")
    for loaded in [module for module in sys.modules if module.startswith(name)]:
        del sys.modules[loaded]


@pytest.fixture
def grid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Desk:
    """A grid; `umbel.train` only says how it was called."""

    def called(*arguments: Any, **named: Any) -> None:
        raise Called(arguments, named)

    identified(monkeypatch)
    monkeypatch.setattr(flower_server_app, "train", called)
    return Desk(made(tmp_path / "federation"))


def run(server: ServerApp, grid: Desk, config: Mapping[str, Any]) -> Called:
    """Let Flower call the ServerApp, and return how it called `umbel.train`."""
    context = Context(1, 1, {}, RecordDict(), dict(config))
    with pytest.raises(Called) as caught:
        server(grid, context)
    return caught.value


# ---- settings ------------------------------------------------------------------------------------


def test_our_table_stands_above_what_the_app_declares(app: Any, grid: Desk) -> None:
    called = run(umbel.server_app(app.Task), grid, DECLARED)
    assert called.named["config"] == {
        "rounds": 6, "lr": 0.1, "width": 8, "data.kind": "iid", "value-range": 0.5
    }  # fmt: skip


def test_an_override_stands_above_both(app: Any, grid: Desk) -> None:
    config = {**DECLARED, "rounds": 2, "value-range": 0.25, "width": 9, "unheard-of": True}
    called = run(umbel.server_app(app.Task), grid, config)
    assert called.named["config"] == {
        "rounds": 2, "lr": 0.1, "width": 9, "data.kind": "iid", "value-range": 0.25,
        "unheard-of": True,
    }  # fmt: skip


def test_a_class_outside_any_app_has_flowers_settings_alone(
    grid: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lonely_task.py").write_text(CODE)
    monkeypatch.syspath_prepend(str(tmp_path))
    task = importlib.import_module("lonely_task").Task
    assert run(umbel.server_app(task), grid, {"rounds": 3}).named["config"] == {"rounds": 3}


def test_a_table_that_cannot_be_read_ends_the_run(app: Any, grid: Desk, tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.umbel\n")
    context = Context(1, 1, {}, RecordDict(), dict(DECLARED))
    with pytest.raises(SettingsError, match="expected valid TOML"):
        umbel.server_app(app.Task)(grid, context)


@pytest.mark.parametrize(
    ("config", "expected"),
    [({"a": 1}, 2), ({"a": 3}, 3), ({}, 2), ({"a": 2}, 2)],
)
def test_what_only_repeats_a_default_is_no_override(config: dict[str, Any], expected: int) -> None:
    assert merged(config, {"a": 1}, {"a": 2}) == {"a": expected}


# ---- what is handed on ---------------------------------------------------------------------------


def test_class_and_object_are_the_same_task(app: Any, grid: Desk) -> None:
    by_class = run(umbel.server_app(app.Task), grid, DECLARED)
    by_object = run(umbel.server_app(app.task), grid, DECLARED)
    assert by_class.named["task"] is app.Task  # a process of its own finds either by its name
    assert by_object.named["task"] is app.task
    assert by_class.named["config"] == by_object.named["config"]
    assert by_class.grid is grid


def test_the_strategy_is_the_callers_or_ours(app: Any, grid: Desk) -> None:
    mine = umbel.FedAvg(fraction_train=0.5)
    assert run(umbel.server_app(app.Task, mine), grid, DECLARED).strategy is mine
    assert type(run(umbel.server_app(app.Task), grid, DECLARED).strategy) is umbel.FedAvg


@pytest.mark.parametrize("thing", [None, "task:Task", dict, object()])
def test_what_is_no_task_is_refused_at_import(thing: Any) -> None:
    with pytest.raises(SettingsError, match=r"umbel\.server_app: expected a umbel\.Task, got "):
        umbel.server_app(thing)
