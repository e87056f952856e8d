"""Whose settings a run has that is started by `umbel.train`: those of the installed app."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import umbel
from umbel.protocol.errors import SettingsError
from umbel.server import flower_train
from umbel.server.flower_app_settings import of_running_app
from umbel.tests.federations import APP, made
from umbel.tests.flower_grid import Desk, identified

if TYPE_CHECKING:
    from pathlib import Path

PROJECT = """
[tool.flwr.app.config]
rounds = 4
[tool.umbel]
task = "small.task:Task"
rounds = 6
value-range = 0.5
"""


class Seen(Exception):
    """The run would have begun with these."""

    def __init__(self, settings: Any) -> None:
        self.settings = settings


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The app `tests/small` as Flower installs it; its runs end as they begin."""
    monkeypatch.setenv("FLWR_HOME", str(tmp_path / "flwr"))
    for name in ("UMBEL_SETTINGS", "UMBEL_SECURE", "UMBEL_RUN", "UMBEL_INIT"):
        monkeypatch.delenv(name, raising=False)
    folder = tmp_path / "flwr" / "apps" / f"tests.small.1.0.0.{APP.hex()[:8]}"
    folder.mkdir(parents=True)
    (folder / "pyproject.toml").write_text(PROJECT)

    def run(_grid: object, settings: object, *_: object) -> None:
        raise Seen(settings)

    monkeypatch.setattr(flower_train, "_run", run)
    identified(monkeypatch)
    return folder


def _settings(folder: Path, **config: object) -> Any:
    given: Any = {"clients": 3, **config}
    with pytest.raises(Seen) as caught:
        umbel.train(Desk(made(folder / "f")), umbel.FedAvg(), initial_arrays={}, config=given)
    return caught.value.settings


@pytest.mark.parametrize(
    ("config", "environment", "rounds"),
    [
        ({}, "{}", 6),
        ({"rounds": 4}, "{}", 6),  # the run-config as Flower hands it over
        ({"rounds": 2}, "{}", 2),
        ({"rounds": 2}, '{"rounds": 1}', 1),
    ],
)
def test_our_table_stands_below_what_the_caller_says(
    app: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    config: dict[str, object],
    environment: str,
    rounds: int,
) -> None:
    monkeypatch.setenv("UMBEL_SETTINGS", environment)
    found = _settings(tmp_path, **config)
    assert (found.rounds, found.params.value_range) == (rounds, 0.5)
    assert "task" not in found.config


def test_an_app_that_is_not_installed_has_no_tables(app: Path, tmp_path: Path) -> None:
    (app / "pyproject.toml").unlink()
    found = _settings(tmp_path)
    assert (found.rounds, found.params.value_range) == (10, 1.0)


def test_a_wrong_value_in_our_table_is_named(app: Path, tmp_path: Path) -> None:
    (app / "pyproject.toml").write_text(PROJECT.replace("6", '"six"'))
    with pytest.raises(SettingsError, match="rounds"):
        umbel.train(Desk(made(tmp_path / "f")), umbel.FedAvg(), initial_arrays={})


def test_what_is_no_bundle_has_no_tables(
    app: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    grid = Desk(made(tmp_path / "f"))
    assert of_running_app(grid)[1]["rounds"] == 6
    run = grid.run
    for name, value in (("fab_id", "small"), ("fab_hash", "")):
        with monkeypatch.context() as patch:
            patch.setattr(Desk, "run", property(lambda _: run))
            patch.setattr(run, name, value)
            assert of_running_app(grid) == ({}, {})
