"""The running mean against exact fractions, norms, and what is refused."""

from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from umbel.protocol.errors import BadUpdate, PeerError, RoundFailed
from umbel.strategies.fedavg import TILE, FloatSum, finite_norm

VALUES = st.floats(-1e6, 1e6, width=32)


@given(
    st.lists(st.tuples(st.tuples(VALUES, VALUES), st.integers(1, 2**20)), min_size=1, max_size=12)
)
def test_the_mean_equals_the_exact_fraction(
    updates: list[tuple[tuple[float, float], int]],
) -> None:
    total = FloatSum({"w": np.zeros(2, np.float32)})
    for index, (values, weight) in enumerate(updates):
        total.add(f"node {index}", {"w": np.array(values, np.float32)}, weight)
    weights = sum(weight for _, weight in updates)
    scale = max(abs(v) for values, _ in updates for v in values)
    for place, got in enumerate(total.mean()["w"].tolist()):
        parts = (Fraction(values[place]) * weight for values, weight in updates)
        exact = sum(parts, Fraction()) / weights
        # One rounding to float32 (2^-24 of the result) and 12 of float64.
        assert abs(Fraction(got) - exact) <= abs(exact) / 2**24 + Fraction(scale) / 2**48
    assert total.weight == weights
    assert len(total.survivors) == len(updates)


def test_a_thousand_clients_stay_within_1e_6_and_arrive_in_any_order() -> None:
    rng = np.random.default_rng(3)
    updates = rng.normal(size=(1000, 257)).astype(np.float32)
    weights = rng.integers(1, 2**20, 1000)
    exact = np.average(updates.astype(np.longdouble), axis=0, weights=weights)
    means = []
    for order in (range(1000), reversed(range(1000))):
        total = FloatSum({"w": updates[0]})
        for i in order:
            total.add(str(i), {"w": updates[i]}, int(weights[i]))
        means.append(total.mean()["w"])
    scale = np.abs(updates).max()
    assert np.abs(means[0] - exact).max() <= 1e-6 * scale
    assert np.abs(means[0] - means[1]).max() <= np.spacing(np.float32(scale))


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64])
def test_the_mean_keeps_the_dtype(dtype: type) -> None:
    like = {"w": np.zeros((2, 2), dtype), "s": np.zeros((), dtype), "count": np.array(3)}
    total = FloatSum(like)
    for value, weight in ((1, 1), (4, 2)):
        total.add(str(value), {name: np.full_like(a, value) for name, a in like.items()}, weight)
    mean = total.mean()
    assert set(mean) == {"w", "s"}
    assert mean["w"].dtype == np.dtype(dtype)
    assert mean["s"].shape == ()
    assert mean["w"].astype(float).tolist() == [[3.0, 3.0], [3.0, 3.0]]


def test_arrays_in_another_memory_order_are_added_by_value() -> None:
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    total = FloatSum({"w": values})
    total.add("a", {"w": np.asfortranarray(values)}, 1)
    total.add("b", {"w": values.T.copy().T[::1]}, 3)
    assert total.mean()["w"].tolist() == values.tolist()


def test_a_node_is_added_once() -> None:
    total = FloatSum({"w": np.zeros(1)})
    total.add("node 4", {"w": np.ones(1)}, 1)
    with pytest.raises(PeerError, match="node 4: sent a second update"):
        total.add("node 4", {"w": np.full(1, 9.0)}, 1)
    assert total.mean()["w"] == 1.0


def test_an_empty_round_has_no_mean() -> None:
    with pytest.raises(RoundFailed, match="no update"):
        FloatSum({"w": np.zeros(1)}).mean()


def test_the_norm_is_euclidean_over_all_floats() -> None:
    arrays = {"a": np.array([3.0], np.float32), "b": np.full((2, 8), 3.0), "n": np.array(10**6)}
    assert finite_norm("x", arrays) == pytest.approx(np.sqrt(9 + 16 * 9), rel=1e-12)
    # In float16 the squares would overflow at 65504.
    assert finite_norm("x", {"a": np.full(4, 300, np.float16)}) == 600.0
    assert finite_norm("x", {"a": np.full(4, 3, ml_dtypes.bfloat16)}) == 6.0


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_value_that_is_not_finite_names_node_and_array(dtype: type, bad: float) -> None:
    array: Any = np.zeros(TILE + 9, dtype)
    array[-1] = bad
    with pytest.raises(BadUpdate, match=r"node 9: array 'conv': expected finite values, got"):
        finite_norm("node 9", {"fine": np.zeros(2, dtype), "conv": array})


def test_a_signalling_nan_is_refused_without_a_warning() -> None:
    array = np.frombuffer(b"\x01\x00\x80\x7f" * 3, "<f4")
    with pytest.raises(BadUpdate, match="expected finite values, got nan"):
        finite_norm("node", {"w": array})
