"""Flower's SuperNode and SuperExec without what only a server needs of it: `flower_slim COMMAND …`.

Both run for months on a device and import Flower's database, which only its SuperLink opens:
SQLAlchemy and Alembic, a quarter of their memory. The package `flwr.supercore.cli` imports, beside
SuperExec, three programs that a device never runs, and the SuperLink's state with them. Here the
database's module is replaced by one that refuses, and the two packages by empty ones.

The one file that knows the private names of flwr 1.42 for this. With another version it leaves
everything as it is.
"""

from __future__ import annotations

import importlib
import importlib.util
import stat
import sys
import types
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from ..protocol.errors import StateError

if TYPE_CHECKING:
    from pathlib import Path

FLOWER = "1.42."
SUPERNODE, SUPEREXEC = "flower-supernode", "flower-superexec"
PLACES = {
    SUPERNODE: ("flwr.supernode.cli", "flower_supernode"),
    SUPEREXEC: ("flwr.supercore.cli", "flower_superexec"),
}
"""Package of each command, and its name there, of module and function alike."""
_DATABASE = "flwr.supercore.object_store.sql_object_store"


class SqlObjectStore:
    """In place of the class that keeps objects in a database, which no device does."""

    def __init__(self, *_: object) -> None:
        """Refuse."""
        raise StateError("flower_slim", "a device, which keeps objects in memory", "a database")


def command(name: str) -> Any:
    """Return the function of a command of Flower's, imported with as little as it needs."""
    package, function = PLACES[name]
    if version("flwr").startswith(FLOWER):
        database = types.ModuleType(_DATABASE)
        database.SqlObjectStore = SqlObjectStore  # type: ignore[attr-defined]
        sys.modules[_DATABASE] = database
        spec = importlib.util.find_spec(package)
        if spec is not None and spec.submodule_search_locations:
            empty = types.ModuleType(package)
            empty.__path__ = list(spec.submodule_search_locations)
            sys.modules[package] = empty
    return getattr(importlib.import_module(f"{package}.{function}"), function)


def write_superexec(directory: Path, python: str = sys.executable) -> Path:
    """Write an executable `flower-superexec` into a directory that comes first on PATH.

    Args:
        directory: Exists.
        python: The interpreter with umbel and flwr; a path without quotes.
    """
    file = directory / SUPEREXEC
    text = f"#!/bin/sh\nexec '{python}' -P -m {__spec__.name} {SUPEREXEC} \"$@\"\n"
    file.write_text(text, encoding="utf-8")
    file.chmod(stat.S_IRWXU)
    return file


if __name__ == "__main__":
    sys.argv = sys.argv[1:]
    sys.exit(command(sys.argv[0])())
