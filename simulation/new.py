"""The command `umbel new`: a Flower app of one's own, from templates that ship with the package.

The app lists flwr and what its model needs, never umbel: both are the platform's, and a bundle does
not carry its platform. Templates use `string.Template`: `$name` and `$package`.
"""

from __future__ import annotations

import keyword
import re
import shutil
import sys
import tempfile
from enum import StrEnum
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Annotated

import typer

from ..protocol.errors import SettingsError


class Kind(StrEnum):
    """What the model is written in."""

    NUMPY = "numpy"
    TORCH = "torch"


_DEPENDENCIES = {Kind.NUMPY: '"numpy>=1.26"', Kind.TORCH: '"torch>=2.6"'}
# A package of these names would hide a module that the app itself imports, or is left out of a
# Flower bundle without notice.
_TAKEN = sys.stdlib_module_names | {"umbel", "flwr", "numpy", "torch", "lib", "lib64", "build"}
_NAME = re.compile(r"[a-z][a-z0-9]*([-_][a-z0-9]+)*", re.IGNORECASE)

app = typer.Typer(add_completion=False)


@app.command()
def new(
    name: Annotated[str, typer.Argument(help="Name of the app and of its folder.")],
    kind: Annotated[
        Kind, typer.Option("--kind", help="What the model is written in.")
    ] = Kind.NUMPY,
) -> None:
    """Start an app: a folder with a task, its data and its settings.

    Example: umbel new hello && umbel simulate hello
    """
    folder = create(name, kind, Path.cwd())
    typer.echo(f"{folder.name}/ is ready: next, `umbel simulate {folder.name}`")


def create(name: str, kind: Kind, where: Path) -> Path:
    """Write the app `name` into a new folder of `where` and return that folder.

    The folder appears whole or not at all: it is written beside its place and then renamed.

    Raises:
        SettingsError: The name is no package name, or the folder exists already.
    """
    package = package_of(name)
    target = where / name
    if target.exists():
        raise SettingsError("NAME", "a folder that does not exist", name, "choose another name")
    scratch = Path(tempfile.mkdtemp(prefix=".umbel-new-", dir=where))
    try:
        for path, text in contents(name, package, kind).items():
            file = scratch / "app" / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
        (scratch / "app").rename(target)
    finally:
        shutil.rmtree(scratch)
    return target


def package_of(name: str) -> str:
    """Return the Python package of an app: its name in lower case, with `_` for `-`."""
    package = name.replace("-", "_").lower()
    if not _NAME.fullmatch(name) or keyword.iskeyword(package):
        raise SettingsError("NAME", "letters and digits, joined by single - or _", name)
    if package in _TAKEN:
        raise SettingsError("NAME", "a name that hides no other module", name, "choose another")
    return package


def contents(name: str, package: str, kind: Kind) -> dict[str, str]:
    """Return the text of each file of the app by its path inside the app's folder."""
    sources = {
        "pyproject.toml": "pyproject.toml",
        "README.md": "README.md",
        f"{package}/task.py": f"task_{kind}.py",
        f"{package}/client_app.py": "client_app.py",
        f"{package}/server_app.py": "server_app.py",
    }
    words = {"name": name, "package": package, "dependencies": _DEPENDENCIES[kind]}
    folder = files(__package__) / "templates"
    texts = {
        path: Template((folder / f"{source}.tmpl").read_text("utf-8")).substitute(words)
        for path, source in sources.items()
    }
    return texts | {f"{package}/__init__.py": f'"""The Flower app {name}."""\n'}
