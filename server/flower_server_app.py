"""`umbel.server_app(task, strategy)`: a Flower ServerApp that drives a run over sessions."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import TYPE_CHECKING

from flwr.serverapp import ServerApp

from .flower_app_settings import merged, tables_of
from .flower_train import train
from ..protocol.errors import SettingsError
from ..strategies.flower_fedavg import FedAvg
from ..strategies.task import Task

if TYPE_CHECKING:
    from flwr.app import Context
    from flwr.serverapp import Grid
    from flwr.serverapp.strategy import Strategy

    from .run_config import Value


def server_app(task: Task | type[Task], strategy: Strategy | None = None) -> ServerApp:
    """Return the ServerApp of a task.

    The run's settings are the overrides of Flower's run-config, then the app's `[tool.umbel]`, then
    what the app declares as its run-config.

    Args:
        task: What is learned, an instance or a class without arguments.
        strategy: Whose server step is taken; `umbel.FedAvg()` by default, and what
            the settings say.

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
        train(grid, strategy or FedAvg(), task=task, config=config)

    return app


def _tables(defined: type) -> tuple[dict[str, Value], dict[str, Value]]:
    """Return the two tables of the app that defines this class; empty where no file is found."""
    for folder in Path(inspect.getfile(defined)).resolve().parents:
        if (folder / "pyproject.toml").is_file():
            return tables_of(folder)
    return {}, {}
