"""Umbel: federated training in which the server gets the sum of the updates, and no single one.

The public names are imported when they are first used, so that `import umbel` costs nothing and a
device without torch or flwr never meets them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .clients.flower_client_app import client_app, secure
    from .protocol.errors import (
        PeerError,
        Refused,
        RoundFailed,
        SettingsError,
        StateError,
        UmbelError,
    )
    from .server.flower_server_app import server_app
    from .server.flower_train import train
    from .simulation.federation import Result
    from .simulation.flower_simulate import FlowerOptions, run_simulation
    from .simulation.run import Options, simulate
    from .strategies.flower_fedavg import FedAvg
    from .strategies.flower_fedopt import FedAdagrad, FedAdam, FedAdamW, FedAvgM, FedYogi
    from .strategies.flower_robust import (
        Bulyan,
        CentredClipping,
        FedMedian,
        FedTrimmedAvg,
        FLTrust,
        GeometricMedian,
        Krum,
        MultiKrum,
        NormBounding,
    )
    from .strategies.metrics import Count, Metrics, Sum
    from .strategies.numpy_models import MLP, LogisticRegression
    from .strategies.optimizers import SGD, Adam
    from .strategies.task import Site, Task

__version__ = "0.1.0"

__all__ = [
    "MLP",
    "SGD",
    "Adam",
    "Bulyan",
    "CentredClipping",
    "Count",
    "FLTrust",
    "FedAdagrad",
    "FedAdam",
    "FedAdamW",
    "FedAvg",
    "FedAvgM",
    "FedMedian",
    "FedTrimmedAvg",
    "FedYogi",
    "FlowerOptions",
    "GeometricMedian",
    "Krum",
    "LogisticRegression",
    "Metrics",
    "MultiKrum",
    "NormBounding",
    "Options",
    "PeerError",
    "Refused",
    "Result",
    "RoundFailed",
    "SettingsError",
    "Site",
    "StateError",
    "Sum",
    "Task",
    "UmbelError",
    "client_app",
    "run_simulation",
    "secure",
    "server_app",
    "simulate",
    "train",
]

_HOMES = {
    "clients.flower_client_app": "client_app secure",
    "protocol.errors": "PeerError Refused RoundFailed SettingsError StateError UmbelError",
    "server.flower_server_app": "server_app",
    "server.flower_train": "train",
    "simulation.federation": "Result",
    "simulation.flower_simulate": "FlowerOptions run_simulation",
    "simulation.run": "Options simulate",
    "strategies.flower_fedavg": "FedAvg",
    "strategies.flower_fedopt": "FedAdagrad FedAdam FedAdamW FedAvgM FedYogi",
    "strategies.flower_robust": "Bulyan CentredClipping FLTrust FedMedian FedTrimmedAvg "
    "GeometricMedian Krum MultiKrum NormBounding",
    "strategies.metrics": "Count Metrics Sum",
    "strategies.numpy_models": "LogisticRegression MLP",
    "strategies.optimizers": "Adam SGD",
    "strategies.task": "Site Task",
}
_HOME = {name: module for module, names in _HOMES.items() for name in names.split()}


if not TYPE_CHECKING:  # else a type checker would take any name for a public one

    def __getattr__(name: str) -> Any:
        """Import the public name `name` from its home and keep it."""
        if name not in _HOME:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        import importlib  # noqa: PLC0415 - the first name pays, not the import of the package

        value = getattr(importlib.import_module(f".{_HOME[name]}", __name__), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
