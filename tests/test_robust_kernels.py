"""The kernels of the robust rules, every form against numpy's own functions and float64 by hand."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from umbel.protocol.errors import SettingsError
from umbel.strategies import gram as rules
from umbel.strategies.numpy_tiles import GRAM_TILE, TILE, NumpyTiles
from umbel.strategies.torch_tiles import TorchTiles
from umbel.strategies.wide_tiles import WideTiles

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    Floats = NDArray[np.float32]

MOST = 66
FLOATS = st.floats(width=32, allow_nan=False)
PLAIN = st.integers(-(1 << 30), 1 << 30).map(lambda number: number / 1024)


class OnTensors(NumpyTiles):
    """TorchTiles behind arrays: a tensor of each, on the same memory."""

    name = "torch"

    def __init__(self, clients: int) -> None:
        super().__init__(clients)
        self._torch = TorchTiles(clients)

    def median(self, rows: Floats, out: Floats) -> None:
        """See NumpyTiles."""
        self._torch.median(_tensor(rows), _tensor(out))

    def trimmed(self, rows: Floats, cut: int, out: Floats) -> None:
        """See NumpyTiles."""
        self._torch.trimmed(_tensor(rows), cut, _tensor(out))

    def nearest(self, rows: Floats, picks: Sequence[int], keep: int, out: Floats) -> None:
        """See NumpyTiles."""
        self._torch.nearest(_tensor(rows), picks, keep, _tensor(out))

    def gram(self, rows: Floats, centre: Floats | None, total: NDArray[np.float64]) -> None:
        """See NumpyTiles."""
        middle = None if centre is None else _tensor(centre)
        self._torch.gram(_tensor(rows), middle, torch.from_numpy(total))

    def combine(
        self, rows: Floats, coefficients: NDArray[np.float64], centre: Floats | None, out: Floats
    ) -> None:
        """See NumpyTiles."""
        middle = None if centre is None else _tensor(centre)
        a = torch.from_numpy(coefficients)
        self._torch.combine(_tensor(rows), a, middle, _tensor(out))


def _tensor(array: Any) -> torch.Tensor:
    return torch.from_numpy(array)


@cache
def kernels(name: str) -> NumpyTiles:
    """Return the kernels of that name for MOST clients."""
    if name == "numba":
        made: NumpyTiles = import_module("umbel.strategies.numba_tiles").NumbaTiles(MOST)
        return made
    if name == "sorting":
        return WideTiles(2)
    return {"numpy": NumpyTiles, "torch": OnTensors}[name](MOST)


NAMES = [
    "numpy",
    "torch",
    "sorting",
    pytest.param(
        "numba",
        marks=pytest.mark.skipif(
            find_spec("numba") is None, reason="numba is not installed: pip install umbel[fast]"
        ),
    ),
]
every_form = pytest.mark.parametrize("name", NAMES)


def rows_of(clients: int, shard: int, seed: int = 0) -> Floats:
    return np.random.default_rng(seed).normal(size=(clients, shard)).astype(np.float32)


def median(name: str, rows: Floats) -> Floats:
    out = np.full(rows.shape[1], 7.0, np.float32)
    kernels(name).median(rows, out)
    return out


def trimmed(name: str, rows: Floats, cut: int) -> Floats:
    out = np.full(rows.shape[1], 7.0, np.float32)
    kernels(name).trimmed(rows, cut, out)
    return out


def both_rules(name: str, cut: int) -> list[Callable[[Floats], Floats]]:
    return [lambda rows: median(name, rows), lambda rows: trimmed(name, rows, cut)]


def trimmed64(rows: Floats, cut: int) -> NDArray[np.float64]:
    ordered = np.sort(rows.astype(np.float64), axis=0)
    return np.asarray(ordered[cut : len(rows) - cut].mean(axis=0))


@every_form
@pytest.mark.parametrize("clients", range(1, 66))
def test_the_median_is_numpys_bit_for_bit(name: str, clients: int) -> None:
    rows = rows_of(clients, 515, clients)
    assert median(name, rows).tobytes() == np.median(rows, axis=0).tobytes()
    tied = np.round(rows)
    assert np.array_equal(median(name, tied), np.median(tied, axis=0))


@every_form
@pytest.mark.parametrize("clients", range(1, 66, 4))
def test_the_trimmed_mean_is_that_of_the_sorted_values(name: str, clients: int) -> None:
    rows = rows_of(clients, 300, clients)
    for cut in {0, clients // 5, (clients - 1) // 2}:
        assert np.abs(trimmed(name, rows, cut) - trimmed64(rows, cut)).max() <= 1e-6


@every_form
def test_more_than_a_tile(name: str) -> None:
    rows = rows_of(5, TILE + 1001)
    assert np.array_equal(median(name, rows), np.median(rows, axis=0))
    assert np.abs(trimmed(name, rows, 1) - trimmed64(rows, 1)).max() <= 1e-6


@every_form
def test_rows_may_lie_apart_and_are_not_changed(name: str) -> None:
    ring = rows_of(6, 5000)
    before = ring.copy()
    shard = ring[::2, 100:3333]
    assert np.array_equal(median(name, shard), np.median(shard, axis=0))
    assert np.abs(trimmed(name, shard, 1) - trimmed64(shard, 1)).max() <= 1e-6
    assert np.array_equal(ring, before)


@every_form
def test_the_shards_of_a_model_are_cut_anywhere(name: str) -> None:
    rows = rows_of(9, 4001)
    for rule in both_rules(name, 2):
        parts = [rule(rows[:, low:high]) for low, high in ((0, 16), (16, 1999), (1999, 4001))]
        assert np.concatenate(parts).tobytes() == rule(rows).tobytes()


@every_form
def test_nan_is_the_largest_and_infinities_are_numbers(name: str) -> None:
    nan, inf = np.nan, np.inf
    columns = np.array(
        [[nan, 1, 2], [nan, nan, 5], [-inf, 3, inf], [inf, inf, 4], [nan, nan, nan], [-inf, 0, 0]],
        np.float32,
    )
    rows = np.ascontiguousarray(columns.T)
    assert median(name, rows).tolist() == [2, inf, 3, inf, inf, 0]
    assert trimmed(name, rows, 1).tolist() == [2, inf, 3, inf, inf, 0]
    even = np.array([[1, -inf], [2, inf], [nan, inf], [3, -inf]], np.float32)
    assert np.array_equal(median(name, even), [2.5, nan], equal_nan=True)


@every_form
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_what_both_rules_must_hold(name: str, data: st.DataObject) -> None:
    clients = data.draw(st.integers(1, 12))
    rows = data.draw(arrays(np.float32, (clients, 5), elements=PLAIN))
    order = data.draw(st.permutations(range(clients)))
    cut = data.draw(st.integers(0, (clients - 1) // 2))
    for rule in both_rules(name, cut):
        got = rule(rows)
        assert np.allclose(rule(rows[list(order)]), got, rtol=1e-5, atol=1e-5 * 1e6)
        assert (rule(-rows) == -got).all() or np.allclose(rule(-rows), -got, rtol=1e-4, atol=1.0)
        assert np.array_equal(rule(rows * np.float32(4)), got * np.float32(4))  # exact in binary
        assert (got >= rows.min(axis=0) - 1.0).all()
        assert (got <= rows.max(axis=0) + 1.0).all()
    assert np.array_equal(median(name, rows[list(order)]), median(name, rows))
    whole = np.round(rows)
    moved = median(name, whole + np.float32(1024))
    assert np.array_equal(moved, np.median(whole + np.float32(1024), axis=0))


@every_form
@settings(max_examples=25, deadline=None)
@given(rows=arrays(np.float32, (7, 6), elements=FLOATS))
def test_the_median_of_anything(name: str, rows: Floats) -> None:
    assert np.array_equal(median(name, rows), np.median(rows, axis=0))


@every_form
def test_a_hostile_value_does_not_wipe_out_digits(name: str) -> None:
    rows = np.array([[1e30], [1.0], [2.0], [3.0], [-1e30]], np.float32)
    assert trimmed(name, rows, 1).tolist() == [2.0]


def naive_nearest(column: Sequence[float], keep: int) -> float:
    """The mean of the values nearest to the median; of two as near, the smaller."""
    middle = float(np.median(column))
    near = sorted(column, key=lambda value: (abs(value - middle), value))
    return float(np.mean(near[:keep]))


@every_form
@pytest.mark.parametrize(("chosen", "keep"), [(1, 1), (5, 3), (6, 2), (9, 9), (15, 7)])
def test_bulyans_end_takes_the_nearest(name: str, chosen: int, keep: int) -> None:
    rows = np.random.default_rng(chosen).integers(-50, 50, (chosen + 3, 700)).astype(np.float32)
    picks = list(range(3, chosen + 3))
    out = np.empty(700, np.float32)
    kernels(name).nearest(rows, picks, keep, out)
    expected = [naive_nearest(column, keep) for column in rows[3:].T.tolist()]
    assert out == pytest.approx(expected, rel=1e-6, abs=1e-6)


@every_form
def test_inner_products_are_those_of_float64(name: str) -> None:
    rows, centre = rows_of(8, GRAM_TILE + 100), rows_of(1, GRAM_TILE + 100, 5)[0]
    wide = rows.astype(np.float64)
    for c in (None, centre):
        total = np.ones((8, 8))
        kernels(name).gram(rows, c, total)
        y = wide if c is None else wide - c
        assert np.abs(total - 1.0 - y @ y.T).max() <= 1e-6 * np.diagonal(y @ y.T).max()


@every_form
def test_inner_products_add_up_over_shards(name: str) -> None:
    rows = np.random.default_rng(0).integers(-9, 9, (5, 3000)).astype(np.float32)
    parts = []
    for low, high in ((0, 1024), (1024, 2500), (2500, 3000)):
        parts.append(np.zeros((5, 5)))
        kernels(name).gram(rows[:, low:high], None, parts[-1])
    assert np.array_equal(rules.together(parts), rows.astype(np.int64) @ rows.T.astype(np.int64))


@every_form
@pytest.mark.parametrize("ratio", [1e-2, 1e-5])
def test_krum_picks_as_float64_does(name: str, ratio: float) -> None:
    # Weights around 0.05 and updates `ratio` of them; the reference has the same float32 rows.
    for seed in range(5):
        rng = np.random.default_rng(seed)
        model = rng.normal(size=20_000) * 0.05
        steps = rng.normal(size=(16, 1)) * 0.2 + rng.normal(size=(16, 20_000))
        rows = (model + 0.05 * ratio * steps).astype(np.float32)
        centre = model.astype(np.float32)
        total = np.zeros((16, 16))
        kernels(name).gram(rows, centre, total)
        wide = rows.astype(np.float64)
        squared = np.array([[((a - b) ** 2).sum() for a in wide] for b in wide])
        np.fill_diagonal(squared, np.inf)
        scores = np.sort(squared, axis=1)[:, :11].sum(axis=1)
        assert rules.krum(total, 3) == scores.argmin()
        order = np.argsort(scores)[:8]
        assert set(np.flatnonzero(rules.multi_krum(total, 3, 8))) == set(order)
        near = rules.distances(total)
        np.fill_diagonal(near, np.inf)
        finite = np.isfinite(squared)
        assert np.abs(near[finite] / squared[finite] - 1.0).max() <= 1e-6


@every_form
def test_the_weighted_fold(name: str) -> None:
    rows, centre = rows_of(6, 40_000), rows_of(1, 40_000, 9)[0]
    rows[2] = np.nan  # not read: its coefficient is 0
    a = np.array([0.5, 0.25, 0.0, -0.125, 0.0, 0.1])
    used = np.nan_to_num(rows.astype(np.float64))
    for c, rest in ((None, 0.0), (centre, 1.0 - a.sum())):
        out = np.full(40_000, 3.0, np.float32)
        kernels(name).combine(rows, a, c, out)
        expected = a @ used + (0.0 if c is None else rest * c.astype(np.float64))
        assert np.abs(out - expected).max() <= 1e-6


def test_refusals_of_sorted_columns() -> None:
    form, out = WideTiles(), np.empty(4, np.float32)
    for rows in (np.zeros((3, 5), np.float32), np.zeros((3, 4), np.int32), np.zeros((0, 4))):
        with pytest.raises(SettingsError):
            form.median(rows.astype(rows.dtype), out)
    with pytest.raises(SettingsError, match="each contiguous"):
        form.median(np.zeros((4, 3), np.float32).T, np.empty(4, np.float32))
    with pytest.raises(SettingsError, match="a cut below half of 3 rows"):
        form.trimmed(np.zeros((3, 4), np.float32), 2, out)
    with pytest.raises(SettingsError, match="1 to 2 values to keep"):
        form.nearest(np.zeros((3, 4), np.float32), [0, 1], 3, out)


@pytest.mark.parametrize("name", ["numpy", "torch", *NAMES[3:]])
def test_refusals(name: str) -> None:
    form, out = kernels(name), np.empty(4, np.float32)
    with pytest.raises(SettingsError, match="float32 rows of 1 to 66 clients"):
        form.median(np.zeros((MOST + 1, 4), np.float32), out)
    with pytest.raises(SettingsError):
        form.median(np.zeros((3, 5), np.float32), out)
    with pytest.raises(SettingsError):
        form.median(np.zeros((3, 4), np.float64), out)
    with pytest.raises(SettingsError, match="a cut of 0 to 1"):
        form.trimmed(np.zeros((3, 4), np.float32), 2, out)
    for keep in (0, 3):
        with pytest.raises(SettingsError, match="1 to 2 values to keep"):
            form.nearest(np.zeros((3, 4), np.float32), [0, 1], keep, out)
    with pytest.raises(SettingsError, match="1 or more clients"):
        type(form)(0)


def test_a_row_that_is_not_contiguous_is_refused() -> None:
    with pytest.raises(SettingsError, match="each contiguous"):
        NumpyTiles(3).median(np.zeros((4, 3), np.float32).T, np.empty(4, np.float32))
