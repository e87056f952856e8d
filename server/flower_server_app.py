"""`umbel.server_app(task, strategy)`: a Flower ServerApp that drives a run over sessions."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import TYPE_CHECKING

from flwr.serverapp import ServerApp

from .flower_train import train
from ..protocol.errors import SettingsError
from ..strategies.app import read_tables
from ..strategies.flower_fedavg import FedAvg
from ..strategies.task import Task

NAMES = ("task", "task-torch")
"""Keys of `[tool.umbel]` that name something and set nothing."""

if TYPE_CHECKING:
    from collections.abc import Mapping

    from flwr.app import Context
    from flwr.serverapp import Grid

    from .run_config import Value


def server_app(task: Task | type[Task], strategy: FedAvg | None = None) -> ServerApp:
    """Return the ServerApp of a task.

    The run's settings are the overrides of Flower's run-config, then the app's `[tool.umbel]`, then
    what the app declares as its run-config.

    Args:
        task: What is learned, an instance or a class without arguments.
        strategy: Whose server step is taken; `umbel.FedAvg()` by default.

    Raises:
        SettingsError: `task` is no task.
    """
    learned = task() if isinstance(task, type) else task
    if not isinstance(learned, Task):
        raise SettingsError("umbel.server_app", "a umbel.Task", type(learned).__name__)
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        config = merged(dict(context.run_config), *_tables(type(learned)))
        train(grid, strategy or FedAvg(), task=learned, config=config)

    return app


def merged(
    config: Mapping[str, Value], declared: Mapping[str, Value], own: Mapping[str, Value]
) -> dict[str, Value]:
    """Return the settings of a run: overrides, then `[tool.umbel]`, then the declared run-config.

    Args:
        config: Flower's run-config: what the app declares, with the caller's overrides in it.
        declared: `[tool.flwr.app.config]`, so that an override can be told from it.
        own: `[tool.umbel]`.
    """
    overrides = {k: v for k, v in config.items() if k not in declared or declared[k] != v}
    return {**config, **own, **overrides}


def _tables(defined: type) -> tuple[dict[str, Value], dict[str, Value]]:
    """Return the two tables of the app that defines this class; empty where no file is found."""
    for folder in Path(inspect.getfile(defined)).resolve().parents:
        if (folder / "pyproject.toml").is_file():
            declared, own = read_tables(folder)
            return declared, {k: v for k, v in own.items() if k not in NAMES}
    return {}, {}
