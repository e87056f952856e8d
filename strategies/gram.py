"""Every rule that looks at distances, from one matrix of inner products; nothing here sees a row.

    G_ij = <y_i, y_j>     y_i = x_i - c, c a reference: the global model, or 0 where rows are deltas
    D_ij = G_ii + G_jj - 2 G_ij                        squared distance of clients i and j
    result = c + sum_i a_i y_i                         a: what a rule returns, one number a client

G adds up over shards (each rank computes the part of its columns), so a rule costs one small
reduction and one weighted fold whatever the length of the model. It is float64 and
centred on c: weights are much larger than updates, and without c their squares would drown the
distances (at a ratio of 1e-5 nothing would be left in float32). c must not depend on a client of
the round, or one hostile row would spoil everybody's.

A row whose own square is not finite is at an infinite distance from every other: it is never
picked and gets the coefficient 0. Ties go to the client that comes first. Rules and papers:

    krum, multi_krum       Blanchard et al. 2017, https://arxiv.org/abs/1703.02757
    bulyan_selection       El Mhamdi et al. 2018, https://arxiv.org/abs/1802.07927
    geometric_median       Pillutla et al. 2019, https://arxiv.org/abs/1912.13445, by Weiszfeld's
                           iteration with Vardi and Zhang's step at a client's own point (2000)
    centred_clipping       Karimireddy et al. 2021, https://arxiv.org/abs/2012.10333
    norm_bounding          Sun et al. 2019, https://arxiv.org/abs/1911.07963
    fltrust                Cao et al. 2021, https://arxiv.org/abs/2012.13995
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..protocol.errors import RoundFailed, SettingsError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import ArrayLike, NDArray

    Matrix = NDArray[np.float64]
    Vector = NDArray[np.float64]

CONVERGED = 1e-10
"""Weiszfeld ends when no coefficient moves by more."""
_ITERATIONS = 1000
_BLOCK = 256
_NEAR = 1e-9  # of the median distance: a client's own point


def usable(gram: Matrix) -> NDArray[np.bool_]:
    """Tell for each client whether its row was finite, and its square in float32's range."""
    finite: NDArray[np.bool_] = np.isfinite(np.diagonal(gram))
    return finite


def distances(gram: Matrix) -> Matrix:
    """Return squared distances, shape (n, n): 0 or more, infinite on the diagonal.

    An infinite diagonal keeps a client out of its own neighbours. Rounding below 0 becomes 0.
    """
    return _distances(gram, slice(0, len(gram)))


def _distances(gram: Matrix, block: slice) -> Matrix:
    """Return the squared distances of some clients from all."""
    own = np.where(usable(gram), np.diagonal(gram), np.inf)
    with np.errstate(invalid="ignore"):
        squared = np.asarray(own[block, None] + own[None, :] - 2.0 * gram[block])
    squared[~np.isfinite(squared)] = np.inf
    np.maximum(squared, 0.0, out=squared)
    squared[np.arange(len(squared)), np.arange(block.start, block.stop)] = np.inf
    return squared


def krum_scores(squared: Matrix, byzantine: int) -> Vector:
    """Return the sum of the max(1, n - f - 2) smallest squared distances of each client.

    Args:
        squared: Shape (some clients, n).
        byzantine: f.
    """
    closest = max(1, squared.shape[1] - byzantine - 2)
    scores: Vector = np.sort(squared, axis=1)[:, :closest].sum(axis=1)
    return scores


def _scores(gram: Matrix, byzantine: int) -> Vector:
    """Return everybody's score; memory is `_BLOCK` clients', beside the matrix itself."""
    cuts = [slice(i, min(i + _BLOCK, len(gram))) for i in range(0, len(gram), _BLOCK)]
    return np.concatenate([krum_scores(_distances(gram, cut), byzantine) for cut in cuts])


def krum(gram: Matrix, byzantine: int) -> int:
    """Return the client with the lowest score.

    Raises:
        RoundFailed: No client has enough neighbours at a finite distance.
    """
    return _lowest(_scores(gram, byzantine), 1)[0]


