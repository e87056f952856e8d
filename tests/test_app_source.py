"""The name under which a child finds a task or an app."""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

import pytest

from umbel.protocol.errors import SettingsError
from umbel.strategies.app import load_task
from umbel.strategies.app_source import source_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TASK = """
import umbel

class Plain(umbel.Task):
    def model(self):
        return umbel.LogisticRegression(2, 2)

class Sized(Plain):
    def __init__(self, size=1):
        self.size = size

class Outer:
    class Inner(Plain):
        pass

named = Sized(3)

def inside():
    class Local(Plain):
        pass
    return Local
"""
OTHER = "from .task import Sized\nhere = Sized(4)\nlost = [Sized(5)]\n"


@pytest.fixture
def modules(tmp_path: Path) -> Iterator[tuple[Path, Any, Any]]:
    """An installed bundle, imported."""
    package = tmp_path / "sourced"
    package.mkdir()
    (package / "__init__.py").write_text("", "utf-8")
    (package / "task.py").write_text(TASK, "utf-8")
    (package / "other.py").write_text(OTHER, "utf-8")
    sys.path.insert(0, str(tmp_path))
    try:
        task = importlib.import_module("sourced.task")
        yield tmp_path, task, importlib.import_module("sourced.other")
    finally:
        sys.path.remove(str(tmp_path))
        for name in [name for name in sys.modules if name.split(".")[0] == "sourced"]:
            del sys.modules[name]


def test_classes_and_named_objects_are_found(modules: tuple[Path, Any, Any]) -> None:
    root, task, other = modules
    cases = {
        "sourced.task:Plain": task.Plain,
        "sourced.task:Outer.Inner": task.Outer.Inner,
        "sourced.task:named": task.named,
        "sourced.other:here": other.here,
    }
    for component, found in cases.items():
        ref = source_of(found)
        assert (ref.directory, ref.component) == (root, component)
        loaded = load_task(ref)
        assert loaded is found or type(loaded) is found


def test_an_object_without_arguments_is_its_class(modules: tuple[Path, Any, Any]) -> None:
    assert source_of(modules[1].Plain()).component == "sourced.task:Plain"


def test_what_has_no_name_is_refused(modules: tuple[Path, Any, Any]) -> None:
    _, task, other = modules
    with pytest.raises(SettingsError, match=r"under a name, got 'Sized\(...\)'; name it"):
        source_of(other.lost[0])
    with pytest.raises(SettingsError, match="define it at the top level"):
        source_of(task.inside())
    replaced = task.Plain
    task.Plain = task.Sized
    with pytest.raises(SettingsError, match="a name in a module"):
        source_of(replaced)


def test_a_package_and_a_single_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "single.py").write_text(TASK, "utf-8")
    (tmp_path / "whole").mkdir()
    (tmp_path / "whole" / "__init__.py").write_text(TASK, "utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("single", "whole"):
        ref = source_of(importlib.import_module(name).Plain)
        assert (ref.directory, ref.component) == (tmp_path, f"{name}:Plain")
        monkeypatch.delitem(sys.modules, name)
