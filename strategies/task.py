"""One definition of a learning problem: what simulation, numpy devices and torch silos all run.

A user writes one subclass of `Task`: model, data, loss. Nothing here knows a framework: what kind
of model `model()` returns decides (`trainer.py`) whether numpy or torch does the work.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from .metrics import Count, Metrics, Sum, standard
from .optimizers import SGD, Optimizer
from ..protocol.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    from .trainer import Local


def stream(seed: int, purpose: str, round_: int = 0, client: int = 0) -> np.random.Philox:
    """Return the counter-based stream of one purpose, independent of every other.

    The Philox key is the first half of SHA-256 over the label and the four values, each on its own
    line, so no two of them share a stream and nothing depends on the order of use.
    """
    text = f"umbel/stream/1\n{seed}\n{purpose}\n{round_}\n{client}\n"
    key = np.frombuffer(hashlib.sha256(text.encode()).digest()[:16], "<u8")
    return np.random.Philox(key=key)


def order(bits: np.random.Philox, count: int) -> NDArray[np.intp]:
    """Return a permutation of `range(count)`: the stable sort of raw 64-bit words.

    Not `Generator.permutation`, whose algorithm numpy may change between releases.
    """
    return np.argsort(bits.random_raw(count), kind="stable")


def batches(local: Local, count: int) -> Iterator[NDArray[np.intp]]:
    """Yield the rows of every batch, each epoch in its own order; the last may be short."""
    bits = stream(local.seed, "shuffle", local.round, local.client)
    for _ in range(local.epochs):
        rows = order(bits, count)
        for start in range(0, count, local.batch_size):
            yield rows[start : start + local.batch_size]


@dataclass(frozen=True, slots=True)
class Site:
    """Where a client's data comes from: a partition in a simulation, a directory on a device."""

    partition: int | None = None
    """Index in `range(partitions)` in a simulation, else None."""
    partitions: int | None = None
    config: Mapping[str, bool | int | float | str] = field(default_factory=dict)
    """The node's own configuration."""
    data: tuple[Path, ...] = ()
    """What the device's policy opens to the task: the roots of `limits.data_roots`."""
    client: int | None = None
    """Number that keys this client's random streams; None is the partition, or 0."""
    seed: int = 0
    round: int = 0
    settings: Mapping[str, bool | int | float | str] = field(default_factory=dict)
    """The config of this round, as the server gave it to everybody."""

    def __post_init__(self) -> None:
        """Check that the partition is one of the partitions."""
        if self.partition is None:
            return
        if self.partitions is None or not 0 <= self.partition < self.partitions:
            raise SettingsError(
                "site.partition", f"an index below {self.partitions} partitions", self.partition
            )

    @property
    def index(self) -> int:
        """The client's number in random streams."""
        return self.client if self.client is not None else self.partition or 0

    @property
    def rng(self) -> np.random.Generator:
        """A generator for the task's own use, keyed by seed, round and client."""
        return np.random.Generator(stream(self.seed, "site", self.round, self.index))


class Task:
    """What is learned, from what, and how one client trains. Subclass it.

    `train_data` and `test_data` return a pair `(inputs, targets)` of arrays or tensors with one
    row an example, or a map-style `torch.utils.data.Dataset`.
    """

    loss: str | Callable[..., Any] = "cross_entropy"
    """`cross_entropy`, `mse`, or a function. Torch: `(model, batch) -> mean loss`; numpy arrays:
    `(arrays, batch) -> (mean loss, gradients by name)`."""
    optimizer: Optimizer = SGD(lr=0.1)
    epochs: int = 1
    batch_size: int = 16
    metrics: Mapping[str, Sum | Count] | None = None
    """What `evaluate` returns; None declares examples, loss and, for classes, correct."""

    def model(self) -> Any:
        """Return a fresh model: an `nn.Module`, a model of `numpy_models`, or named arrays."""
        raise NotImplementedError(f"{type(self).__name__} defines no model()")

    def train_data(self, site: Site) -> Any:
        """Return the examples of one client."""
        raise NotImplementedError(f"{type(self).__name__} defines no train_data(site)")

    def test_data(self) -> Any:
        """Return the server's own examples, or None if it has none.

        Many of them are given to `evaluate` in parts, to several processes at once (testing.py).
        """
        return None

    def evaluate(self, model: Any, data: Any) -> Metrics:
        """Return sums and counts over `data`: by default examples, loss and correct."""
        from .trainer import engine  # noqa: PLC0415 - trainer.py imports this module

        return engine(self, model).evaluate(data)

    def declarations(self) -> Mapping[str, Sum | Count]:
        """Return the metrics that `evaluate` may return, with their bounds."""
        return standard(self.loss) if self.metrics is None else self.metrics
