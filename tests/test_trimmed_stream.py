"""The streaming trimmed mean equals the one of all updates, in any batches and orders."""

from __future__ import annotations

from fractions import Fraction
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from umbel.protocol.errors import RoundFailed, SettingsError
from umbel.strategies.numpy_tiles import TILE, NumpyTiles
from umbel.strategies.trimmed_stream import TrimmedStream

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

MOST = 40
NUMPY = NumpyTiles(MOST)


def _kernels() -> list[object]:
    if find_spec("numba") is None:
        missing = pytest.mark.skip(reason="numba is not installed: pip install umbel[fast]")
        return [pytest.param(NUMPY, id="numpy"), pytest.param(None, id="numba", marks=missing)]
    compiled = import_module("umbel.strategies.numba_tiles").NumbaTiles(MOST)
    return [pytest.param(NUMPY, id="numpy"), pytest.param(compiled, id="numba")]


every_form = pytest.mark.parametrize("kernels", _kernels())


def exact(rows: NDArray[np.float32], cut: int) -> list[float]:
    """The trimmed mean in rational numbers."""
    means = []
    for column in rows.T.tolist():
        kept = sorted(Fraction(value) for value in column)[cut : len(column) - cut]
        means.append(float(sum(kept) / len(kept)))
    return means


def mean_of(stream: TrimmedStream, shard: int) -> NDArray[np.float32]:
    out = np.full(shard, 7.0, np.float32)
    stream.result(out)
    return out


@every_form
@settings(max_examples=40, deadline=None)
@given(
    cut=st.integers(0, 4),
    extra=st.integers(1, 12),
    batches=st.lists(st.integers(1, 6), max_size=6),
    seed=st.integers(0, 99),
)
def test_any_batches_give_the_exact_mean(
    kernels: NumpyTiles, cut: int, extra: int, batches: Sequence[int], seed: int
) -> None:
    clients = 2 * cut + extra
    rows = np.random.default_rng(seed).integers(-20, 20, (clients, 17)).astype(np.float32)
    stream, low = TrimmedStream(17, cut, kernels), 0
    for size in batches:
        if low < clients:
            stream.update(rows[low : low + size])
            low = min(low + size, clients)
    for row in rows[low:]:
        stream.update(row)
    assert stream.seen == clients
    assert mean_of(stream, 17) == pytest.approx(exact(rows, cut), rel=1e-6, abs=1e-6)


@every_form
def test_it_equals_the_other_kernel_on_real_numbers(kernels: NumpyTiles) -> None:
    size = TILE + 700
    rows = np.random.default_rng(3).normal(size=(32, size)).astype(np.float32)
    stream = TrimmedStream(size, 6, kernels)
    for low in range(0, 32, 8):
        stream.update(rows[low : low + 8])
    ordered = np.sort(rows.astype(np.float64), axis=0)[6:26].mean(axis=0)
    assert np.abs(mean_of(stream, size) - ordered).max() <= 1e-6
    whole = np.empty(size, np.float32)
    kernels.trimmed(rows, 6, whole)
    assert np.abs(mean_of(stream, size) - whole).max() <= 1e-6


@every_form
@pytest.mark.parametrize(
    ("smaller", "before"), [(0, 7), (1, 7), (3, 7), (0, 1), (0, 2), (1, 2), (1, 5), (2, 4), (2, 5)]
)
def test_a_smaller_cut_is_as_if_it_had_been_from_the_start(
    kernels: NumpyTiles, smaller: int, before: int
) -> None:
    rows = np.random.default_rng(1).integers(-99, 99, (9, 600)).astype(np.float32)
    stream = TrimmedStream(600, 3, kernels)
    stream.update(rows[:before])
    stream.shrink(smaller)
    stream.update(rows[before:])
    assert stream.cut == smaller
    assert mean_of(stream, 600) == pytest.approx(exact(rows, smaller), rel=1e-6, abs=1e-6)


@every_form
def test_a_sum_in_float64_has_the_same_bits_in_any_order(kernels: NumpyTiles) -> None:
    codes = np.random.default_rng(4).integers(-(2**23), 2**23, (20, 900))
    rows = (codes * 2.0 ** np.arange(-9, 11)[:, None]).astype(np.float32)  # multiples of 2^-9
    found = []
    for order in (rows, rows[::-1], np.roll(rows, 7, axis=0)):
        stream = TrimmedStream(900, 2, kernels, np.float64)
        for row in np.ascontiguousarray(order):
            stream.update(row)
        found.append(mean_of(stream, 900).tobytes())
    assert found[0] == found[1] == found[2] == np.array(exact(rows, 2), np.float32).tobytes()


@every_form
def test_nan_is_the_largest_and_a_hostile_value_costs_no_digit(kernels: NumpyTiles) -> None:
    rows = np.array([[np.nan], [1.0], [2.0], [3.0], [-1e30], [1e30]], np.float32)
    for order in ([0, 1, 2, 3, 4], [5, 4, 3, 2, 1], [4, 1, 0, 2, 3]):
        stream = TrimmedStream(1, 1, kernels)
        for place in order:
            stream.update(rows[place])
        assert mean_of(stream, 1).tolist() == [2.0]


def test_memory_is_two_lists_and_a_sum() -> None:
    assert TrimmedStream(1000, 4, NUMPY).nbytes == (2 * 4 + 1) * 1000 * 4


@every_form
def test_the_next_round_has_the_same_memory_and_the_first_cut(kernels: NumpyTiles) -> None:
    rows = np.random.default_rng(2).integers(-99, 99, (9, 60)).astype(np.float32)
    stream = TrimmedStream(60, 3, kernels)
    stream.update(rows[::-1] * np.float32(1000))
    stream.shrink(1)
    held = stream.nbytes
    stream.reset()
    stream.update(rows)
    assert (stream.nbytes, stream.cut, stream.seen) == (held, 3, 9)
    assert mean_of(stream, 60) == pytest.approx(exact(rows, 3), rel=1e-6, abs=1e-6)


def test_the_result_may_be_read_between_updates() -> None:
    stream = TrimmedStream(1, 1, NUMPY)
    for value, mean in ((1, None), (5, None), (3, 3.0), (4, 3.5)):
        stream.update(np.array([value], np.float32))
        if mean is None:
            with pytest.raises(SettingsError, match="trimmed mean: expected a cut of 0"):
                mean_of(stream, 1)
        else:
            assert mean_of(stream, 1).tolist() == [mean]


def test_refusals() -> None:
    with pytest.raises(SettingsError):
        TrimmedStream(3, -1, NUMPY)
    stream = TrimmedStream(3, 2, NUMPY)
    for cut in (-1, 3):
        with pytest.raises(SettingsError, match="a cut of 0 to 2"):
            stream.shrink(cut)
    stream.update(np.zeros((3, 3), np.float32))
    with pytest.raises(RoundFailed, match="3 updates came, and 4 are to be dropped"):
        stream.shrink(2)
    with pytest.raises(SettingsError):
        stream.update(np.zeros(4, np.float32))
