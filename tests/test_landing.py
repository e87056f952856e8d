"""Models that come in pieces: where the bytes go, what is refused, what the sum is."""

from __future__ import annotations

import io
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from umbel.protocol.errors import BadUpdate, RoundFailed
from umbel.strategies import landing
from umbel.strategies.landing import SLOTS, Incoming, Landing

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

Arrays = dict[str, "NDArray[Any]"]


def saved(array: NDArray[Any]) -> bytes:
    file = io.BytesIO()
    np.save(file, array, allow_pickle=False)
    return file.getvalue()


def pieces(data: bytes, first: int, step: int) -> Iterator[bytes]:
    yield data[:first]
    for start in range(first, len(data), step):
        yield data[start : start + step]


def sent(arrays: Arrays, first: int = 200, step: int = 37) -> dict[str, Incoming]:
    """Return arrays as they come, cut where no value ends."""
    return {
        name: Incoming(str(a.dtype), "numpy.ndarray", pieces(saved(a), first, step))
        for name, a in arrays.items()
    }


RNG = np.random.default_rng(5)
MODEL: Arrays = {
    "b16": RNG.normal(size=(3, 5)).astype(ml_dtypes.bfloat16),
    "w": RNG.normal(size=(7, 11)).astype(np.float32),
    "steps": np.array([3, 4], np.int64),
    "half": RNG.normal(size=(9,)).astype(np.float16),
    "empty": np.zeros((0, 4), np.float32),
    "scalar": np.array(2.5, np.float32),
    "wide": RNG.normal(size=(2, 3)).astype(np.float64),
    "mask": np.array([True, False]),
}


def like_model(number: int) -> Arrays:
    rng = np.random.default_rng(number)
    return {
        name: a if a.dtype.kind in "bi" else rng.normal(size=a.shape).astype(a.dtype)
        for name, a in MODEL.items()
    }


@pytest.mark.parametrize("clients", [1, 2, SLOTS, SLOTS + 1, 3 * SLOTS])
def test_the_mean_is_the_exact_one_rounded(clients: int) -> None:
    total, updates, weights = Landing(MODEL), [], []
    for number in range(clients):
        updates.append(like_model(number))
        weights.append(number + 1)
        total.take(f"node {number}", sent(updates[-1]), weights[-1])
    means = total.mean()
    assert set(means) == {"b16", "w", "half", "empty", "scalar", "wide"}
    for name, mean in means.items():
        assert (mean.dtype, mean.shape) == (MODEL[name].dtype, MODEL[name].shape)
        for place in np.ndindex(mean.shape):
            parts = zip(weights, updates, strict=True)
            exact = sum(w * Fraction(float(u[name][place])) for w, u in parts) / sum(weights)
            if name == "wide":
                assert abs(float(mean[place]) - float(exact)) <= 1e-15
            else:
                # A float64 is nearer to the exact mean than the narrow type can tell.
                assert mean[place] == np.float64(exact).astype(mean.dtype)


VALUES = st.floats(-1e6, 1e6, width=32)


@given(
    st.lists(st.tuples(st.tuples(VALUES, VALUES), st.integers(1, 2**20)), min_size=1, max_size=12)
)
def test_the_mean_of_any_values_equals_the_exact_fraction(
    updates: list[tuple[tuple[float, float], int]],
) -> None:
    total = Landing({"w": np.zeros(2, np.float32)})
    for values, weight in updates:
        total.take("node", sent({"w": np.array(values, np.float32)}), weight)
    weights = sum(weight for _, weight in updates)
    scale = max(abs(v) for values, _ in updates for v in values)
    for place, got in enumerate(total.mean()["w"].tolist()):
        parts = (Fraction(values[place]) * weight for values, weight in updates)
        exact = sum(parts, Fraction()) / weights
        # One rounding to float32 (2^-24 of the result) and 12 of float64.
        assert abs(Fraction(got) - exact) <= abs(exact) / 2**24 + Fraction(scale) / 2**48


def test_a_thousand_clients_stay_within_1e_6_and_arrive_in_any_order() -> None:
    rng = np.random.default_rng(3)
    updates = rng.normal(size=(1000, 257)).astype(np.float32)
    weights = rng.integers(1, 2**20, 1000)
    exact = np.average(updates.astype(np.longdouble), axis=0, weights=weights)
    means = []
    for order in (range(1000), reversed(range(1000))):
        total = Landing({"w": updates[0]})
        for i in order:
            total.take("node", sent({"w": updates[i]}, step=4096), int(weights[i]))
        means.append(total.mean()["w"])
    scale = np.abs(updates).max()
    assert np.abs(means[0] - exact).max() <= 1e-6 * scale
    assert np.abs(means[0] - means[1]).max() <= np.spacing(np.float32(scale))


