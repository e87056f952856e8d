"""An app's pyproject.toml, and the task it names."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from umbel.protocol.errors import SettingsError
from umbel.strategies.app import AppRef, load_task, load_trainer

CODE = """
from umbel.strategies.task import Task
class Mine(Task):
    class Inner(Task):
        pass
mine = Mine()
mine.epochs = 4
number = 3
class Wrapped:
    def umbel_trainer(self):
        return self
wrapped = Wrapped()
"""


@pytest.fixture
def app(tmp_path: Path) -> Iterator[Path]:
    """An app directory; its package is forgotten again afterwards."""
    (tmp_path / "app_under_test").mkdir()
    (tmp_path / "app_under_test" / "task.py").write_text(CODE)
    path, modules = list(sys.path), set(sys.modules)
    yield tmp_path
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        del sys.modules[name]


def _write(app: Path, text: str) -> Path:
    (app / "pyproject.toml").write_text(text)
    return app


def test_settings_are_the_run_config_with_our_table_over_it(app: Path) -> None:
    ref = AppRef.read(
        _write(
            app,
            "[tool.flwr.app.config]\nlr = 0.1\nrounds = 3\nmodel.width = 8\n[tool.umbel]\n"
            'task = "app_under_test.task:Mine"\nrounds = 5\n',
        )
    )
    assert ref.directory == app.resolve()
    assert ref.component == "app_under_test.task:Mine"
    assert ref.settings == {"lr": 0.1, "rounds": 5, "model.width": 8}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", r"pyproject\.toml: tool\.umbel\.task: expected 'package\.module:attribute', got None"),
        ("[tool.umbel]\ntask = 3\n", "got 3"),
        ('[tool.umbel]\ntask = "no colon"\n', "got 'no colon'"),
        ('[tool.umbel]\ntask = "../up:x"\n', "got '../up:x'"),
        ("[tool", "expected valid TOML"),
        ("tool = 3\n", r"tool\.umbel: expected a table"),
        ('[tool.umbel]\ntask = "a:b"\nlist = [1]\n', r"tool\.umbel\.list: expected a number"),
    ],
)
def test_a_wrong_file_names_the_place(app: Path, text: str, says: str) -> None:
    with pytest.raises(SettingsError, match=says):
        AppRef.read(_write(app, text))


def test_a_list_of_texts_is_one_text(app: Path) -> None:
    text = '[tool.umbel]\ntask = "app_under_test.task:Mine"\npause-on = ["site", "accuracy"]\n'
    assert AppRef.read(_write(app, text)).settings == {"pause-on": "site,accuracy"}


def test_the_torch_task_is_named_beside_the_task(app: Path) -> None:
    text = (
        '[tool.umbel]\ntask = "app_under_test.task:Mine"\ntask-torch = "app_under_test.task:mine"\n'
    )
    ref = AppRef.read(_write(app, text + "rounds = 5\n"))
    assert ref.settings == {"rounds": 5}
    assert ref.torch() == AppRef(app, "app_under_test.task:mine")
    assert ref.torch().settings == {"rounds": 5}
    assert AppRef(app, "app_under_test.task:Mine").torch() == ref.torch()


@pytest.mark.parametrize(
    ("value", "got"), [("", "None"), ('task-torch = "no colon"', "'no colon'")]
)
def test_an_app_without_a_torch_task_is_named(app: Path, value: str, got: str) -> None:
    ref = AppRef.read(_write(app, f'[tool.umbel]\ntask = "a:b"\n{value}\n'))
    says = r"pyproject\.toml: tool\.umbel\.task-torch: expected 'package\.module:attribute', got "
    with pytest.raises(SettingsError, match=says + got):
        ref.torch()


def test_no_file_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"expected an app's pyproject\.toml, got 'No such"):
        AppRef.read(tmp_path)


def test_a_class_is_made_and_an_instance_is_taken(app: Path) -> None:
    made = load_task(AppRef(app, "app_under_test.task:Mine"))
    taken = load_task(AppRef(app, "app_under_test.task:mine"))
    assert type(made) is type(taken)
    assert (made.epochs, taken.epochs) == (1, 4)
    assert type(load_task(AppRef(app, "app_under_test.task:Mine.Inner"))).__name__ == "Inner"


@pytest.mark.parametrize(
    ("attribute", "says"),
    [("Yours", "an attribute 'Yours', got 'none'"), ("number", "a umbel.Task, got 'int'")],
)
def test_what_is_no_task_is_named(app: Path, attribute: str, says: str) -> None:
    with pytest.raises(SettingsError, match=says):
        load_task(AppRef(app, f"app_under_test.task:{attribute}"))


def test_another_package_of_the_name_is_not_mistaken_for_the_app(app: Path, tmp_path: Path) -> None:
    load_task(AppRef(app, "app_under_test.task:Mine"))
    other = tmp_path / "other"
    (other / "app_under_test").mkdir(parents=True)
    (other / "app_under_test" / "task.py").write_text(CODE)
    with pytest.raises(SettingsError, match=r"a module in .*/other, got"):
        load_task(AppRef(other, "app_under_test.task:Mine"))
    with pytest.raises(SettingsError, match=r"a module in .*/other, got"):
        load_task(AppRef(other, "json.decoder:JSONDecoder"))


def test_what_is_no_task_may_bring_a_trainer(app: Path) -> None:
    found = load_trainer(AppRef(app, "app_under_test.task:wrapped"))
    assert type(found).__name__ == "Wrapped"
    for name, kind in (("number", "int"), ("Wrapped", "type")):
        with pytest.raises(SettingsError, match=f"expected a umbel.Task, got '{kind}'"):
            load_trainer(AppRef(app, f"app_under_test.task:{name}"))
