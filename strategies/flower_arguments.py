"""The arguments of Flower's strategies, for a type checker: those of ours hand them on."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    from collections.abc import Callable

    from flwr.app import MetricRecord, RecordDict

    Merged = Callable[[list[RecordDict], str], MetricRecord]


class Common(TypedDict, total=False):
    """Of `flwr.serverapp.strategy.FedAvg` and so of every strategy."""

    fraction_train: float
    fraction_evaluate: float
    min_train_nodes: int
    min_evaluate_nodes: int
    min_available_nodes: int
    weighted_by_key: str
    arrayrecord_key: str
    configrecord_key: str
    train_metrics_aggr_fn: Merged | None
    evaluate_metrics_aggr_fn: Merged | None


class Adaptive(Common, total=False):
    """Of `flwr.serverapp.strategy.FedAdam`."""

    eta: float
    eta_l: float
    beta_1: float
    beta_2: float
    tau: float
