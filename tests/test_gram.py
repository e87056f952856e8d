"""What follows from inner products equals the papers' rules on the rows themselves, in float64."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from umbel.protocol.errors import RoundFailed, SettingsError
from umbel.strategies import gram as rules

if TYPE_CHECKING:
    from numpy.typing import NDArray


def rows_of(seed: int, clients: int, size: int = 40, outliers: int = 0) -> NDArray[np.float64]:
    rng = np.random.default_rng(seed)
    rows: NDArray[np.float64] = rng.normal(size=(clients, size)) + rng.normal(size=size)
    rows[:outliers] += rng.normal(size=(outliers, size)) * 30
    return rows


def inner(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(rows @ rows.T)


def squared_distance(a: NDArray[np.float64], b: NDArray[np.float64]) -> float:
    return float(((a - b) ** 2).sum())


def naive_scores(rows: NDArray[np.float64], byzantine: int) -> list[float]:
    """Blanchard et al.: over the n - f - 2 closest other vectors."""
    scores = []
    for i, row in enumerate(rows):
        others = sorted(squared_distance(row, other) for j, other in enumerate(rows) if j != i)
        scores.append(sum(others[: max(1, len(rows) - byzantine - 2)]))
    return scores


@pytest.mark.parametrize(("clients", "byzantine"), [(5, 1), (9, 3), (16, 3), (31, 7), (3, 0)])
def test_krum_is_blanchards(clients: int, byzantine: int) -> None:
    rows = rows_of(clients, clients, outliers=byzantine)
    expected = naive_scores(rows, byzantine)
    squared = rules.distances(inner(rows))
    assert rules.krum_scores(squared, byzantine) == pytest.approx(expected, rel=1e-9)
    order = sorted(range(clients), key=lambda i: expected[i])
    assert rules.krum(inner(rows), byzantine) == order[0]
    weights = rules.multi_krum(inner(rows), byzantine, 2)
    assert weights == pytest.approx([0.5 if i in order[:2] else 0.0 for i in range(clients)])


def test_krum_by_hand() -> None:
    # On a line at 0, 1, 3, 7, f = 0: two neighbours count. 1: 1 + 4 = 5 is the least.
    line = np.array([[0.0], [1.0], [3.0], [7.0]])
    scores = rules.krum_scores(rules.distances(inner(line)), 0)
    assert scores.tolist() == [1 + 9, 1 + 4, 4 + 9, 16 + 36]


def test_a_tie_goes_to_the_first() -> None:
    rows = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0], [0.0, 1.0]])
    assert rules.krum(inner(rows), 1) == 0
    assert rules.multi_krum(inner(rows), 1, 2).tolist() == [0.5, 0.5, 0.0, 0.0]


def naive_bulyan(rows: NDArray[np.float64], byzantine: int) -> list[int]:
    left = list(range(len(rows)))
    picked: list[int] = []
    while len(picked) < len(rows) - 2 * byzantine:
        scores = naive_scores(rows[left], byzantine) if len(left) > 1 else [0.0]
        picked.append(left.pop(min(range(len(left)), key=lambda i: scores[i])))
    return sorted(picked)


@pytest.mark.parametrize(("clients", "byzantine"), [(3, 0), (7, 1), (11, 2), (19, 4)])
def test_bulyan_selects_anew_after_each_pick(clients: int, byzantine: int) -> None:
    for seed in range(5):
        rows = rows_of(seed, clients, outliers=byzantine)
        assert rules.bulyan_selection(inner(rows), byzantine) == naive_bulyan(rows, byzantine)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(("clients", "outliers"), [(3, 0), (8, 3), (20, 9)])
def test_the_geometric_median_is_the_minimum(clients: int, outliers: int, weighted: bool) -> None:
    rows = rows_of(clients, clients, size=5, outliers=outliers)
    weights = np.random.default_rng(1).uniform(0.5, 2.0, clients) if weighted else np.ones(clients)

    def cost(point: NDArray[np.float64]) -> float:
        return float(weights @ np.sqrt(((rows - point) ** 2).sum(axis=1)))

    found = minimize(cost, rows.mean(axis=0), method="BFGS", options={"gtol": 1e-9})
    a = rules.geometric_median(inner(rows), weights if weighted else None)
    assert a.sum() == pytest.approx(1.0)
    assert (a >= 0.0).all()
    assert cost(a @ rows) <= found.fun * (1 + 1e-9)
    assert a @ rows == pytest.approx(found.x, abs=1e-4)


def test_the_geometric_median_may_be_a_clients_own_point() -> None:
    # Three corners around a point inside: with an obtuse angle at it, Fermat's point is the corner.
    rows = np.array([[0.0, 0.0], [10.0, 1.0], [-10.0, 1.0]])
    assert rules.geometric_median(inner(rows)) @ rows == pytest.approx([0.0, 0.0], abs=1e-4)
    # The mean is a client's point, and not the median: the plain iteration would never leave it.
    stuck = np.array([[0.0, 0.0], [6.0, 0.0], [-3.0, 1.0], [-3.0, -1.0]])
    assert stuck.mean(axis=0).tolist() == [0.0, 0.0]
    a = rules.geometric_median(inner(stuck))
    best = minimize(
        lambda p: np.sqrt(((stuck - p) ** 2).sum(axis=1)).sum(), [-1.0, 0.1], method="Nelder-Mead"
    )
    assert np.sqrt(((stuck - a @ stuck) ** 2).sum(axis=1)).sum() <= best.fun + 1e-6


def test_equal_rows_are_their_own_median() -> None:
    rows = np.ones((4, 3))
    assert rules.geometric_median(inner(rows)) == pytest.approx([0.25] * 4)


@pytest.mark.parametrize("iterations", [1, 3])
def test_centred_clipping_is_the_papers_loop(iterations: int) -> None:
    rows = rows_of(2, 9, outliers=3)
    point, radius = np.zeros(rows.shape[1]), 5.0
    for _ in range(iterations):
        steps = [
            (row - point) * min(1.0, radius / float(np.linalg.norm(row - point))) for row in rows
        ]
        point = point + np.mean(steps, axis=0)
    a = rules.centred_clipping(inner(rows), radius, iterations)
    assert a @ rows == pytest.approx(point, rel=1e-9, abs=1e-12)


def test_norm_bounding_cuts_each_row() -> None:
    rows = np.array([[3.0, 4.0], [0.3, 0.4], [0.0, 0.0]])
    assert rules.norm_bounding(inner(rows), 1.0) @ rows == pytest.approx([0.9 / 3, 1.2 / 3])
    assert rules.norm_bounding(inner(rows), 1.0, [1, 2, 1]) @ rows == pytest.approx([0.3, 0.4])


def test_fltrust_by_hand() -> None:
    # Server (2, 0). (0, 3) is orthogonal, (-1, 0) against it, (5, 0) with it, (1, 1) at 45 degrees.
    rows = np.array([[2.0, 0.0], [0.0, 3.0], [-1.0, 0.0], [5.0, 0.0], [1.0, 1.0]])
    half = 0.5**0.5
    expected = np.array([2.0 + half * 2 * half, half * 2 * half]) / (1 + half)
    assert rules.fltrust(inner(rows)) @ rows == pytest.approx(expected)
    with pytest.raises(RoundFailed, match="server's own"):
        rules.fltrust(inner(rows[:3]))


def test_cosines() -> None:
    rows = np.array([[1.0, 0.0], [1.0, 1.0], [-2.0, 0.0], [0.0, 0.0]])
    assert rules.cosines(inner(rows))[0] == pytest.approx([1.0, 0.5**0.5, -1.0, 0.0])


def test_another_centre_needs_no_rows() -> None:
    rows = rows_of(3, 12)
    b = np.random.default_rng(0).uniform(size=12)
    assert rules.recentred(inner(rows), b) == pytest.approx(inner(rows - b @ rows), abs=1e-8)
    centred = rows - rows.mean(axis=0)
    top = np.linalg.svd(centred)[2][0]
    along = rules.along_top_direction(rules.recentred(inner(rows), np.full(12, 1 / 12)))
    assert np.abs(along) == pytest.approx(np.abs(centred @ top), abs=1e-8)


def test_shards_add_up_exactly() -> None:
    rows = np.random.default_rng(0).integers(-1000, 1000, (6, 50)).astype(np.float64)
    parts = [inner(rows[:, low : low + 16]) for low in range(0, 50, 16)]
    exact = [[sum(Fraction(x) * Fraction(y) for x, y in zip(a, b, strict=True)) for a in rows]
             for b in rows]  # fmt: skip
    assert rules.together(parts).tolist() == [[float(value) for value in row] for row in exact]


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_row_that_is_not_finite_counts_for_nothing(bad: float) -> None:
    rows = rows_of(4, 9)
    good = np.delete(np.arange(9), 4)
    with np.errstate(invalid="ignore"):
        broken = rows.copy()
        broken[4, 7] = bad
        matrix = inner(broken)
    assert rules.krum(matrix, 2) == good[np.argmin(naive_scores_among(rows, good, 2))]
    assert rules.multi_krum(matrix, 2, 5)[4] == 0.0
    assert rules.geometric_median(matrix)[good] == pytest.approx(
        rules.geometric_median(inner(rows[good]))
    )
    assert 4 not in rules.bulyan_selection(matrix, 1)
    clipped = rules.centred_clipping(matrix, 5.0, 2)
    assert clipped[4] == 0.0
    assert np.isfinite(clipped).all()
    assert rules.norm_bounding(matrix, 5.0)[4] == 0.0
    assert rules.fltrust(matrix)[4] == 0.0


def naive_scores_among(
    rows: NDArray[np.float64], good: NDArray[np.int64], byzantine: int
) -> list[float]:
    """The scores of the good ones when a broken one is among the n."""
    closest = len(rows) - byzantine - 2
    return [
        sum(sorted(squared_distance(rows[i], rows[j]) for j in good if j != i)[:closest])
        for i in good
    ]


def test_too_many_broken_rows_end_the_round() -> None:
    matrix = inner(rows_of(5, 7))
    matrix[:4], matrix[:, :4] = np.nan, np.nan
    with pytest.raises(RoundFailed, match="0 of 7 clients have enough neighbours"):
        rules.krum(matrix, 1)
    with pytest.raises(RoundFailed):
        rules.bulyan_selection(matrix, 1)
    with pytest.raises(RoundFailed, match="no client sent a finite update"):
        rules.geometric_median(np.full((3, 3), np.nan))


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 1000), st.integers(7, 20), st.floats(1e-6, 1e6))
def test_rules_follow_the_rows(seed: int, clients: int, scale: float) -> None:
    rows = rows_of(seed, clients)
    order = np.random.default_rng(seed).permutation(clients)
    a = rules.geometric_median(inner(rows))
    assert rules.geometric_median(inner(rows[order])) == pytest.approx(a[order], abs=1e-7)
    assert rules.geometric_median(inner(rows * scale)) == pytest.approx(a, abs=1e-7)
    assert order[rules.krum(inner(rows[order]), 1)] == rules.krum(inner(rows), 1)
    assert rules.krum(inner(rows * scale), 1) == rules.krum(inner(rows), 1)
    assert rules.krum(inner(rows - rows.mean(axis=0)), 1) == rules.krum(inner(rows), 1)


def test_refusals() -> None:
    for radius, iterations in ((0.0, 1), (float("nan"), 1), (1.0, 0)):
        with pytest.raises(SettingsError):
            rules.centred_clipping(np.eye(2), radius, iterations)
    with pytest.raises(SettingsError):
        rules.norm_bounding(np.eye(2), 0.0)
