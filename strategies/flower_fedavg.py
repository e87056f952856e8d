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

The arrays are whole models here, not deltas: that is Flower's contract. Under `start` they are
folded as they come (flower_streaming.py); the sum is that of landing.py in any case. `rule` is the
pure server half for `umbel.train`, where updates are deltas.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from logging import getLogger
from typing import TYPE_CHECKING, Any

import flwr.serverapp.strategy

from . import npy
from .fedavg import is_float
from .flower_replies import Landed, packed, whole
from .flower_rules import meant
from .flower_streaming import streaming
from .landing import Landing
from ..protocol.errors import BadUpdate, RoundFailed, SettingsError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
    from flwr.serverapp import Grid
    from flwr.serverapp.strategy import Result
    from numpy.typing import NDArray

    from .server_rules import Rule

    Arrays = Mapping[str, NDArray[Any]]

MAX_WEIGHT = 2.0**32
"""Largest weight of one reply; with it no float64 sum overflows."""

_PACKAGE = __name__.partition(".")[0]
_log = getLogger("flwr")


class FedAvg(flwr.serverapp.strategy.FedAvg):
    """Federated averaging for `strategy.start(...)`; arguments as Flower's."""

    _global: Arrays | None = None
    _landing: Landing | None = None

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
            SettingsError: An array of the model is not in numpy's form, or is neither averaged nor
                a buffer; or as `rule`.
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
        landed = replies if isinstance(replies, Landed) else self._landed(valid)
        for error in landed.dropped:
            _log.warning("aggregate_train: reply dropped: %s", error)
        if not landed.used:
            return None, None
        model = landed.landing.model
        try:
            moved = dict(self._moved(server_round, model, landed.landing.mean()))
        except RoundFailed as error:
            _log.warning("aggregate_train: round %d has no result: %s", server_round, error)
            return None, None
        record = packed({name: moved.pop(name, array) for name, array in model.items()})
        return record, self.train_metrics_aggr_fn(self._counted(landed), self.weighted_by_key)

    def _moved(self, _server_round: int, _model: Arrays, mean: Arrays) -> Arrays:
        """Return the float arrays of the next model, here the mean."""
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

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Run rounds as Flower does; replies are folded as they come (flower_streaming.py).

        An `aggregate_train` of the app's own wants whole replies: then they are kept until it is
        called, as by Flower.
        """
        if type(self).aggregate_train.__module__.partition(".")[0] == _PACKAGE:
            grid = streaming(grid, self._begin)
        result = super().start(
            grid, initial_arrays, num_rounds, timeout, train_config, evaluate_config, evaluate_fn
        )
        self._landing = None
        return result

    def _begin(self) -> Landed | None:
        """Return a sum for the replies of a round, if it is known what they are compared with."""
        if self._global is None:
            return None
        old, model = self._landing, self._global
        self._landing = self._room(model) if old is None else old.again(model)
        return Landed(self._landing, self._weight)

    def _room(self, model: Arrays) -> Landing:
        """Return where replies like the model go."""
        return Landing(model)

    def _counted(self, landed: Landed) -> list[RecordDict]:
        """Return the replies that the model of a round was made of."""
        return landed.used

    def _landed(self, messages: Iterable[Message]) -> Landed:
        """Return whole replies with their sum."""
        landed = self._begin()
        if landed is None:
            landed = Landed(Landing({}), self._weight)
        for message in messages:
            node = f"node {message.metadata.src_node_id}"
            record = next(iter(message.content.array_records.values()))
            if self._global is None and not landed.used:
                landed = landed.beside(_readable(record))
            landed.take(node, message.content, partial(whole, record))
        return landed

    def _weight(self, node: str, content: RecordDict) -> float:
        """Return the reply's weight; that it is there is also checked with all replies."""
        records = list(content.metric_records.values())
        weight = records[0].get(self.weighted_by_key) if records else None
        if not (isinstance(weight, int | float) and 0 < weight <= MAX_WEIGHT):
            raise BadUpdate(node, self.weighted_by_key, "a number above 0, at most 2^32", weight)
        return weight


def _readable(record: ArrayRecord) -> dict[str, NDArray[Any]]:
    """Return those arrays of a reply that are arrays; without the others it is like no model."""
    arrays = {}
    for name, array in record.items():
        with suppress(SettingsError):
            arrays[name] = _own(name, array)
    return arrays


def _own(name: str, array: Array) -> NDArray[Any]:
    """Return a view of one array of the global model."""
    try:
        if array.stype != "numpy.ndarray":
            raise ValueError(f"serialisation {array.stype!r}")  # noqa: TRY301 - as the reader
        found = npy.decoded(array.data, array.dtype)
    except ValueError as error:
        raise SettingsError(
            f"initial array {name!r}", "a numpy array", str(error), "build it with flwr.app.Array"
        ) from error
    if not is_float(found) and found.dtype.kind not in "iub":  # it would stay what it is, unsaid
        move = "send complex numbers as two arrays"
        raise SettingsError(
            f"initial array {name!r}", "floats, integers or bools", found.dtype, move
        )
    return found
