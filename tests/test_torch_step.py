"""The server steps against Flower's own strategies, and against float64 by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from umbel.benchmarks import flower_step as flower
from umbel.protocol.errors import SettingsError
from umbel.server.core import torch_step
from umbel.server.core.torch_step import TILE

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from umbel.server.core.torch_step import Step

ROUNDS = 6
OURS: dict[str, Callable[..., Step]] = {
    "momentum": torch_step.momentum,
    "adam": torch_step.adam,
    "adagrad": torch_step.adagrad,
    "yogi": torch_step.yogi,
}
SETTINGS: dict[str, dict[str, Any]] = {
    "momentum": {"server_learning_rate": 0.7, "server_momentum": 0.9},
    "adam": {"eta": 0.05, "beta_1": 0.8, "beta_2": 0.95, "tau": 1e-2},
    "adagrad": {"eta": 0.05, "tau": 1e-2},
    "yogi": {"eta": 0.05, "beta_1": 0.8, "beta_2": 0.95, "tau": 1e-2},
}


def _deltas(size: int, dtype: Any) -> list[NDArray[Any]]:
    rng = np.random.default_rng(5)
    return [(rng.standard_normal(size) * 0.01 * (n + 1)).astype(dtype) for n in range(ROUNDS)]


@pytest.mark.parametrize("given", [False, True], ids=["defaults", "settings"])
@pytest.mark.parametrize("name", OURS)
@pytest.mark.parametrize(("dtype", "near"), [(np.float64, 1e-13), (np.float32, 2e-6)])
def test_a_step_is_that_of_flowers_strategy_of_its_name(
    name: str, dtype: Any, near: float, given: bool
) -> None:
    arguments = SETTINGS[name] if given else {}
    start = np.random.default_rng(1).standard_normal(1000).astype(dtype)
    model = torch.from_numpy(start.copy())
    ours, theirs = OURS[name](model, **arguments), flower.Peer(name, arguments, {"w": start})
    for delta in _deltas(1000, dtype):
        ours(torch.from_numpy(delta))
        expected = theirs.step({"w": delta})["w"]
        assert model.dtype == torch.from_numpy(start).dtype  # Flower's FedAdam widens float32
        assert np.abs(model.numpy() - expected).max() <= near * np.abs(expected).max()


def test_flower_did_move_the_model() -> None:
    """So that the parity above compares something."""
    for name in OURS:
        theirs = flower.Peer(name, SETTINGS[name], {"w": np.zeros(3)})
        assert np.abs(theirs.step({"w": np.full(3, 0.1)})["w"]).min() > 0


def test_adam_in_the_papers_form_by_hand() -> None:
    # Reddi et al. 2021, algorithm 2: moments from 0 and tau^2, no correction of the bias
    eta, beta_1, beta_2, tau = 0.05, 0.8, 0.95, 1e-2
    x, m, v = np.zeros(50), np.zeros(50), np.full(50, tau**2)
    model = torch.zeros(50, dtype=torch.float64)
    step = torch_step.adam(model, form="paper", **SETTINGS["adam"])
    for delta in _deltas(50, np.float64):
        m = beta_1 * m + (1 - beta_1) * delta
        v = beta_2 * v + (1 - beta_2) * delta**2
        x = x + eta * m / (np.sqrt(v) + tau)
        step(torch.from_numpy(delta))
        assert np.abs(model.numpy() - x).max() <= 1e-13


def test_the_forms_differ() -> None:
    models = [torch.zeros(8, dtype=torch.float64) for _ in range(2)]
    for model, form in zip(models, torch_step.FORMS, strict=True):
        torch_step.adam(model, form=form)(torch.full((8,), 0.01, dtype=torch.float64))
    assert (models[0] - models[1]).abs().min() > 1e-3


@pytest.mark.parametrize("form", torch_step.FORMS)
def test_weight_decay_shrinks_the_model_first(form: str) -> None:
    # decoupled, Loshchilov and Hutter 2019: x (1 - eta * decay) + what Adam would add
    start = np.linspace(-1, 1, 20)
    plain = torch.from_numpy(start.copy())
    decayed = torch.from_numpy(start.copy())
    ours = torch_step.adam(plain, eta=0.1, form=form)
    also = torch_step.adam(decayed, eta=0.1, weight_decay=0.3, form=form)
    delta = torch.full((20,), 0.05, dtype=torch.float64)
    ours(delta)
    also(delta)
    moved = plain.numpy() - start
    assert np.abs(decayed.numpy() - (start * (1 - 0.03) + moved)).max() <= 1e-14


def test_yogi_by_hand_on_more_than_a_tile() -> None:
    size = TILE + 321
    eta, beta_1, beta_2, tau = 0.05, 0.8, 0.95, 1e-2
    x, m, v = (np.zeros(size) for _ in range(3))
    model = torch.zeros(size, dtype=torch.float64)
    step = torch_step.yogi(model, **SETTINGS["yogi"])
    for delta in _deltas(size, np.float64):
        m = beta_1 * m + (1 - beta_1) * delta
        v = v - (1 - beta_2) * delta**2 * np.sign(v - delta**2)
        x = x + eta * m / (np.sqrt(v) + tau)
        step(torch.from_numpy(delta))
    assert np.abs(model.numpy() - x).max() <= 1e-13


def test_momentum_of_0_and_a_rate_of_1_are_plain_averaging() -> None:
    model = torch.tensor([1.0, 2.0])
    torch_step.momentum(model)(torch.tensor([0.25, -0.5]))
    assert model.tolist() == [1.25, 1.5]


@pytest.mark.parametrize("name", OURS)
def test_shards_step_as_the_whole_does_and_deltas_are_kept(name: str) -> None:
    whole = torch.linspace(-1, 1, 5000)
    apart = whole.clone()
    steps = [OURS[name](apart[:2048]), OURS[name](apart[2048:])]
    one = OURS[name](whole)
    for values in _deltas(5000, np.float32):
        delta = torch.from_numpy(values.copy())
        one(delta)
        steps[0](delta[:2048])
        steps[1](delta[2048:])
        assert np.array_equal(delta.numpy(), values)
    assert torch.equal(whole, apart)


@pytest.mark.parametrize("name", OURS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_the_dtype_is_kept(name: str, dtype: torch.dtype) -> None:
    model = torch.zeros(8, dtype=dtype)
    OURS[name](model)(torch.full((8,), 0.5, dtype=dtype))
    assert model.dtype == dtype
    assert bool((model > 0).all())


@pytest.mark.parametrize("name", OURS)
def test_a_delta_of_another_shape_or_dtype_moves_nothing(name: str) -> None:
    model = torch.zeros(4)
    step = OURS[name](model)
    for delta in (torch.ones(3), torch.ones(4, dtype=torch.float64)):
        with pytest.raises(SettingsError, match="step delta"):
            step(delta)
    assert not model.any()


@pytest.mark.parametrize(
    ("call", "complaint"),
    [
        (lambda x: torch_step.adam(x, eta=0.0), "step eta"),
        (lambda x: torch_step.adam(x, beta_1=1.0), "step beta_1"),
        (lambda x: torch_step.adam(x, beta_2=-0.1), "step beta_2"),
        (lambda x: torch_step.adam(x, weight_decay=-1.0), "step weight_decay"),
        (lambda x: torch_step.adam(x, form="tensorflow"), "flower or paper"),
        (lambda x: torch_step.yogi(x, tau=0.0), "step tau"),
        (lambda x: torch_step.adagrad(x, tau=float("inf")), "step tau"),
        (lambda x: torch_step.momentum(x, server_momentum=1.0), "step server_momentum"),
        (lambda x: torch_step.momentum(x.reshape(2, 2)), "step shard"),
        (lambda x: torch_step.yogi(x.long()), "step shard"),
    ],
)
def test_numbers_out_of_range_are_refused(
    call: Callable[[torch.Tensor], Step], complaint: str
) -> None:
    with pytest.raises(SettingsError, match=complaint):
        call(torch.zeros(4))
