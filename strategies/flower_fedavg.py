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

import math
import re
from logging import getLogger
from typing import TYPE_CHECKING, Any

import flwr.serverapp.strategy
import numpy as np
from flwr.app import Array, ArrayRecord

from . import fedavg
from .flower_rules import meant
from ..protocol.errors import BadUpdate, SettingsError
from ..protocol.manifest import MAX_BYTES, MAX_DIMENSIONS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from flwr.app import ConfigRecord, Message, MetricRecord, RecordDict
    from flwr.serverapp import Grid
    from numpy.typing import NDArray

    from .server_rules import Rule

    Arrays = Mapping[str, NDArray[Any]]

_MAGIC, _LONGEST = 8, 4096
_HEADER = re.compile(
    rb"\{'descr': '([<>|=][biufcV][0-9]{1,2})', 'fortran_order': (True|False), "
    rb"'shape': \(((?:[0-9]{1,13}, ?)*(?:[0-9]{1,13})?)\), \} *\n?"
)
MAX_WEIGHT = 2.0**32
"""Largest weight of one reply; with it no float64 sum overflows."""

_log = getLogger("flwr")


class FedAvg(flwr.serverapp.strategy.FedAvg):
    """Federated averaging for `strategy.start(...)`; arguments as Flower's."""

    _global: Mapping[str, NDArray[Any]] | None = None

    @property
    def rule(self) -> Rule:
        """The pure server half.

        Raises:
            SettingsError: A number of it is out of its range.
        """
        return meant(self)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Sample nodes as Flower does, and keep what replies are compared with.

        Raises:
            SettingsError: An array of the model is not in numpy's form, or as `rule`.
        """
        _ = self.rule  # a number that it refuses is refused before a client trains for nothing
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
        moved = self._moved(server_round, model, total.mean())
        if moved is None:
            return None, None
        merged = {**model, **moved}
        record = ArrayRecord({name: Array(np.asarray(merged[name])) for name in model})
        return record, self.train_metrics_aggr_fn(used, self.weighted_by_key)

    def _moved(self, _server_round: int, _model: Arrays, mean: Arrays) -> Arrays | None:
        """Return the float arrays of the next model, here the mean; None for a void round."""
        return mean

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
        except (ValueError, TypeError) as error:
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
    except (ValueError, TypeError) as error:
        raise SettingsError(
            f"initial array {name!r}", "a numpy array", str(error), "build it with flwr.app.Array"
        ) from error


def _decoded(array: Array) -> NDArray[Any]:
    """Return a read-only view of an `Array`'s bytes, no copy.

    The header is read first and the bytes are counted, so a header that promises more than it
    brings allocates nothing. Numpy's own reader takes it for Python's syntax, tokenises it, and
    raises whatever that raises; here it has the one form in which `numpy.save` writes it.

    Raises:
        ValueError: These are no bytes of one .npy array of plain numbers.
    """
    if array.stype != "numpy.ndarray":
        raise ValueError(f"serialisation {array.stype!r}")
    start, header = _npy_header(array.data)
    found = _HEADER.fullmatch(header)
    if found is None:
        raise ValueError("no header of plain numbers")
    dtype, fortran = np.dtype(found[1].decode()), found[2] == b"True"
    shape = tuple(int(size) for size in found[3].split(b",") if size.strip())
    if len(shape) > MAX_DIMENSIONS or math.prod(max(n, 1) for n in shape) > MAX_BYTES:
        raise ValueError(f"{len(shape)} dimensions of {max(shape)} and less")
    expected, got = math.prod(shape) * dtype.itemsize, len(array.data) - start
    if got != expected:
        raise ValueError(f"{dtype} {shape} in {got} bytes")
    flat = np.frombuffer(array.data, dtype, offset=start) if expected else np.empty(0, dtype)
    return flat.reshape(shape, order="F" if fortran else "C")


def _npy_header(data: bytes) -> tuple[int, bytes]:
    """Return where the numbers begin, and the text before them (NEP 1)."""
    width = {b"\x93NUMPY\x01\x00": 2, b"\x93NUMPY\x02\x00": 4}.get(data[:_MAGIC])
    if width is None:
        raise ValueError("no .npy of version 1 or 2")
    at = _MAGIC + width
    start = at + int.from_bytes(data[_MAGIC:at], "little")
    if not at <= start <= min(len(data), _LONGEST):
        raise ValueError("a header beyond the end")
    return start, data[at:start]
