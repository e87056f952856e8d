"""Which server rule a strategy of Flower's means, so that `umbel.train` takes Flower's own objects.

A strategy is more than its rule: it samples nodes, asks them, and averages what comes back. Over
sessions all of that is done elsewhere; what is left of the strategy is the rule. So an object is
taken where its class is Flower's or ours, and refused where code of its own would not be called.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, cast

import flwr.serverapp.strategy as flower
from flwr.serverapp.strategy.strategy_utils import aggregate_metricrecords

from . import server_rules
from .robust_rules import Robust
from ..protocol.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Callable

    from .server_rules import Rule

_PACKAGE = __name__.partition(".")[0]
_STEPS = ("configure_train", "aggregate_train", "configure_evaluate", "aggregate_evaluate")


def _robust(rule: str, **numbers: Any) -> Rule:
    return server_rules.FedAvg(robust=Robust(rule=rule, **numbers))


def _two_moments(strategy: Any) -> dict[str, Any]:
    return {name: getattr(strategy, name) for name in ("eta", "beta_1", "beta_2", "tau")}


MEANT: dict[type, Callable[[Any], Rule]] = {
    flower.FedAvg: lambda _: server_rules.FedAvg(),
    flower.FedAvgM: lambda s: server_rules.FedAvgM(
        server_learning_rate=s.server_learning_rate, server_momentum=s.server_momentum
    ),
    flower.FedAdam: lambda s: server_rules.FedAdam(**_two_moments(s)),
    flower.FedYogi: lambda s: server_rules.FedYogi(**_two_moments(s)),
    flower.FedAdagrad: lambda s: server_rules.FedAdagrad(eta=s.eta, tau=s.tau),
    flower.FedMedian: lambda _: _robust("median"),
    flower.FedTrimmedAvg: lambda s: _robust("trimmed-mean", cut=s.beta),
    flower.Krum: lambda s: _robust("krum", byzantine=s.num_malicious_nodes),
    flower.MultiKrum: lambda s: _robust(
        "multi-krum", byzantine=s.num_malicious_nodes, keep=s.num_nodes_to_select
    ),
    flower.Bulyan: lambda s: _robust("bulyan", byzantine=s.num_malicious_nodes),
}
"""What Flower's classes mean; a class that is not here does more than average and step."""


def meant(strategy: object) -> Rule:
    """Return the rule of the nearest class of Flower's that a strategy is.

    Raises:
        SettingsError: It is none of `MEANT`, or a number of it is out of its range.
    """
    kinds = [kind for kind in type(strategy).__mro__ if _root(kind) == "flwr"]
    if not kinds or kinds[0] not in MEANT:
        known = ", ".join(sorted(kind.__name__ for kind in MEANT))
        raise SettingsError(
            "strategy",
            f"one of umbel's, or Flower's own {known}",
            type(strategy).__name__,
            "umbel.train takes a strategy's server step only: use strategy.start(...)",
        )
    return MEANT[kinds[0]](strategy)


def rule_for(strategy: object) -> Rule:
    """Return the rule that `umbel.train` steps by for a strategy, Flower's or ours, or a rule.

    Raises:
        SettingsError: It is none that `umbel.train` can stand for.
    """
    if type(strategy) in server_rules.RULES.values():
        return cast("Rule", strategy)
    own = [step for step in _STEPS if _root(_owner(type(strategy), step)) not in {"flwr", _PACKAGE}]
    if own and isinstance(strategy, flower.Strategy):
        raise SettingsError(
            "strategy",
            "one whose steps are Flower's or umbel's own, for over sessions no other is called",
            f"{type(strategy).__name__} with its own {own[0]}",
            "use strategy.start(...), or the class that it extends",
        )
    rule = getattr(strategy, "rule", None)
    return cast("Rule", rule) if type(rule) in server_rules.RULES.values() else meant(strategy)


def unused(strategy: object) -> list[str]:
    """Return the arguments that a strategy was given and that say nothing over sessions."""
    said = []
    for name, argument in inspect.signature(flower.FedAvg).parameters.items():
        value = getattr(strategy, name, argument.default)
        if value != argument.default and value is not aggregate_metricrecords:
            said.append(name)
    return said


def _owner(kind: type, name: str) -> type:
    """Return the class that defines a method."""
    return next((base for base in kind.__mro__ if name in vars(base)), object)


def _root(kind: type) -> str:
    return kind.__module__.partition(".")[0]
