"""`umbel.FedAvg`: Flower's FedAvg with checked replies and a streaming fold.

Same constructor, same keys, same sampling, same `InconsistentMessageReplies` under
`strategy.start(...)` as `flwr.serverapp.strategy.FedAvg` 1.42. What differs, because Flower's own
gives a wrong model there:

| A reply with                           | Flower                     | here                       |
|----------------------------------------|----------------------------|----------------------------|
| NaN or infinity                        | global weights NaN         | dropped, node named        |
| another shape, dtype or set of names   | broadcast, or ValueError   | dropped, node named        |
| a weight of 0, below 0 or not finite   | counted, or division by 0  | dropped, node named        |
| integer or bool arrays                 | averaged to float64        | the server keeps its own   |

The arrays are whole models here, not deltas: that is Flower's contract. `rule` is the pure server
half for `umbel.train`, where updates are deltas.
"""

from __future__ import annotations

import io
import math
from logging import getLogger
from typing import TYPE_CHECKING, Any

import flwr.serverapp.strategy
import numpy as np
from flwr.app import Array, ArrayRecord

from . import fedavg
from ..protocol.errors import BadUpdate, SettingsError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from flwr.app import ConfigRecord, Message, MetricRecord, RecordDict
    from flwr.serverapp import Grid
    from numpy.typing import NDArray

MAX_WEIGHT = 2.0**32
"""Largest weight of one reply; with it no float64 sum overflows."""

_log = getLogger("flwr")


class FedAvg(flwr.serverapp.strategy.FedAvg):
    """Federated averaging for `strategy.start(...)`; arguments as Flower's."""

    _global: Mapping[str, NDArray[Any]] | None = None

    @property
    def rule(self) -> fedavg.FedAvg:
        """The pure server half."""
        return fedavg.FedAvg()

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Sample nodes as Flower does, and keep what replies are compared with.

        Raises:
            SettingsError: An array of the model is not in numpy's form.
        """
        self._global = {name: _own(name, array) for name, array in arrays.items()}
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Return the weighted mean of the good replies, or (None, None) when there are none.

        Without a `configure_train` before it the first good reply is the model to compare with.

        Raises:
            InconsistentMessageReplies: As Flower's: records or keys differ between replies, or
                the weight's key is missing or a list.
        """
        valid, _ = self._check_and_log_replies(replies, is_train=True)
        model = self._global
        total: fedavg.FloatSum | None = None
        used: list[RecordDict] = []
        for message in valid:
            node = f"node {message.metadata.src_node_id}"
            try:
                weight = self._weight(node, message.content)
                record = next(iter(message.content.array_records.values()))
                arrays = _arrays(node, record, model)
            except BadUpdate as error:
                _log.warning("aggregate_train: reply dropped: %s", error)
                continue
            if model is None:
                model = arrays
            total = total or fedavg.FloatSum(model)
            total.add(f"{node}, reply {len(used)}", arrays, weight)
            used.append(message.content)
        if total is None or model is None:
            return None, None
        merged = {**model, **total.mean()}
        record = ArrayRecord({name: Array(np.asarray(merged[name])) for name in model})
        return record, self.train_metrics_aggr_fn(used, self.weighted_by_key)

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Return the weighted mean of the metrics of the replies with a usable weight."""
        valid, _ = self._check_and_log_replies(replies, is_train=False)
        used: list[RecordDict] = []
        for message in valid:
            try:
                self._weight(f"node {message.metadata.src_node_id}", message.content)
            except BadUpdate as error:
                _log.warning("aggregate_evaluate: reply dropped: %s", error)
            else:
                used.append(message.content)
        return self.evaluate_metrics_aggr_fn(used, self.weighted_by_key) if used else None

    def _weight(self, node: str, content: RecordDict) -> float:
        """Return the reply's weight; its presence and type were checked with all replies."""
        weight = next(iter(content.metric_records.values()))[self.weighted_by_key]
        if not (isinstance(weight, int | float) and 0 < weight <= MAX_WEIGHT):
            raise BadUpdate(node, self.weighted_by_key, "a number above 0, at most 2^32", weight)
        return weight


def _arrays(
    node: str, record: ArrayRecord, model: Mapping[str, NDArray[Any]] | None
) -> dict[str, NDArray[Any]]:
    """Return the decoded arrays of one reply, checked against the model."""
    if model is not None and set(record) != set(model):
        names = sorted(set(record).symmetric_difference(model))
        raise BadUpdate(node, "arrays", "the names of the global model", f"a difference in {names}")
    arrays = {}
    for name, array in record.items():
        try:
            arrays[name] = _decoded(array)
        except (ValueError, TypeError, EOFError) as error:
            raise BadUpdate(node, f"array {name!r}", "a numpy array", error) from error
        if model is None:
            continue
        want, got = model[name], arrays[name]
        if (want.shape, want.dtype) != (got.shape, got.dtype):
            raise BadUpdate(
                node, f"array {name!r}", f"{want.dtype} {want.shape}", f"{got.dtype} {got.shape}"
            )
    fedavg.finite_norm(node, arrays)
    return arrays


def _own(name: str, array: Array) -> NDArray[Any]:
    """Return a view of one array of the global model."""
    try:
        return _decoded(array)
    except (ValueError, TypeError, EOFError) as error:
        raise SettingsError(
            f"initial array {name!r}", "a numpy array", str(error), "build it with flwr.app.Array"
        ) from error


def _decoded(array: Array) -> NDArray[Any]:
    """Return a read-only view of an `Array`'s bytes, no copy.

    The header is read first and the bytes are counted, so a header that promises more than it
    brings allocates nothing.

    Raises:
        ValueError: These are no bytes of one .npy array without objects.
    """
    if array.stype != "numpy.ndarray":
        raise ValueError(f"serialisation {array.stype!r}")
    file = io.BytesIO(array.data)
    version = np.lib.format.read_magic(file)
    if version == (1, 0):
        shape, fortran, dtype = np.lib.format.read_array_header_1_0(file)
    elif version == (2, 0):
        shape, fortran, dtype = np.lib.format.read_array_header_2_0(file)
    else:
        raise ValueError(f".npy version {version}")
    expected, got = math.prod(shape) * dtype.itemsize, len(array.data) - file.tell()
    if dtype.hasobject or got != expected:
        raise ValueError(f"{dtype} {shape} in {got} bytes")
    flat = np.frombuffer(array.data, dtype, offset=file.tell()) if expected else np.empty(0, dtype)
    return flat.reshape(shape, order="F" if fortran else "C")
