"""Where an app's code and settings are: the app directory and its pyproject.toml.

An app is a Flower app. `[tool.umbel] task` names the task as `package.module:attribute`, a `Task`
or a subclass of it; `task-torch` names the task of devices with a GPU, whose model has the same
named arrays. The settings of a run are `[tool.flwr.app.config]` (what Flower calls the
run-config) with `[tool.umbel]` over it.
"""

from __future__ import annotations

import importlib
import os
import re
import sys
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from .task import Task
from .trainer import TaskTrainer
from ..protocol.documents import read_toml
from ..protocol.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from types import ModuleType

    from .trainer import Trainer

Value = bool | int | float | str
_INT64 = range(-(2**63), 2**63)
COMPONENT = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")


@dataclass(frozen=True, slots=True)
class AppRef:
    """A directory to import from, and `package.module:attribute` of the task in it."""

    directory: Path
    component: str
    settings: Mapping[str, Value] = field(default_factory=dict, compare=False)
    """The run-config with `[tool.umbel]` over it; nested tables joined by dots."""

    def __post_init__(self) -> None:
        """Make the directory absolute and check the form of the component."""
        object.__setattr__(self, "directory", self.directory.resolve())
        if not COMPONENT.fullmatch(self.component):
            raise SettingsError("tool.umbel.task", "'package.module:attribute'", self.component)

    @classmethod
    def read(cls, directory: Path) -> AppRef:
        """Return the app of a directory, from its pyproject.toml.

        Raises:
            SettingsError: There is none, it is no TOML, or it names no task.
        """
        declared, own = read_tables(directory)
        task = _component(directory, "task", own.pop("task", None))
        own.pop("task-torch", None)
        return cls(directory, task, declared | own)

    def digest(self) -> str:
        """Return the SHA-256, hex, of what the directory has of code and settings, by its names.

        That is every `.py` and `.toml` that is not in a hidden folder or a virtual environment;
        data are not read.
        """
        found = sha256()
        for folder, below, names in os.walk(self.directory):
            own = "pyvenv.cfg" not in names
            below[:] = sorted(n for n in below if own and not n.startswith((".", "__pycache__")))
            for path in (Path(folder, name) for name in sorted(names)):
                if own and path.suffix in {".py", ".toml"} and path.is_file():
                    name, data = path.relative_to(self.directory).as_posix(), path.read_bytes()
                    found.update(f"{len(name.encode())} {len(data)} {name}".encode() + data)
        return found.hexdigest()

    def torch(self) -> AppRef:
        """Return where the app's torch task is, from its pyproject.toml.

        Raises:
            SettingsError: The file names none, or there is no such file.
        """
        _, own = read_tables(self.directory)
        name = _component(self.directory, "task-torch", own.get("task-torch"))
        return AppRef(self.directory, name, self.settings)


class Components(NamedTuple):
    """The halves of a Flower app, each `package.module:attribute`, and its simulation's size."""

    server: str
    client: str
    nodes: int | None
    """`num-supernodes` of the app's default federation; None where there is none."""


def read_components(directory: Path) -> Components:
    """Return what `[tool.flwr.app.components]` names.

    Raises:
        SettingsError: There is no pyproject.toml, it is no TOML, or names no two components.
    """
    document, file = _document(directory)
    found = _table(document, file, "tool", "flwr", "app", "components")
    for key in ("serverapp", "clientapp"):
        value = found.get(key)
        if not isinstance(value, str) or not COMPONENT.fullmatch(value):
            where = f"{file}: tool.flwr.app.components.{key}"
            raise SettingsError(where, "'package.module:attribute'", value)
    return Components(found["serverapp"], found["clientapp"], _nodes(document, file))


def is_plain_flower(directory: Path) -> bool:
    """Tell whether a directory holds a Flower app that names no umbel Task.

    Raises:
        SettingsError: There is no pyproject.toml, or it is no TOML.
    """
    document, file = _document(directory)
    components = _table(document, file, "tool", "flwr", "app", "components")
    return "task" not in _table(document, file, "tool", "umbel") and "serverapp" in components


def _nodes(document: Mapping[str, Any], file: Path) -> int | None:
    """Return how many SuperNodes the app's default federation simulates."""
    where = ("tool", "flwr", "federations")
    name = _table(document, file, *where).get("default")
    if not isinstance(name, str):
        return None
    value = _table(document, file, *where, name, "options").get("num-supernodes")
    if value is not None and (type(value) is not int or value < 1):
        path = ".".join((*where, name, "options", "num-supernodes"))
        raise SettingsError(f"{file}: {path}", "an integer of 1 or more", value)
    return value


