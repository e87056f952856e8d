"""The torch fold equals the pure rule, for every dtype, batch size and number of clients."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import pytest
import torch

from umbel.protocol.errors import RoundFailed, SettingsError, VoidRound
from umbel.strategies.fedavg import FloatSum
from umbel.strategies.server_rules import FedAvg
from umbel.strategies.server_step import stepped
from umbel.strategies.torch_fedavg import TILE, TorchSum, step

if TYPE_CHECKING:
    from numpy.typing import NDArray


@pytest.mark.parametrize(
    ("dtype", "numpy_dtype", "tolerance"),
    [
        (torch.float32, np.float32, 1e-6),
        (torch.float64, np.float64, 1e-14),
        (torch.float16, np.float16, 1e-6),
        (torch.bfloat16, ml_dtypes.bfloat16, 1e-6),
    ],
)
@pytest.mark.parametrize("clients", [1, 7, 8, 9, 24])
def test_the_fold_is_the_weighted_mean(
    dtype: torch.dtype, numpy_dtype: type, tolerance: float, clients: int
) -> None:
    size = TILE + 1000
    rng = np.random.default_rng(clients)
    updates: NDArray[Any] = rng.normal(size=(clients, size)).astype(numpy_dtype)
    weights = rng.integers(1, 1000, clients)
    total = TorchSum(size, dtype=dtype)
    for update, weight in zip(updates, weights, strict=True):
        total.slot().copy_(torch.from_numpy(update.astype(np.float64)))
        total.fold(int(weight))
    exact = np.average(updates.astype(np.float64), axis=0, weights=weights)
    scale = np.abs(updates.astype(np.float64)).max()
    assert np.abs(total.mean().numpy() - exact).max() <= tolerance * scale


def test_it_equals_the_pure_sum_and_step() -> None:
    rng = np.random.default_rng(1)
    model = rng.normal(size=5000).astype(np.float32)
    pure, fast = FloatSum({"w": model}), TorchSum(5000)
    for node in range(20):
        delta = rng.normal(size=5000).astype(np.float32)
        pure.add(str(node), {"w": delta}, node + 1)
        fast.slot().copy_(torch.from_numpy(delta))
        fast.fold(node + 1)
    expected = stepped(FedAvg(server_learning_rate=0.3), {"w": model}, pure.mean(), {}, 1)["w"]
    got = step(torch.from_numpy(model), fast.mean(), 0.3)
    assert got.dtype == torch.float32
    assert np.abs(got.numpy() - expected).max() <= 1e-6


def test_the_rows_are_reused() -> None:
    total = TorchSum(4, batch=2)
    places = set()
    for _ in range(10):
        places.add(total.slot().data_ptr())
        total.slot().fill_(2.0)
        total.fold(1)
    assert len(places) == 2
    assert total.mean().tolist() == [2.0] * 4


def test_the_mean_may_be_read_twice() -> None:
    total = TorchSum(3)
    total.slot().fill_(5.0)
    total.fold(3)
    assert total.mean().tolist() == total.mean().tolist() == [5.0] * 3


def test_the_step_keeps_the_models_dtype() -> None:
    after = step(torch.ones(2, dtype=torch.bfloat16), torch.full((2,), 0.5))
    assert after.dtype == torch.bfloat16
    assert after.tolist() == [1.5, 1.5]


def test_refusals() -> None:
    with pytest.raises(RoundFailed):
        TorchSum(3).mean()
    with pytest.raises(SettingsError):
        TorchSum(3, batch=0)
    with pytest.raises(SettingsError):
        TorchSum(3, dtype=torch.int32)
    with pytest.raises(VoidRound):
        step(torch.zeros(2), torch.tensor([1.0, float("nan")]))
