"""`umbel.server_app(task, strategy)`: a Flower ServerApp that drives a run over sessions."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import TYPE_CHECKING

from flwr.serverapp import ServerApp

from .flower_train import train
from ..protocol.errors import SettingsError
from ..strategies.app import AppRef
from ..strategies.flower_fedavg import FedAvg
from ..strategies.task import Task

if TYPE_CHECKING:
    from collections.abc import Mapping

    from flwr.app import Context
    from flwr.serverapp import Grid

    from .run_config import Value


def server_app(task: Task | type[Task], strategy: FedAvg | None = None) -> ServerApp:
    """Return the ServerApp of a task.

    The run's settings are Flower's run-config over the app's `[tool.umbel]`.

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
        config: dict[str, Value] = dict(context.run_config)
        train(
            grid,
            strategy or FedAvg(),
            task=learned,
            config=config,
            own=own_settings(type(learned)),
        )

    return app


def own_settings(defined: type) -> Mapping[str, Value]:
    """Return what `[tool.umbel]` of the app that defines this class says; empty if none does."""
    file = Path(inspect.getfile(defined)).resolve()
    for folder in file.parents:
        if (folder / "pyproject.toml").is_file():
            try:
                return AppRef.read(folder).settings
            except SettingsError:
                return {}
    return {}
