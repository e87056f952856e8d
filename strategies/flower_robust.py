"""`umbel.FedMedian`, `umbel.Krum` and the other robust strategies, under `strategy.start`.

Each of Flower's is its class with the same arguments and the replies of `umbel.FedAvg`; the rules
are those of robust_rules.py, with their policy for NaN, infinities, ties and weights. What differs
from Flower:

* Krum and Bulyan measure distances between changes, in a matrix summed in float64, not between
  models in float32: they pick as exact arithmetic does where a round changes 1e-5 of the weights.
  Flower's also drops a client's smallest distance as its own, whichever it is;
* MultiKrum counts every picked client once, Flower by `num-examples`, which a client may invent;
* Bulyan picks one client after the other, as its paper has it, Flower all with one MultiKrum;
  `selection_rule` would need whole replies and is refused;
* fewer replies than a rule needs (Krum: 2f + 3) are a round without a result, with a warning.

Without a twin: `GeometricMedian`, `CentredClipping`, `NormBounding`, and `FLTrust`, which needs an
update of the server's own and so runs under `strategy.start` only.
"""

from __future__ import annotations

from logging import getLogger
from typing import TYPE_CHECKING, Any, Unpack

import flwr.serverapp.strategy as flower
from flwr.serverapp.exception import AggregationError
from flwr.serverapp.strategy.multikrum import select_multikrum

from . import server_rules
from .flower_fedavg import FedAvg
from .kept_models import KeptModels
from .robust_rules import Robust, kernels
from ..protocol.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
    from flwr.serverapp import Grid
    from numpy.typing import NDArray

    from .flower_arguments import Common
    from .flower_replies import Landed
    from .landing import Landing
    from .server_rules import Rule

    Arrays = Mapping[str, NDArray[Any]]

_log = getLogger("flwr")


class _Robust(FedAvg):
    """A strategy whose rule looks at single updates."""

    _asked = 0

    @property
    def _robust(self) -> Robust:
        robust = self.rule.robust
        if robust is None:
            raise SettingsError("strategy", "a robust rule", self.rule.name)
        return robust

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Sample nodes as Flower does, and note how many."""
        messages = list(super().configure_train(server_round, arrays, config, grid))
        self._asked = len(messages)
        return messages

    def summary(self) -> None:
        """Log what the strategy is set to."""
        _log.info("\t├──> %s", kernels(1)[1])
        super().summary()

    def _begin(self) -> Landed | None:
        if self._global is None:
            raise AggregationError(
                "No model that updates could be compared with. Ensure that `configure_train` has "
                "been called before aggregation."
            )
        return super()._begin()

    def _room(self, model: Arrays) -> Landing:
        return KeptModels(model, self._robust, self._asked)

    def _counted(self, landed: Landed) -> list[RecordDict]:
        if not isinstance(landed.landing, KeptModels):
            return landed.used
        return [landed.used[place] for place in landed.landing.picked]


class FedMedian(_Robust, flower.FedMedian):
    """The median of every coordinate; arguments as Flower's."""


class FedTrimmedAvg(_Robust, flower.FedTrimmedAvg):
    """The mean of every coordinate without its extremes; arguments as Flower's."""


class MultiKrum(_Robust, flower.MultiKrum):
    """The mean of the updates with the nearest neighbours; arguments as Flower's."""


class Krum(_Robust, flower.Krum):
    """The update with the nearest neighbours; arguments as Flower's."""


class Bulyan(_Robust, flower.Bulyan):
    """The values nearest to the median of what Krum picks; arguments as Flower's."""

    @property
    def rule(self) -> Rule:
        """The pure server half.

        Raises:
            SettingsError: There is a `selection_rule`.
        """
        if self.selection_rule is not select_multikrum:
            raise SettingsError(
                "selection_rule",
                "none: umbel.Bulyan picks by Krum, from changes that are no longer replies",
                getattr(self.selection_rule, "__name__", self.selection_rule),
                "leave it out, or use flwr.serverapp.strategy.Bulyan",
            )
        return super().rule


class GeometricMedian(_Robust):
    """The point with the least sum of distances to all updates, weighted by examples."""

    @property
    def rule(self) -> Rule:
        """The pure server half."""
        return server_rules.FedAvg(robust=Robust(rule="geometric-median"))


class CentredClipping(_Robust):
    """The mean of updates that are clipped around a centre."""

    def __init__(self, *, radius: float, iterations: int = 1, **arguments: Unpack[Common]) -> None:
        """Take FedAvg's arguments.

        Args:
            radius: Farthest that one client can pull, in the norm of an update.
            iterations: Steps; with 1 the centre is the global model.
            arguments: Flower's.

        Raises:
            SettingsError: A number is out of its range.
        """
        super().__init__(**arguments)
        self.radius, self.iterations = radius, iterations
        _ = self.rule

    @property
    def rule(self) -> Rule:
        """The pure server half."""
        robust = Robust(rule="centred-clipping", radius=self.radius, iterations=self.iterations)
        return server_rules.FedAvg(robust=robust)


class NormBounding(_Robust):
    """The weighted mean of updates whose norms are cut to a bound."""

    def __init__(self, *, radius: float, **arguments: Unpack[Common]) -> None:
        """Take FedAvg's arguments, and the largest norm of an update.

        Raises:
            SettingsError: It is not above 0.
        """
        super().__init__(**arguments)
        self.radius = radius
        _ = self.rule

    @property
    def rule(self) -> Rule:
        """The pure server half."""
        return server_rules.FedAvg(robust=Robust(rule="norm-bounding", radius=self.radius))


class FLTrust(_Robust):
    """Updates by their cosine with one of the server's own, at its norm."""

    _trusted: Arrays | None = None

    def __init__(
        self, root: Callable[[int, dict[str, NDArray[Any]]], Arrays], **arguments: Unpack[Common]
    ) -> None:
        """Take FedAvg's arguments.

        Args:
            root: Trains on the server's own data: gets the round and copies of the model's arrays
                by name, returns the arrays after it. It is called before the clients are asked.
            arguments: Flower's.
        """
        super().__init__(**arguments)
        self.root = root

    @property
    def rule(self) -> Rule:
        """The pure server half, which `umbel.train` refuses: it has no update of the server's."""
        return server_rules.FedAvg(robust=Robust(rule="fltrust"))

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Train on the server's own data, then sample nodes as Flower does."""
        messages = super().configure_train(server_round, arrays, config, grid)
        model = {name: array.copy() for name, array in (self._global or {}).items()}
        self._trusted = self.root(server_round, model)
        return messages

    def _begin(self) -> Landed | None:
        landed = super()._begin()
        if landed is not None and isinstance(landed.landing, KeptModels):
            landed.landing.trust(self._trusted or {})
        return landed
