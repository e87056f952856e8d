"""Norms, and what is refused."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from umbel.protocol.errors import BadUpdate
from umbel.strategies.fedavg import TILE, finite_norm


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
