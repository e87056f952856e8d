"""The settings of a run, of what an app says in its two tables and of what its caller says.

`[tool.umbel]` stands over `[tool.flwr.app.config]`, and below an override. Flower hands an app its
run-config with the overrides in it: what differs there from what the app declares is one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from flwr.common.config import get_project_dir

from ..strategies.app import read_tables

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from flwr.serverapp import Grid

    from .run_config import Value

NAMES = ("task", "task-torch")
"""Keys of `[tool.umbel]` that name something and set nothing."""


def merged(
    config: Mapping[str, Value], declared: Mapping[str, Value], own: Mapping[str, Value]
) -> dict[str, Value]:
    """Return the settings of a run: overrides, then `[tool.umbel]`, then the declared run-config.

    Args:
        config: What the caller says; Flower's run-config, say, with overrides in it.
        declared: `[tool.flwr.app.config]`, so that an override can be told from it.
        own: `[tool.umbel]`.
    """
    overrides = {k: v for k, v in config.items() if k not in declared or declared[k] != v}
    return {**config, **own, **overrides}


def tables_of(folder: Path) -> tuple[dict[str, Value], dict[str, Value]]:
    """Return the two tables of the app in a folder; empty where it has no pyproject.toml.

    Raises:
        SettingsError: The file is no TOML, or a value is no setting.
    """
    if not (folder / "pyproject.toml").is_file():
        return {}, {}
    declared, own = read_tables(folder)
    return declared, {k: v for k, v in own.items() if k not in NAMES}


def of_running_app(grid: Grid) -> tuple[dict[str, Value], dict[str, Value]]:
    """Return the two tables of the app whose ServerApp this is, as Flower has installed it."""
    run = grid.run
    if run.fab_id.count("/") != 1 or not run.fab_hash:
        return {}, {}
    return tables_of(get_project_dir(run.fab_id, run.fab_version, run.fab_hash))
