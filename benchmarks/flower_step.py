"""The peer of `umbel bench step`: the server steps of Flower 1.42's own strategies.

FedAvgM, FedAdam, FedAdagrad and FedYogi step at the end of `aggregate_train`, which averages the
replies first. Here the average is given: a class between the strategy and its FedAvg returns it, so
that the strategy's own lines run and nothing before them. Inputs are held as arrays and results
stay arrays: packing them into Flower's `Array`, as a round does, is left out in Flower's favour.
"""

from __future__ import annotations

from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from flwr.serverapp.strategy import (
    FedAdagrad,
    FedAdam,
    FedAvg,
    FedAvgM,
    FedYogi,
    fedadagrad,
    fedadam,
    fedavgm,
    fedyogi,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

NAME = f"flwr {version('flwr')}"
STRATEGIES: dict[str, tuple[type[FedAvg], Any]] = {
    "momentum": (FedAvgM, fedavgm),
    "adam": (FedAdam, fedadam),
    "adagrad": (FedAdagrad, fedadagrad),
    "yogi": (FedYogi, fedyogi),
}


class _Held:
    """An array that is there, where Flower would unpack one."""

    def __init__(self, array: NDArray[Any]) -> None:
        self._array = array

    def numpy(self) -> NDArray[Any]:
        return self._array


class _Record(dict[str, Any]):
    """What the strategies use of an ArrayRecord."""

    def to_numpy_ndarrays(self) -> list[NDArray[Any]]:
        return [held.numpy() for held in self.values()]


class _Given(FedAvg):
    """FedAvg whose average is known."""

    given: Any = None

    def aggregate_train(self, server_round: int, replies: Any) -> Any:
        return self.given, None


class Peer:
    """One of Flower's strategies after its average."""

    def __init__(
        self, name: str, arguments: Mapping[str, Any], model: Mapping[str, NDArray[Any]]
    ) -> None:
        """Make the strategy `name` of STRATEGIES, with arguments of Flower's own names."""
        kind, self._module = STRATEGIES[name]
        made = type(kind.__name__, (kind, _Given), {})
        self._strategy: Any = made(**arguments)
        self._held = isinstance(self._strategy, FedAvgM)  # it keeps a record, the others arrays
        self.model: dict[str, NDArray[Any]] = dict(model)
        """The model of the round, Flower's own after a step."""
        self._round = 0

    def step(self, deltas: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Average to the model plus `deltas`, step, and return the new model."""
        return self.stepped({name: x + deltas[name] for name, x in self.model.items()})

    def stepped(self, average: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Take the average of a round as it is, step, and return the new model."""
        self._round += 1
        strategy = self._strategy
        strategy.given = _record(average)
        strategy.current_arrays = _record(self.model) if self._held else self.model
        packed = self._module.Array, self._module.ArrayRecord
        self._module.Array, self._module.ArrayRecord = _Held, _Record
        try:
            record, _ = strategy.aggregate_train(self._round, [])
        finally:
            self._module.Array, self._module.ArrayRecord = packed
        self.model = {name: held.numpy() for name, held in record.items()}
        return self.model


def _record(arrays: Mapping[str, NDArray[Any]]) -> _Record:
    return _Record({name: _Held(array) for name, array in arrays.items()})
