"""The ClientApp: trains and evaluates on this client's own digits."""

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from flower_digits.task import fit, load_data, test

app = ClientApp()


@app.train()
def train(msg: Message, context: Context) -> Message:
    """Train the model that came."""
    images, labels, _, _ = load_data(*_partition(context))
    model, loss = fit(
        msg.content["arrays"].to_numpy_ndarrays(),
        images,
        labels,
        learning_rate=float(context.run_config["learning-rate"]),
        epochs=int(context.run_config["local-epochs"]),
    )
    metrics = MetricRecord({"loss": loss, "num-examples": len(labels)})
    return Message(RecordDict({"arrays": ArrayRecord(model), "metrics": metrics}), reply_to=msg)


@app.evaluate()
def evaluate(msg: Message, context: Context) -> Message:
    """Test the model that came."""
    _, _, images, labels = load_data(*_partition(context))
    loss, accuracy = test(msg.content["arrays"].to_numpy_ndarrays(), images, labels)
    metrics = MetricRecord({"loss": loss, "accuracy": accuracy, "num-examples": len(labels)})
    return Message(RecordDict({"metrics": metrics}), reply_to=msg)


def _partition(context: Context) -> tuple[int, int]:
    config = context.node_config
    return int(config["partition-id"]), int(config["num-partitions"])
