"""A plain Flower app (Message API, its own FedAvg ServerApp) that knows nothing of Umbel."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

PYPROJECT = """
[project]
name = "hello"
version = "1.0.0"
description = "adds one to a thousand numbers"
license = "Apache-2.0"
dependencies = ["flwr>=1.42,<1.43"]
[tool.flwr.app]
publisher = "me"
[tool.flwr.app.components]
serverapp = "hello.server_app:app"
clientapp = "hello.client_app:app"
[tool.flwr.app.config]
num-server-rounds = 1
sleep = 0
"""

SERVER = """
import numpy as np
from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    result = FedAvg(fraction_evaluate=0.0).start(
        grid=grid,
        initial_arrays=ArrayRecord([np.zeros(1000, np.float32)]),
        num_rounds=context.run_config["num-server-rounds"],
        timeout=120,
    )
    print("final", float(result.arrays["0"].numpy()[0]))
"""

CLIENT = """
import time

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


@app.train()
def train(msg: Message, context: Context) -> Message:
    if context.node_config["partition-id"] == 0:
        time.sleep(context.run_config["sleep"])
    weights = [a.numpy() + 1 for a in msg.content["arrays"].values()]
    metrics = MetricRecord({"num-examples": 10})
    return Message(RecordDict({"arrays": ArrayRecord(weights), "metrics": metrics}), reply_to=msg)
"""


def hello(folder: Path) -> Path:
    """Write the app into `folder`/hello and return that folder."""
    app = folder / "hello"
    (app / "hello").mkdir(parents=True)
    (app / "pyproject.toml").write_text(PYPROJECT)
    (app / "hello" / "__init__.py").write_text("")
    (app / "hello" / "server_app.py").write_text(SERVER)
    (app / "hello" / "client_app.py").write_text(CLIENT)
    return app
