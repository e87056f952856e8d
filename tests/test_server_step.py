"""The server step over named arrays: by hand, buffers kept, dtypes kept, and what is refused."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from umbel.protocol.errors import RoundFailed, VoidRound
from umbel.strategies.fedavg import TILE
from umbel.strategies.server_rules import FedAvg, FedAvgM
from umbel.strategies.server_step import fresh, stepped


def test_a_step_by_hand() -> None:
    model: dict[str, NDArray[Any]] = {"w": np.array([[1.0, 2.0]], np.float32), "n": np.array(7)}
    delta = {"w": np.array([[0.5, -4.0]], np.float32)}
    after = stepped(FedAvg(server_learning_rate=0.5), model, delta, {}, 1)
    assert after["w"].tolist() == [[1.25, 0.0]]
    assert after["n"] == 7
    assert model["w"].tolist() == [[1.0, 2.0]]


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64])
@pytest.mark.parametrize("shape", [(), (0, 3), (TILE + 5,), (2, 3, 4)])
def test_dtype_and_shape_are_kept(dtype: type, shape: tuple[int, ...]) -> None:
    model: dict[str, NDArray[Any]] = {"w": np.ones(shape, dtype)}
    after = stepped(FedAvg(), model, {"w": np.full(shape, 0.5, np.float32)}, {}, 1)
    assert (after["w"].dtype, after["w"].shape) == (np.dtype(dtype), shape)
    assert (after["w"].astype(np.float64) == 1.5).all()


def test_a_step_rounds_once() -> None:
    # bfloat16 keeps 8 bits: 256 + 1 is 256 there (a tie to even), 256 + 1.5 rounds to 258.
    model = {"w": np.full(2, 256, ml_dtypes.bfloat16)}
    after = stepped(FedAvg(), model, {"w": np.array([1.0, 1.5], np.float32)}, {}, 1)
    assert after["w"].astype(float).tolist() == [256.0, 258.0]


def test_buffers_are_copies_of_the_servers_own() -> None:
    model: dict[str, NDArray[Any]] = {
        "w": np.zeros(2, np.float32),
        "seen": np.arange(3),
        "mask": np.array([True]),
    }
    after = stepped(FedAvg(), model, {"w": np.ones(2, np.float32)}, {}, 1)
    assert list(after) == ["w", "seen", "mask"]
    after["seen"][0] = 99
    assert model["seen"].tolist() == [0, 1, 2]


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_result_that_is_not_finite_names_the_layer(bad: float) -> None:
    model = {"fine": np.zeros(2, np.float32), "conv.weight": np.zeros(TILE + 2, np.float32)}
    delta = {name: array.copy() for name, array in model.items()}
    delta["conv.weight"][-1] = bad
    with pytest.raises(VoidRound, match=r"conv\.weight .*not finite"):
        stepped(FedAvg(), model, delta, {}, 1)


def test_overflow_of_a_narrow_dtype_is_not_finite() -> None:
    with pytest.raises(VoidRound, match="half"):
        stepped(FedAvg(), {"half": np.full(1, 6e4, np.float16)}, {"half": np.full(1, 6e4)}, {}, 1)


@pytest.mark.parametrize(
    ("delta", "complaint"),
    [
        ({}, r"other arrays than the model: \['w'\]"),
        ({"w": np.zeros(3), "n": np.zeros(1)}, r"\['n'\]"),
        ({"w": np.zeros((1, 3))}, r"w has shape \(1, 3\), not \(3,\)"),
    ],
)
def test_a_mean_of_another_model_is_refused(delta: dict[str, NDArray[Any]], complaint: str) -> None:
    model = {"w": np.zeros(3), "n": np.array([1])}
    with pytest.raises(RoundFailed, match=complaint):
        stepped(FedAvg(), model, delta, {}, 1)


def test_moments_move_with_the_model_array_by_array() -> None:
    model: dict[str, NDArray[Any]] = {
        "w": np.zeros((2, 2), np.float32),
        "b": np.zeros(3),
        "n": np.array(7),
    }
    rule = FedAvgM(server_momentum=0.5)
    state = fresh(rule, model)
    assert {name: a.dtype for name, a in state["momentum"].items()} == {
        "w": np.float32,
        "b": np.float64,
    }
    mean = {"w": np.full((2, 2), 2.0, np.float32), "b": np.full(3, -4.0)}
    for t in (1, 2):
        model = stepped(rule, model, mean, state, t)
    assert state["momentum"]["w"].tolist() == [[3.0, 3.0]] * 2  # 0.5 * 2 + 2
    assert model["w"].tolist() == [[5.0, 5.0]] * 2  # 2 + 3
    assert model["b"].tolist() == [-10.0] * 3
    assert model["n"] == 7
