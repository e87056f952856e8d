"""Robust rules by name: whole rounds over shards against float64, limits, and refusals."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from umbel.protocol.errors import RoundFailed, SettingsError
from umbel.strategies import robust_rules
from umbel.strategies.numpy_tiles import NumpyTiles
from umbel.strategies.robust_rules import RULES, Robust, aggregate, kernels, refuse_secure

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Matrix = NDArray[np.float64]

CLIENTS, SIZE = 15, 3000
NUMBERS: dict[str, dict[str, Any]] = {
    "multi-krum": {"keep": 6},
    "centred-clipping": {"radius": 20.0, "iterations": 2},
    "norm-bounding": {"radius": 20.0},
    "trimmed-mean": {"cut": 0.25},
}


def rule_of(name: str) -> Robust:
    return Robust(rule=name, byzantine=0 if name == "norm-bounding" else 3, **NUMBERS.get(name, {}))


def rows_of(hostile: int = 3) -> NDArray[np.float32]:
    rng = np.random.default_rng(5)
    rows = rng.normal(size=(CLIENTS, SIZE)) + 0.5
    rows[CLIENTS - hostile :] = 40.0
    return rows.astype(np.float32)


def run(robust: Robust, rows: NDArray[np.float32], centre: Any = None) -> NDArray[np.float32]:
    out = np.empty(rows.shape[1], np.float32)
    aggregate(robust, rows, out, NumpyTiles(len(rows)), centre=centre)
    return out


def naive_bulyan(rows: Matrix, f: int) -> Matrix:
    """El Mhamdi et al., section 4, over the rows themselves."""
    left, theta = list(range(len(rows))), len(rows) - 2 * f
    picked: list[int] = []
    while len(picked) < theta:
        scores = []
        for i in left:
            far = sorted(float(((rows[i] - rows[j]) ** 2).sum()) for j in left if j != i)
            scores.append(sum(far[: max(1, len(left) - f - 2)]))
        picked.append(left.pop(int(np.argmin(scores))))
    chosen = rows[picked]
    near = np.argsort(np.abs(chosen - np.median(chosen, axis=0)), axis=0, kind="stable")
    kept = np.take_along_axis(chosen, near[: theta - 2 * f], axis=0)
    return np.asarray(kept.mean(axis=0))


def test_bulyan_is_the_papers() -> None:
    rows = rows_of()
    expected = naive_bulyan(rows.astype(np.float64), 3)
    assert np.abs(run(rule_of("bulyan"), rows) - expected).max() <= 1e-6


@pytest.mark.parametrize("name", sorted(set(RULES) - {"norm-bounding", "fltrust"}))
def test_three_hostile_of_fifteen_do_not_move_the_result_far(name: str) -> None:
    honest = rows_of()[: CLIENTS - 3].astype(np.float64)
    off = np.abs(run(rule_of(name), rows_of()) - honest.mean(axis=0))
    plain = np.abs(rows_of().mean(axis=0) - honest.mean(axis=0))
    assert np.linalg.norm(off) < np.linalg.norm(plain) / 5


@pytest.mark.parametrize("name", sorted(RULES))
@pytest.mark.parametrize("centred", [False, True])
def test_shards_together_give_what_one_gives(name: str, centred: bool) -> None:
    robust, rows = rule_of(name), np.round(rows_of() * 64) / np.float32(64)
    centre = np.round(rows_of()[0] * 16) / np.float32(16) + np.float32(1) if centred else None
    whole = run(robust, rows, centre)
    bounds = [(0, 1024), (1024, 2048), (2048, SIZE)]
    parts: list[Matrix] = []

    def collect(part: Matrix) -> Matrix:
        parts.append(part)
        return part

    def everywhere(_: Matrix) -> Matrix:
        return np.asarray(sum(parts))

    shards = [(rows[:, a:b], None if centre is None else centre[a:b]) for a, b in bounds]
    out = [np.empty(b - a, np.float32) for a, b in bounds]
    tiles = NumpyTiles(CLIENTS)
    for (part, c), target in zip(shards, out, strict=True):
        aggregate(robust, part, target, tiles, centre=c, reduce=collect)
    assert bool(parts) is RULES[name].inner_products
    for (part, c), target in zip(shards, out, strict=True):
        aggregate(robust, part, target, tiles, centre=c, reduce=everywhere)
    assert np.abs(np.concatenate(out) - whole).max() <= 2e-5
    if not RULES[name].inner_products:
        assert np.array_equal(np.concatenate(out), whole)


@pytest.mark.parametrize("name", sorted(RULES))
def test_a_row_of_nan_is_survived(name: str) -> None:
    rows = rows_of()
    rows[-1] = np.nan
    assert np.isfinite(run(rule_of(name), rows)).all()


@pytest.mark.parametrize("name", ["krum", "geometric-median", "fltrust"])
def test_nothing_finite_ends_the_round(name: str) -> None:
    with pytest.raises(RoundFailed):
        run(rule_of(name), np.full((CLIENTS, 8), np.nan, np.float32))


def test_multi_krum_keeps_all_but_the_byzantine() -> None:
    rows = rows_of()
    expected = rows[: CLIENTS - 3].astype(np.float64).mean(axis=0)
    assert np.abs(run(Robust(rule="multi-krum", byzantine=3), rows) - expected).max() <= 1e-6


def test_the_trimmed_mean_cuts_as_flower_does() -> None:
    assert [Robust(rule="trimmed-mean").cut_of(n) for n in (4, 5, 16, 32)] == [0, 1, 3, 6]


@pytest.mark.parametrize(
    ("name", "clients"),
    [("median", 6), ("krum", 8), ("multi-krum", 8), ("bulyan", 14), ("geometric-median", 6)],
)
def test_too_few_clients_are_refused_with_the_number_that_would_do(name: str, clients: int) -> None:
    robust = Robust(rule=name, byzantine=3)
    robust.check(clients + 1)
    with pytest.raises(SettingsError, match=f"expected {clients + 1} or more clients"):
        robust.check(clients)


def test_a_cut_below_the_byzantine_is_refused() -> None:
    robust = Robust(rule="trimmed-mean", byzantine=3)
    robust.check(15)  # a fifth of 15 is 3, of 14 it is 2
    with pytest.raises(SettingsError) as told:
        robust.check(14)
    assert "15 or more clients (of which cut 0.2 drops 3 at either end, all f)" in str(told.value)


def test_the_arithmetic_is_shown() -> None:
    assert Robust(rule="bulyan", byzantine=2).least == (11, "4 f + 3 with f = 2")
    assert Robust(rule="krum", byzantine=2).least == (7, "2 f + 3 with f = 2")
    assert Robust(rule="trimmed-mean", byzantine=1, cut=0.4).least == (3, "2 f + 1 with f = 1")


def test_more_kept_than_there_are_is_refused() -> None:
    with pytest.raises(SettingsError, match="9 or more clients"):
        Robust(rule="multi-krum", byzantine=1, keep=9).check(8)


@pytest.mark.parametrize(
    ("numbers", "complaint"),
    [
        ({"rule": "mean"}, "one of median, trimmed-mean"),
        ({"rule": "krum", "byzantine": -1}, "krum: byzantine"),
        ({"rule": "trimmed-mean", "cut": 0.5}, "below 0.5"),
        ({"rule": "trimmed-mean", "cut": float("nan")}, "below 0.5"),
        ({"rule": "trimmed-mean", "cut": 0.0, "byzantine": 1}, "0.001 or more to bear f"),
        ({"rule": "multi-krum", "keep": 0}, "keep"),
        ({"rule": "norm-bounding"}, "radius"),
        ({"rule": "centred-clipping", "radius": float("inf")}, "radius"),
        ({"rule": "centred-clipping", "radius": 1.0, "iterations": 0}, "iterations"),
    ],
)
def test_numbers_are_checked_where_they_are_given(numbers: dict[str, Any], complaint: str) -> None:
    with pytest.raises(SettingsError, match=complaint):
        Robust(**numbers)


@pytest.mark.parametrize("name", sorted(RULES))
def test_secure_sums_are_refused_with_the_reason(name: str) -> None:
    with pytest.raises(
        SettingsError, match="secure aggregation is on and shows the server"
    ) as told:
        refuse_secure(rule_of(name))
    assert f"{name} compares single updates" in str(told.value)


def test_a_rule_without_a_weighted_fold_has_no_coefficients() -> None:
    with pytest.raises(SettingsError, match="weighted fold"):
        rule_of("median").coefficients(np.eye(9))


def test_without_numba_numpy_does_it_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, f"{robust_rules.__package__}.numba_tiles", None)
    tiles, line = kernels(4)
    assert tiles.name == "numpy"
    assert "pip install 'umbel[fast]'" in line


def test_with_numba_it_is_compiled() -> None:
    pytest.importorskip("numba", reason="numba is not installed: pip install umbel[fast]")
    tiles, line = kernels(4)
    assert tiles.name == "numba"
    assert line == "robust rules run compiled by numba"
