"""`umbel.FedAdam` and the other strategies with a server step of their own, under `strategy.start`.

Each is Flower's class of its name with the replies of `umbel.FedAvg`: the same arguments, the same
sampling and the same models to rounding, round after round. What differs from Flower:

* arrays keep their dtype (Flower's FedAdam turns float32 into float64); the step is computed in
  float64 and rounded once; integer and bool arrays stay the server's own;
* a step whose result is not finite is a round without a result, and moments stay as they were;
* `FedAdam(form="paper")` is algorithm 2 of Reddi et al. 2021, which corrects no bias; Flower's form
  is the default. `FedAdamW` has no twin.

The step itself is `rule` (server_rules.py), the same value that `umbel.train` hands to the core.
"""

from __future__ import annotations

from logging import getLogger
from typing import TYPE_CHECKING, Any

import flwr.serverapp.strategy as flower
import numpy as np
from flwr.serverapp.exception import AggregationError

from . import server_rules
from .flower_fedavg import FedAvg
from .server_step import fresh, stepped

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Unpack

    from numpy.typing import NDArray

    from .flower_arguments import Adaptive
    from .server_rules import Rule

    Arrays = Mapping[str, NDArray[Any]]

_log = getLogger("flwr")


class _Stepping(FedAvg):
    """The average of a round as a pseudo-gradient."""

    _moments: dict[str, dict[str, NDArray[Any]]] | None = None

    def _moved(self, server_round: int, model: Arrays, mean: Arrays) -> Arrays:
        """Return the model after the step; moments stay as they were where it fails."""
        if self._global is None:
            raise AggregationError(
                "No model to step from. Ensure that `configure_train` has been called before "
                "aggregation."
            )
        rule = self.rule
        delta = {name: np.subtract(mean[name], model[name], dtype=np.float64) for name in mean}
        after = fresh(rule, model)
        if self._moments is not None and _shapes(self._moments) == _shapes(after):
            after = {m: {n: a.copy() for n, a in of.items()} for m, of in self._moments.items()}
        moved = stepped(rule, model, delta, after, server_round)
        self._moments = after
        return moved


def _shapes(moments: Mapping[str, Arrays]) -> dict[str, Any]:
    return {m: {n: (a.shape, a.dtype) for n, a in of.items()} for m, of in moments.items()}


class FedAvgM(_Stepping, flower.FedAvgM):
    """Federated averaging with server momentum; arguments as Flower's."""


class FedYogi(_Stepping, flower.FedYogi):
    """Yogi on the server; arguments as Flower's."""


class FedAdagrad(_Stepping, flower.FedAdagrad):
    """Adagrad on the server; arguments as Flower's."""


class FedAdam(_Stepping, flower.FedAdam):
    """Adam on the server; arguments as Flower's, and `form`."""

    def __init__(self, *, form: str = "flower", **arguments: Unpack[Adaptive]) -> None:
        """Take Flower's arguments; `form` is `flower`, with its bias corrected, or `paper`.

        Raises:
            SettingsError: A number is out of its range, or the form is none.
        """
        super().__init__(**arguments)
        self.form = form
        _ = self.rule

    @property
    def rule(self) -> Rule:
        """The pure server half."""
        numbers = {name: getattr(self, name) for name in ("eta", "beta_1", "beta_2", "tau")}
        return server_rules.FedAdam(form=self.form, **numbers)

    def summary(self) -> None:
        """Log what the strategy is set to."""
        _log.info("\t├──> Form: %s", self.form)
        super().summary()


class FedAdamW(FedAdam):
    """Adam whose model shrinks by itself a little in every round; Flower has none."""

    def __init__(
        self, *, weight_decay: float = 1e-2, form: str = "flower", **arguments: Unpack[Adaptive]
    ) -> None:
        """Take FedAdam's arguments, and the share of `eta` by which the model shrinks.

        Raises:
            SettingsError: A number is out of its range, or the form is none.
        """
        self.weight_decay = weight_decay
        super().__init__(form=form, **arguments)

    @property
    def rule(self) -> Rule:
        """The pure server half."""
        numbers = {name: getattr(self, name) for name in ("eta", "beta_1", "beta_2", "tau")}
        decay = self.weight_decay
        return server_rules.FedAdamW(form=self.form, weight_decay=decay, **numbers)

    def summary(self) -> None:
        """Log what the strategy is set to."""
        _log.info("\t├──> Weight decay: %.6g", self.weight_decay)
        super().summary()
