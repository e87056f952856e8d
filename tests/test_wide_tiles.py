"""Kernels for thousands of rows: tiles, blocks and threads change no bit, float64 rows are rounded.

That the rules are right is test_robust_kernels.py's, which runs these kernels with the others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from umbel.strategies import wide_tiles
from umbel.strategies.gram import distances, krum_scores, multi_krum
from umbel.strategies.robust_rules import Robust, aggregate
from umbel.strategies.wide_tiles import WideTiles

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float32]

RULES = [
    Robust(rule="median", byzantine=100),
    Robust(rule="trimmed-mean", byzantine=100, cut=0.2),
    Robust(rule="multi-krum", byzantine=100),
    Robust(rule="norm-bounding", radius=3.0),
]


def rows_of(clients: int = 600, values: int = 333) -> Floats:
    rows = np.random.default_rng(3).normal(size=(clients, values)).astype(np.float32)
    rows[7], rows[11, 5], rows[12, 6] = 1e6, np.inf, np.nan
    return rows


def made(robust: Robust, rows: Floats, threads: int = 1) -> Floats:
    out = np.empty(rows.shape[1], np.float32)
    aggregate(robust, rows, out, WideTiles(threads), weights=np.arange(1, len(rows) + 1))
    return out


@pytest.mark.parametrize("robust", RULES, ids=lambda robust: robust.rule)
def test_tiles_and_threads_change_no_bit(robust: Robust, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = rows_of()
    whole = made(robust, rows)
    if robust.rule in {"median", "trimmed-mean"}:  # the products of a tile are added tile by tile
        monkeypatch.setattr(wide_tiles, "TILE_BYTES", 600 * 4 * 32)
    assert made(robust, rows).tobytes() == made(robust, rows, 3).tobytes() == whole.tobytes()
    assert np.isfinite(whole).all()


def test_a_median_and_a_trimmed_mean_are_those_of_the_definition() -> None:
    rows = rows_of()
    ordered = np.sort(np.where(np.isnan(rows), np.inf, rows).astype(np.float64), axis=0)
    assert made(RULES[0], rows).tobytes() == (
        (ordered[299].astype(np.float32) + ordered[300].astype(np.float32)) / np.float32(2)
    ).tobytes()  # fmt: skip
    expected = ordered[120:480].mean(axis=0)
    assert np.abs(made(RULES[1], rows) - expected).max() < 1e-7


def test_float64_rows_are_rounded_to_what_the_rules_work_in() -> None:
    rows = rows_of()
    assert made(RULES[0], rows.astype(np.float64)).tobytes() == made(RULES[0], rows).tobytes()


def test_products_made_block_by_block_are_those_of_float64(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(wide_tiles, "BLOCK", 250)
    monkeypatch.setattr(wide_tiles, "TILE_BYTES", 600 * 4 * 64)
    rows = np.random.default_rng(4).normal(size=(600, 200)).astype(np.float32)
    total = np.zeros((600, 600))
    WideTiles().gram(rows, None, total)
    exact = rows.astype(np.float64) @ rows.astype(np.float64).T
    assert np.abs(total - exact).max() < 1e-4
    assert np.array_equal(total, total.T)


def test_scores_made_block_by_block_are_those_of_the_whole_matrix() -> None:
    rows = rows_of(600, 40).astype(np.float64)
    gram = rows @ rows.T
    scores = krum_scores(distances(gram), 100)
    best = np.argsort(scores, kind="stable")[:50]
    found = multi_krum(gram, 100, 50)
    assert np.flatnonzero(found).tolist() == sorted(best.tolist())
    assert not {7, 11, 12} & set(best.tolist())