def multi_krum(gram: Matrix, byzantine: int, keep: int) -> Vector:
    """Return 1 / keep for the `keep` clients with the lowest scores, 0 for the others.

    Raises:
        RoundFailed: Fewer than `keep` have enough neighbours at a finite distance.
    """
    coefficients = np.zeros(len(gram))
    coefficients[_lowest(_scores(gram, byzantine), keep)] = 1.0 / keep
    return coefficients


def bulyan_selection(gram: Matrix, byzantine: int) -> list[int]:
    """Return the n - 2f clients that Krum picks one after the other, each from those left.

    The scores are computed anew after every pick, as the paper has it; Flower selects all with
    one call of Multi-Krum. What follows is coordinate-wise: `Tiles.nearest`.

    Raises:
        RoundFailed: As `krum`.
    """
    squared = distances(gram)
    left = list(range(len(gram)))
    picked = []
    for _ in range(len(gram) - 2 * byzantine):
        place = 0
        if len(left) > 1:
            place = _lowest(krum_scores(squared[np.ix_(left, left)], byzantine), 1)[0]
        picked.append(left.pop(place))
    return sorted(picked)


def geometric_median(gram: Matrix, weights: ArrayLike | None = None) -> Vector:
    """Return coefficients, sum 1, of the point with the least weighted sum of distances.

    Weiszfeld's iteration with all points written in the rows: a distance is
    G_ii - 2 (G a)_i + a'G a, so that an iteration costs n^2 whatever the model's length.

    Args:
        gram: Shape (n, n).
        weights: Above 0, shape (n,); None for equal ones.

    Raises:
        RoundFailed: No row is finite.
    """
    good = np.flatnonzero(usable(gram))
    if not len(good):
        raise RoundFailed("geometric median: no client sent a finite update")
    inner = gram if len(good) == len(gram) else gram[np.ix_(good, good)]
    weight = np.ones(len(good)) if weights is None else np.asarray(weights, np.float64)[good]
    at = weight / weight.sum()
    near = _NEAR * float(np.median(_apart(inner, at)))
    for _ in range(_ITERATIONS):
        after = _weiszfeld(inner, weight, at, near)
        moved, at = float(np.abs(after - at).max()), after
        if moved < CONVERGED:
            break
    coefficients = np.zeros(len(gram))
    coefficients[good] = at
    return coefficients


def centred_clipping(gram: Matrix, radius: float, iterations: int = 1) -> Vector:
    """Return coefficients of v, v <- v + mean_i (y_i - v) min(1, radius / |y_i - v|), v = 0 first.

    Args:
        gram: Shape (n, n), centred on the point from which the iteration starts.
        radius: Farthest that one client can pull, in the norm of the rows.
        iterations: Steps; 1 clips around c.

    Raises:
        SettingsError: `radius` is not above 0 or `iterations` is below 1.
    """
    if not radius > 0.0 or iterations < 1:
        raise SettingsError(
            "centred clipping", "a radius above 0 and 1 or more iterations", (radius, iterations)
        )
    clients, good = len(gram), usable(gram)
    inner = gram if good.all() else np.where(good[:, None] & good[None, :], gram, 0.0)
    at = np.zeros(clients)
    for _ in range(iterations):
        factor = np.where(good, _shrink(_apart(inner, at), radius), 0.0)
        at = (1.0 - factor.mean()) * at + factor / clients
    return at


def norm_bounding(gram: Matrix, bound: float, weights: ArrayLike | None = None) -> Vector:
    """Return the weighted mean's coefficients with each row's norm cut to `bound`.

    A row that is not finite counts as 0, and its weight stays in the sum of weights.

    Raises:
        SettingsError: `bound` is not above 0.
    """
    if not bound > 0.0:
        raise SettingsError("norm bounding", "a bound above 0", bound)
    weight = np.ones(len(gram)) if weights is None else np.asarray(weights, np.float64)
    norms = np.sqrt(np.where(usable(gram), np.diagonal(gram), np.inf))
    coefficients: Vector = weight / weight.sum() * _shrink(norms, bound)
    return coefficients


