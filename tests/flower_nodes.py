"""Nodes of a SuperLink in memory (flower_superlink.py) that train, and the means that are due."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from umbel.tests.flower_superlink import SuperLink

Arrays = dict[str, "NDArray[Any]"]


def record_of(arrays: Arrays) -> ArrayRecord:
    return ArrayRecord({name: Array(array) for name, array in arrays.items()})


def arrays_of(record: ArrayRecord | None) -> Arrays:
    assert record is not None
    return {name: array.numpy() for name, array in record.items()}


def trained(arrays: Arrays, number: int) -> Arrays:
    """Return what node `number` makes of a model."""
    rng = np.random.default_rng(number)
    return {
        name: a
        if a.dtype.kind in "biV"
        else np.asarray(a + rng.normal(size=a.shape)).astype(a.dtype)
        for name, a in arrays.items()
    }


def content_of(message: Message, number: int) -> RecordDict:
    metrics = MetricRecord({"num-examples": 10 * (number + 1), "loss": 1.0 / (number + 1)})
    if message.metadata.message_type == "evaluate":
        return RecordDict({"metrics": metrics})
    arrays = trained(arrays_of(message.content.array_records["arrays"]), number)
    return RecordDict({"arrays": record_of(arrays), "metrics": metrics})


class Nodes:
    """Answer for all nodes when the ServerApp looks for replies; `special` do as the test says."""

    def __init__(
        self, superlink: SuperLink, special: dict[int, Callable[[Message], None]] | None = None
    ) -> None:
        self.superlink, self.special = superlink, special or {}
        self.looks = 0
        superlink.before = self

    def __call__(self, method: str, _request: object) -> None:
        """Do what nodes do before a request of the ServerApp is answered."""
        if method != "PullMessages":
            return
        self.looks += 1
        for number, node in enumerate(self.superlink.nodes):
            for message in self.superlink.waiting(node):
                if number in self.special and message.metadata.message_type == "train":
                    self.special[number](message)
                else:
                    reply = Message(content_of(message, number), reply_to=message)
                    self.superlink.answer(reply)


MODEL: Arrays = {
    "conv": np.linspace(-1.0, 1.0, 15_000).astype(np.float32).reshape(100, 150),
    "head": np.ones((3, 4), np.float32),
    "tail": np.asfortranarray(np.arange(12.0, dtype=np.float32).reshape(3, 4)),
    "empty": np.zeros((0, 2), np.float32),
    "scalar": np.array(0.5),
}
CHUNKS: Arrays = {**MODEL, "conv": np.linspace(-1.0, 1.0, 1_500_000).astype(np.float32)}
"""One array is larger than a chunk."""


def is_the_mean_of(record: ArrayRecord, numbers: Sequence[int]) -> None:
    found = arrays_of(record)
    for name, array in MODEL.items():
        parts = [(n + 1) * trained(MODEL, n)[name].astype(np.float64) for n in numbers]
        mean = np.sum(parts, axis=0) / sum(n + 1 for n in numbers)
        np.testing.assert_allclose(found[name], mean.astype(array.dtype), rtol=1.2e-7)
