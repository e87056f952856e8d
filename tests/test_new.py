"""`umbel new`: an app that is a Flower app, learns, and appears whole or not at all."""

from __future__ import annotations

import importlib
import tomllib
from typing import TYPE_CHECKING

import numpy as np
import pytest

from umbel import cli
from umbel.protocol.errors import SettingsError
from umbel.simulation.new import Kind, contents, create, package_of
from umbel.strategies.task import Site
from umbel.strategies.trainer import Settings, load

if TYPE_CHECKING:
    from pathlib import Path
    from types import ModuleType

    from umbel.strategies.task import Task


def _module(folder: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(folder))
    return importlib.import_module(name)


@pytest.mark.parametrize("kind", Kind)
def test_flower_accepts_the_app(kind: Kind, tmp_path: Path) -> None:
    config_utils = pytest.importorskip("flwr.cli.config_utils")
    folder = create("my-app", kind, tmp_path)
    # Flower finds both components in the syntax tree, or raises
    config, warnings = config_utils.load_and_validate(folder / "pyproject.toml")
    assert warnings == []
    assert config["tool"]["flwr"]["app"]["components"]["clientapp"] == "my_app.client_app:app"


@pytest.mark.parametrize("kind", Kind)
def test_the_app_lists_flwr_and_never_its_platform(kind: Kind) -> None:
    project = tomllib.loads(contents("a", "a", kind)["pyproject.toml"])["project"]
    names = [line.split(">")[0] for line in project["dependencies"]]
    assert names == ["flwr", str(kind)]


@pytest.mark.parametrize("kind", Kind)
def test_the_task_learns_its_made_up_data(
    kind: Kind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"learns_{kind}"
    folder = create(name, kind, tmp_path)
    task: Task = _module(folder, f"{name}.task", monkeypatch).task
    trainer = load(task)
    arrays = trainer.arrays(seed=0)
    for number in range(5):  # plain federated averaging by hand, equal weights
        deltas = [
            trainer.train(arrays, Site(partition=i, partitions=5), Settings(round=number)).deltas
            for i in range(5)
        ]
        arrays = {k: v + np.mean([d[k] for d in deltas], axis=0) for k, v in arrays.items()}
        arrays = {k: v.astype(np.float32) for k, v in arrays.items()}
    # four classes: guessing is 0.25
    assert trainer.test(arrays)["accuracy"] > 0.9


@pytest.mark.parametrize("plain", [True, False])
def test_the_client_app_answers_flower_where_its_device_allows_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plain: bool
) -> None:
    flwr = pytest.importorskip("flwr.app")
    identity = pytest.importorskip("flwr.supercore.task_identity").TaskIdentity
    for field in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(identity, field, 1)
    monkeypatch.setenv("UMBEL_HOME", str(tmp_path))
    if plain:
        (tmp_path / "policy.toml").write_text("[secure]\nrequired = false\n")
    name = f"answers_{plain}".lower()
    folder = create(name, Kind.NUMPY, tmp_path)
    app = _module(folder, f"{name}.client_app", monkeypatch).app
    task: Task = importlib.import_module(f"{name}.task").task
    sent = {k: flwr.Array(v) for k, v in load(task).arrays(seed=0).items()}
    context = flwr.Context(
        run_id=1,
        node_id=2,
        node_config={"partition-id": 0, "num-partitions": 2},
        state=flwr.RecordDict(),
        run_config={"lr": 0.1, "rounds": 1},
    )
    for kind in ("train", "evaluate"):
        content = flwr.RecordDict(
            {"arrays": flwr.ArrayRecord(sent), "config": flwr.ConfigRecord({"server-round": 1})}
        )
        answer = app(flwr.Message(content, dst_node_id=2, message_type=kind), context)
        if plain:
            assert answer.content["metrics"]["num-examples"] == 120
            assert ("arrays" in answer.content) == (kind == "train")
        else:
            assert answer.error.reason == "plain refused"


def test_the_server_app_is_one_that_flower_loads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = pytest.importorskip("flwr.serverapp").ServerApp
    folder = create("serves", Kind.NUMPY, tmp_path)
    assert isinstance(_module(folder, "serves.server_app", monkeypatch).app, server)


@pytest.mark.parametrize(
    "name", ["", "1st", "a b", "a--b", "../x", "-x", "class", "é", "a/b", "_a"]
)
def test_a_name_that_is_no_package_is_refused(name: str) -> None:
    with pytest.raises(SettingsError, match="letters and digits"):
        package_of(name)


@pytest.mark.parametrize("name", ["umbel", "flwr", "json", "numpy", "build", "Lib"])
def test_a_name_that_hides_a_module_is_refused(name: str) -> None:
    with pytest.raises(SettingsError, match="hides no other module"):
        package_of(name)


def test_a_dash_becomes_an_underscore() -> None:
    assert package_of("My-First-app2") == "my_first_app2"


def test_what_exists_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "work.txt").write_text("years")
    assert cli.main(["new", "mine"]) == 2
    assert "choose another name" in capsys.readouterr().err
    assert [path.name for path in tmp_path.rglob("*")] == ["mine", "work.txt"]


def test_a_failure_half_way_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pathlib.Path.write_text", full)
    with pytest.raises(OSError, match="No space left"):
        create("half", Kind.NUMPY, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_the_command_says_what_comes_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["new", "hello", "--kind", "torch"]) == 0
    assert "umbel simulate hello" in capsys.readouterr().out
    assert "nn.Sequential" in (tmp_path / "hello" / "hello" / "task.py").read_text()
