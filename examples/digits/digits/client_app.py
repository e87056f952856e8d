"""The Flower ClientApp of digits: plain Flower messages, which the server can read."""

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from umbel import Site
from umbel.strategies.trainer import Settings, TrainResult, load

from .task import Digits

app = ClientApp()
trainer = load(Digits())


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train the model that came on this node's examples and answer the new one."""
    received = _arrays(message)
    settings = Settings.of({**context.run_config, **message.content["config"]})
    result = trainer.train(received, _site(context), settings)
    moved = {name: received[name] + delta for name, delta in result.deltas.items()}
    record = ArrayRecord({name: Array(array) for name, array in (received | moved).items()})
    return _answer(message, result, "train", result.weight, {"arrays": record})


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Evaluate the model that came on this node's examples."""
    result = trainer.evaluate(_arrays(message), _site(context))
    return _answer(message, result, "eval", int(result.metrics["eval.examples"]), {})


def _arrays(message: Message) -> dict[str, np.ndarray]:
    return {name: array.numpy() for name, array in message.content["arrays"].items()}


def _site(context: Context) -> Site:
    node = context.node_config
    return Site(
        partition=int(node["partition-id"]), partitions=int(node["num-partitions"]), config=node
    )


def _answer(
    message: Message, result: TrainResult, phase: str, weight: int, records: dict[str, ArrayRecord]
) -> Message:
    loss = result.metrics[f"{phase}.loss"] / result.metrics[f"{phase}.examples"]
    metrics = MetricRecord({"num-examples": weight, f"{phase}_loss": loss})
    return Message(RecordDict({"metrics": metrics, **records}), reply_to=message)
