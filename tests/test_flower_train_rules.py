"""`umbel.train` over a real core with every kind of server step, Flower's objects and ours."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import flwr.serverapp.strategy
import numpy as np
import pytest

import umbel
from umbel.protocol.errors import SettingsError
from umbel.server.flower_train import train
from umbel.server.run_directory import RunDirectory
from umbel.tests import test_flower_train
from umbel.tests.test_flower_train import METRICS, Nodes, Wrapped, start

if TYPE_CHECKING:
    from pathlib import Path

    from umbel.simulation.dev_federation import DevFederation

federation, home = test_flower_train.federation, test_flower_train.home


@pytest.mark.parametrize("module", [umbel, flwr.serverapp.strategy], ids=["ours", "flowers"])
def test_an_adaptive_step_is_taken_in_the_core(
    federation: DevFederation,
    home: Path,
    module: Any,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
    result = train(
        Nodes(federation, Wrapped), module.FedAdam(eta=0.05, min_train_nodes=3),
        initial_arrays=start(), metrics=METRICS,
        config={"clients": 3, "rounds": 3, "weight-cap": 40},
    )  # fmt: skip
    assert "only the server step is used, and min_train_nodes say nothing" in caplog.text
    # Deltas 0.01, 0.02, 0.03 in every round; by the formulas of Flower's class, in float64.
    x, m, v = np.full(40, 0.5), 0.0, 0.0
    for t in (1, 2, 3):
        m, v = 0.9 * m + 0.1 * 0.02, 0.99 * v + 0.01 * 0.02**2
        x += 0.05 * np.sqrt(1 - 0.99 ** (t + 1)) / (1 - 0.9 ** (t + 1)) * m / (np.sqrt(v) + 1e-3)
    np.testing.assert_allclose(result.model["w"], x, atol=1e-4)
    assert result.model["w"].dtype == np.float32
    with RunDirectory.open(home, result.run) as directory:
        said = directory.ledger.run().config["strategy"]
    assert (said["rule"], said["eta"], said["form"]) == ("fedadam", 0.05, "flower")


@pytest.mark.parametrize("module", [umbel, flwr.serverapp.strategy], ids=["ours", "flowers"])
@pytest.mark.parametrize("name", ["FedMedian", "Krum"])
def test_a_robust_strategy_is_refused_with_secure_sums_before_anybody_is_invited(
    federation: DevFederation, home: Path, module: Any, name: str
) -> None:
    grid = Nodes(federation, Wrapped)
    with pytest.raises(SettingsError, match=r"secure aggregation is on.* compares single updates"):
        train(grid, getattr(module, name)(), initial_arrays=start(), config={"clients": 3})
    assert grid.pushed == []
    assert not (home / "runs").exists()