def cosines(gram: Matrix) -> Matrix:
    """Return the cosine between every two rows, -1 to 1; 0 where one is zero or not finite."""
    good = usable(gram) & (np.diagonal(gram) > 0.0)
    norms = np.sqrt(np.where(good, np.diagonal(gram), 1.0))
    both = good[:, None] & good[None, :]
    scaled = np.where(both, gram, 0.0) / norms[:, None] / norms[None, :]
    return np.clip(scaled, -1.0, 1.0)


def fltrust(gram: Matrix) -> Vector:
    """Return coefficients of FLTrust: row 0 is the server's own update and gets 0.

    A client's trust is t_i = max(0, cos(y_i, y_0)); its update is brought to the norm of y_0 and
    weighs t_i / sum(t).

    Raises:
        RoundFailed: No client's update points the way of the server's.
    """
    trust = np.maximum(cosines(gram)[0], 0.0)
    trust[0] = 0.0
    if not trust.sum() > 0.0:
        raise RoundFailed("fltrust: no update points the way of the server's own")
    norms = np.sqrt(np.where(trust > 0.0, np.diagonal(gram), 1.0))
    coefficients: Vector = trust / trust.sum() * np.sqrt(gram[0, 0]) / norms
    return coefficients


def recentred(gram: Matrix, coefficients: Vector) -> Matrix:
    """Return the matrix of the same rows around c + sum_i b_i y_i, without a look at them.

    (I - 1 b') G (I - b 1'); b = 1 / n for the mean. Digits that the change of c cancels are gone.
    """
    shift = gram @ coefficients
    moved: Matrix = gram - shift[:, None] - shift[None, :] + coefficients @ shift
    return moved


def along_top_direction(gram: Matrix) -> Vector:
    """Return each row's place along the direction in which the rows vary most, shape (n,).

    sqrt(l) u for the largest eigenvalue l of a matrix that `recentred` put around the mean, with
    eigenvector u; the sign is arbitrary. Spectral filters drop the clients with the largest.
    """
    values, vectors = np.linalg.eigh(gram)
    along: Vector = np.sqrt(max(float(values[-1]), 0.0)) * vectors[:, -1]
    return along


def together(parts: Sequence[Matrix]) -> Matrix:
    """Return the matrix of all columns from those of the shards; the order is the ranks'."""
    total = np.zeros_like(parts[0])
    for part in parts:
        total += part
    return total


def _lowest(scores: Vector, keep: int) -> list[int]:
    best = np.argsort(scores, kind="stable")[:keep]
    if len(best) < keep or not np.isfinite(scores[best]).all():
        raise RoundFailed(
            f"krum: {int(np.isfinite(scores).sum())} of {len(scores)} clients have enough "
            f"neighbours at a finite distance, {keep} must be picked"
        )
    return [int(place) for place in best]


def _apart(inner: Matrix, at: Vector) -> Vector:
    """Return the distance of each row from sum_j a_j y_j."""
    pull = inner @ at
    squared = np.diagonal(inner) - 2.0 * pull + at @ pull
    apart: Vector = np.sqrt(np.maximum(squared, 0.0))
    return apart


def _shrink(norms: Vector, radius: float) -> Vector:
    """Return min(1, radius / norm): 1 for a norm of 0, 0 for an infinite one."""
    factors: Vector = radius / np.maximum(norms, radius)
    return factors


def _weiszfeld(inner: Matrix, weight: Vector, at: Vector, near: float) -> Vector:
    """Return the next point.

    On a client's own point the plain step would divide by 0, and stay there for ever: Vardi and
    Zhang's goes on unless that client's weight outdoes the pull of the others.
    """
    apart = _apart(inner, at)
    far = apart > near
    if not far.any():
        return at
    pull = np.where(far, weight / np.where(far, apart, 1.0), 0.0)
    step: Vector = pull / pull.sum()
    if far.all():
        return step
    force = pull - pull.sum() * at
    strength = float(np.sqrt(max(float(force @ inner @ force), 0.0)))
    held = float(weight[~far].sum())
    stay = 1.0 if strength <= held else held / strength
    return (1.0 - stay) * step + stay * at