def test_any_order_and_any_batches_have_the_same_bits_where_the_products_fit() -> None:
    rng = np.random.default_rng(1)
    model = {"w": np.zeros(4000, np.float32)}
    # |x| in 1..2 and weights of 9 bits: at most 29 + 9 + 1 digits for the sum of any of them.
    sign = rng.choice([-1.0, 1.0], size=4000)
    updates = [(sign * rng.uniform(1.0, 2.0, 4000)).astype(np.float32) for _ in range(11)]
    weights = [int(w) for w in rng.integers(1, 512, 11)]
    seen = set()
    for order in (rng.permutation(11) for _ in range(10)):
        total = Landing(model)
        for step, number in enumerate(order):
            total.take("node", sent({"w": updates[number]}, step=4096), weights[number])
            if step % 3 == order[0] % 3:
                total.fold()
        seen.add(total.mean()["w"].tobytes())
    assert len(seen) == 1


def test_fortran_order_lands_in_c_order_and_other_orders_are_told_apart() -> None:
    total = Landing({"w": np.zeros((4, 3), np.float32), "v": np.zeros((2, 3, 4))})
    w = np.arange(12, dtype=np.float32).reshape(4, 3)
    v = np.arange(24.0).reshape(2, 3, 4)
    total.take("node", sent({"w": np.asfortranarray(w), "v": np.asfortranarray(v)}), 3.0)
    assert total.mean()["w"].tolist() == w.tolist()
    assert total.mean()["v"].tolist() == v.tolist()


W = {"w": np.ones(40, np.float32), "n": np.array(1)}
TRUE = saved(W["w"])


def spoilt(value: float, at: int) -> bytes:
    array = W["w"].copy()
    array[at] = value
    return saved(array)


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (TRUE[:-1], "array 'w': expected 160 bytes, got 159"),
        (TRUE + b"1", "array 'w': expected 160 bytes, got more"),
        (saved(np.ones(40)), "array 'w': expected float32 (40,), got float64 (40,)"),
        (saved(np.ones((40, 1), np.float32)), "expected float32 (40,), got float32 (40, 1)"),
        (saved(np.ones(40, ">f4")), "expected float32 (40,), got >f4 (40,)"),
        (spoilt(np.nan, 39), "array 'w': expected finite values, got nan"),
        (spoilt(-np.inf, 0), "array 'w': expected finite values, got -inf"),
        (b"", "array 'w': expected a numpy array, got no .npy of version 1 or 2"),
        (b"PK" + TRUE, "array 'w': expected a numpy array, got no .npy of version 1 or 2"),
    ],
)
def test_nothing_of_a_refused_model_is_in_the_sum(data: bytes, complaint: str) -> None:
    total = Landing(W)
    total.take("node 1", sent({**W, "w": np.full(40, 2.0, np.float32)}), 1.0)
    bad = {**sent(W), "w": Incoming("float32", "numpy.ndarray", pieces(data, 128, 50))}
    with pytest.raises(BadUpdate) as refused:
        total.take("node 2", bad, 5.0)
    assert str(refused.value).startswith("node 2: ")
    assert complaint in str(refused.value)
    total.take("node 3", sent({**W, "w": np.full(40, 4.0, np.float32)}), 3.0)
    assert total.mean()["w"].tolist() == [3.5] * 40  # (1 * 2 + 3 * 4) / 4


def test_large_values_are_no_infinities() -> None:
    # Their squares are: 1e38 is a float32, 1e76 is not.
    total = Landing({"w": np.zeros(3, np.float32)})
    total.take("node", sent({"w": np.array([1e38, -2e38, 3e38], np.float32)}), 2.0)
    assert total.mean()["w"].tolist() == np.array([1e38, -2e38, 3e38], np.float32).tolist()


def test_names_are_the_models() -> None:
    for names in ({"w": W["w"]}, {**W, "more": W["n"]}, {}):
        with pytest.raises(BadUpdate, match="expected the names of the global model"):
            Landing(W).take("node", sent(names), 1.0)


def test_a_round_after_the_first_begins_at_zero_in_the_same_memory() -> None:
    total = Landing(W)
    total.take("node", sent({**W, "w": np.full(40, 8.0, np.float32)}), 2.0)
    total.fold()
    total.take("node", sent({**W, "w": np.full(40, 8.0, np.float32)}), 2.0)
    again = total.again({**W, "n": np.array(9)})
    assert again is total
    assert again.model["n"] == 9
    again.take("node", sent(W), 5.0)
    assert again.mean()["w"].tolist() == [1.0] * 40
    assert total.again({"w": np.ones(41, np.float32)}) is not total


def test_without_a_model_there_is_no_mean() -> None:
    with pytest.raises(RoundFailed, match="no update reached the sum"):
        Landing(W).mean()


def test_a_large_model_has_one_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    # Then each is folded as it lands: what is in the sum cannot be lost by the next one.
    monkeypatch.setattr(landing, "ROOM", 100)
    total = Landing(W)
    for value in (1.0, 2.0, 6.0):
        total.take("node", sent({**W, "w": np.full(40, value, np.float32)}), 1.0)
    assert total.mean()["w"].tolist() == [3.0] * 40
