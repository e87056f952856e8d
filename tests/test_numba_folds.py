"""The compiled folds: numpy's arithmetic row by row, bit for bit."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from umbel.server.core.shards import shards

if TYPE_CHECKING:
    from numpy.typing import NDArray

if importlib.util.find_spec("numba") is None:
    pytest.skip("numba is not installed: it comes with umbel[fast]", allow_module_level=True)

from umbel.server.core import numba_folds
from umbel.server.core.numba_folds import ROWS

SIZE = 5003
"""No multiple of a vector register: the loops have remainders."""
COUNTS = (0, 1, ROWS - 2, ROWS - 1, ROWS, 2 * ROWS - 1, 2 * ROWS + 3)


def _floats(k: int, dtype: Any) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    rng = np.random.default_rng(k)
    total, rows = rng.standard_normal(SIZE).astype(dtype), rng.standard_normal((k, SIZE))
    return total, rows.astype(dtype), rng.uniform(50, 500, k).astype(dtype)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("k", COUNTS)
def test_a_fold_adds_a_rounded_product_after_the_other(k: int, dtype: Any) -> None:
    total, rows, weights = _floats(k, dtype)
    expected, before = total.copy(), total.copy()
    for row, weight in zip(rows, weights, strict=True):
        expected = expected + weight * row
    other = np.full_like(total, np.nan)
    numba_folds.fold(total, rows, weights, other)
    assert np.array_equal(total, before)
    assert np.array_equal(other, expected)
    numba_folds.fold(total, rows, weights)
    assert np.array_equal(total, expected)
    assert total.dtype == dtype


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("k", COUNTS)
def test_a_ring_fold_wraps_around(k: int, dtype: Any) -> None:
    limits, rng = np.iinfo(dtype), np.random.default_rng(k)
    words = rng.integers(limits.min, limits.max, (k + 1, SIZE), dtype=dtype, endpoint=True)
    words[:, :2] = [limits.max, limits.min]
    unsigned = np.uint32 if dtype is np.int32 else np.uint64
    expected = words.view(unsigned).sum(axis=0, dtype=unsigned).view(dtype)
    total, other = words[0].copy(), np.full(SIZE, 7, dtype)
    numba_folds.fold_ring(total, words[1:], other)
    assert np.array_equal(total, words[0])
    assert np.array_equal(other, expected)
    numba_folds.fold_ring(total, words[1:])
    assert np.array_equal(total, expected)


@pytest.mark.parametrize("world", range(1, 9))
def test_any_world_and_any_batches_have_the_same_bits(world: int) -> None:
    total, rows, weights = _floats(19, np.float32)
    whole = total.copy()
    numba_folds.fold(whole, rows, weights)
    for low, high in shards(SIZE, world):
        for some in (slice(0, 5), slice(5, 16), slice(16, None)):
            numba_folds.fold(total[low:high], rows[some, low:high], weights[some])
    assert np.array_equal(total, whole)