def read_tables(directory: Path) -> tuple[dict[str, Value], dict[str, Value]]:
    """Return the run-config that an app declares, and its `[tool.umbel]`; keys joined by dots.

    Raises:
        SettingsError: There is no pyproject.toml, it is no TOML, or a value is no setting.
    """
    document, file = _document(directory)
    own = _table(document, file, "tool", "umbel")
    config = _table(document, file, "tool", "flwr", "app", "config")
    return (
        dict(_flat(config, f"{file}: tool.flwr.app.config", "")),
        dict(_flat(own, f"{file}: tool.umbel", "")),
    )


def _document(directory: Path) -> tuple[dict[str, Any], Path]:
    """Return an app's pyproject.toml, and where it is."""
    file = directory / "pyproject.toml"
    try:
        return read_toml(file.read_text(encoding="utf-8")), file
    except OSError as error:
        raise SettingsError(str(file), "an app's pyproject.toml", error.strerror) from error
    except ValueError as error:
        raise SettingsError(str(file), "valid TOML", str(error)) from error


def _component(directory: Path, key: str, value: object) -> str:
    """Return the value of a key of `[tool.umbel]` that names a task."""
    if isinstance(value, str) and COMPONENT.fullmatch(value):
        return value
    expected = "'package.module:attribute'"
    raise SettingsError(f"{directory / 'pyproject.toml'}: tool.umbel.{key}", expected, value)


def load_task(ref: AppRef) -> Task:
    """Import the app's module, in this process, and return its task.

    Raises:
        SettingsError: The attribute is missing or no task, or another app's module of that name is
            loaded already. What the module itself raises passes through.
    """
    return _task(load(ref), ref)


def load_trainer(ref: AppRef) -> Trainer:
    """Import the app's module and return what trains: its task's trainer, or one of its own.

    What is no task may bring a trainer by a method `umbel_trainer()`: a wrapped Flower app does.

    Raises:
        SettingsError: As `load_task`.
    """
    found = load(ref)
    own = getattr(found, "umbel_trainer", None)
    if own is not None and not isinstance(found, type):
        made: Trainer = own()
        return made
    return TaskTrainer(_task(found, ref))


def load(ref: AppRef) -> Any:
    """Import the app's module, in this process, and return what its component names.

    Raises:
        SettingsError: As `load_task`.
    """
    module_name, _, attribute = ref.component.partition(":")
    if str(ref.directory) not in sys.path:
        sys.path.insert(0, str(ref.directory))
    module = importlib.import_module(module_name)
    _check_origin(module, ref)
    found: Any = module
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise SettingsError(f"task {ref.component}", f"an attribute {part!r}", "none")
        found = getattr(found, part)
    return found


def _task(found: Any, ref: AppRef) -> Task:
    """Return what was found as a task."""
    if isinstance(found, type) and issubclass(found, Task):
        found = found()
    if not isinstance(found, Task):
        raise SettingsError(f"task {ref.component}", "a umbel.Task", type(found).__name__)
    return found


def _check_origin(module: ModuleType, ref: AppRef) -> None:
    """Raise unless the module lies in the app's directory."""
    file = getattr(module, "__file__", None)
    if file is None or not Path(file).resolve().is_relative_to(ref.directory):
        raise SettingsError(
            f"task {ref.component}",
            f"a module in {ref.directory}",
            file,
            "another package of this name comes first; rename the app's package",
        )


def _table(document: Mapping[str, Any], file: Path, *path: str) -> Mapping[str, Any]:
    """Return a nested table, empty if it is absent."""
    found: Any = document
    for key in path:
        found = found.get(key, {})
        if not isinstance(found, dict):
            raise SettingsError(f"{file}: {'.'.join(path)}", "a table", found)
    table: Mapping[str, Any] = found
    return table


def _flat(table: Mapping[str, Any], where: str, prefix: str) -> Iterator[tuple[str, Value]]:
    """Yield the values of a table, nested keys joined by dots; of a list its texts by commas."""
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _flat(value, where, f"{prefix}{key}.")
        elif isinstance(value, Value) and (type(value) is not int or value in _INT64):
            yield f"{prefix}{key}", value
        elif isinstance(value, list) and all(type(item) is str for item in value):
            yield f"{prefix}{key}", ",".join(value)
        else:
            expected = "a number, a text, a flag or a list of texts"
            raise SettingsError(f"{where}.{prefix}{key}", expected, value)
