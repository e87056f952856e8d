"""Flower apps for the tests of the simulator: FedAvg, ClientApps of numpy, the plain loop."""

from __future__ import annotations

import os
import random
import signal
from typing import TYPE_CHECKING, Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg, Result

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

Arrays = list["NDArray[Any]"]


def records(message: Message) -> Any:
    """Return what a message holds, of which only the test knows the kinds."""
    return message.content


def initial() -> Arrays:
    """Return a small model of two arrays."""
    return [np.arange(6, dtype=np.float32).reshape(2, 3) / 7, np.array([0.5, -0.25])]


def step(model: Arrays, node: int) -> Arrays:
    """Return what a node makes of a model: something that depends on both, in float32."""
    first = model[0] * np.float32(0.9) + np.float32(node + 1) / np.float32(3)
    return [first.astype(np.float32), model[1] - 0.1 * (node + 1)]


def weight(node: int) -> int:
    """Return how many examples a node has."""
    return 10 + 7 * node


def trained(message: Message, context: Context) -> Message:
    """Answer as an app does."""
    node = int(context.node_config["partition-id"])
    model = step(records(message)["arrays"].to_numpy_ndarrays(), node)
    metrics = MetricRecord({"loss": 1.0 / (node + 1), "num-examples": weight(node)})
    return Message(RecordDict({"arrays": ArrayRecord(model), "metrics": metrics}), reply_to=message)


def looped(rounds: int, nodes: int) -> Arrays:
    """Return the model after rounds of weighted means, in a plain loop."""
    model = initial()
    for _ in range(rounds):
        new = [step(model, node) for node in range(nodes)]
        total = sum(weight(node) for node in range(nodes))
        model = [
            np.sum([m[i] * (weight(n) / total) for n, m in enumerate(new)], axis=0)
            for i in range(2)
        ]
    return model


def client_app(train: Callable[[Message, Context], Message] = trained) -> ClientApp:
    """Return an app that trains so, and says of a model only its sum."""
    app = ClientApp()
    app.train()(train)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        total = float(sum(a.sum() for a in records(message)["arrays"].to_numpy_ndarrays()))
        metrics = MetricRecord({"sum": total, "num-examples": weight(context.node_id)})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    return app


def server_app(results: list[Result], rounds: int = 3, **strategy: Any) -> ServerApp:
    """Return an app that runs FedAvg and keeps what it returns."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        chosen = FedAvg(**{"fraction_evaluate": 0.0, **strategy})
        results.append(chosen.start(grid, ArrayRecord(initial()), num_rounds=rounds))

    return app


def mutating(message: Message, context: Context) -> Message:
    """Answer, and leave the message in ruins."""
    reply = trained(message, context)
    content = records(message)
    for array in content["arrays"].values():
        array.data = b"nothing"
    content["arrays"]["0"].shape = ()
    del content["arrays"]["1"]
    content["config"]["server-round"] = -1
    content["mine"] = ConfigRecord({"left": "behind"})
    context.run_config["mine"] = 1
    return reply


def counting(message: Message, context: Context) -> Message:
    """Answer how often this node was called, from its state."""
    known: Any = context.state.get("calls", MetricRecord({"count": 0}))
    count = known["count"] + 1
    context.state["calls"] = MetricRecord({"count": count})
    context.state["model"] = ArrayRecord([np.full(5000, count, np.float32)])
    if message.content["config"].get("die") == [context.node_id, count]:
        os.kill(os.getpid(), signal.SIGKILL)
    metrics = MetricRecord({"count": count, "num-examples": 1})
    return Message(
        RecordDict({"arrays": message.content["arrays"], "metrics": metrics}), reply_to=message
    )


def drawing(message: Message, _context: Context) -> Message:
    """Answer with what the global generators draw."""
    drawn = np.array([random.random(), np.random.random()])  # noqa: S311 - what is tested
    metrics = MetricRecord({"num-examples": 1})
    return Message(
        RecordDict({"arrays": ArrayRecord([drawn]), "metrics": metrics}), reply_to=message
    )
