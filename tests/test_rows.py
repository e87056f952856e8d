"""Robust rules over kept ring messages: float64 references, the code's resolution, any world."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from umbel.protocol.codec import Codec
from umbel.protocol.errors import TooFewMembers
from umbel.server.core.rows import PARTS, KeptRows, TrimmedRows, enough, parts
from umbel.server.core.shards import shards
from umbel.strategies.numpy_tiles import GRAM_TILE, NumpyTiles
from umbel.strategies.robust_rules import RULES, Robust

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    Matrix = NDArray[np.float64]
    Words = NDArray[np.uint32]

CLIENTS, SIZE = 11, 40_000
CODEC = Codec(CLIENTS, 0.5, 64)
WEIGHTS = [64, 3, 17, 40, 64, 8, 1, 25, 50, 33, 12]
NUMBERS: dict[str, dict[str, Any]] = {
    "multi-krum": {"keep": 4},
    "centred-clipping": {"radius": 3.0, "iterations": 3},
    "norm-bounding": {"radius": 3.0, "byzantine": 0},
    "trimmed-mean": {"cut": 0.25},
}
SERVED = sorted(set(RULES) - {"fltrust"})


def rule_of(name: str) -> Robust:
    return Robust(**{"rule": name, "byzantine": 2, **NUMBERS.get(name, {})})


def deltas_of(seed: int = 7) -> Matrix:
    rng = np.random.default_rng(seed)
    found = rng.normal(0.0, 0.02, (CLIENTS, SIZE)) + rng.normal(0.0, 0.01, SIZE)
    found[3] *= -4.0
    found[8] = 0.11
    return np.asarray(found)


def encoded(deltas: Matrix, weights: Sequence[int] = WEIGHTS) -> list[Words]:
    rng = np.random.default_rng(1)
    found = []
    for delta, weight in zip(deltas, weights, strict=True):
        words = rng.integers(0, 2**32, delta.size, np.uint32)
        assert CODEC.encode(delta, weight, words, words) == 0
        found.append(words)
    return found


def decoded(words: Sequence[Words], weights: Sequence[int] = WEIGHTS) -> Matrix:
    """What the server knows of each delta, in float64."""
    signed = np.array([row.view(np.int32) for row in words], np.float64)
    return np.asarray(signed / (CODEC.scale * np.array(weights))[:, None])


def reference(robust: Robust, x: Matrix) -> Matrix:
    """Each rule over whole float64 rows, from its paper."""
    n, cut = len(x), int(robust.cut * len(x))
    papers: dict[str, Callable[[], Any]] = {
        "median": lambda: np.median(x, axis=0),
        "trimmed-mean": lambda: np.sort(x, axis=0)[cut : n - cut].mean(axis=0),
        "krum": lambda: x[_by_score(x, robust.byzantine)[0]],
        "multi-krum": lambda: x[_by_score(x, robust.byzantine)[: robust.keep]].mean(axis=0),
        "bulyan": lambda: _bulyan(x, _apart(x), robust.byzantine),
        "geometric-median": lambda: _weiszfeld(x, np.array(WEIGHTS, np.float64)),
        "norm-bounding": lambda: _bounded(x, np.array(WEIGHTS, np.float64), robust.radius or 0.0),
        "centred-clipping": lambda: _clipped(x, robust.radius or 0.0, robust.iterations),
    }
    return np.asarray(papers[robust.rule]())


def _by_score(x: Matrix, f: int) -> list[int]:
    apart = _apart(x)
    near = [np.sort(np.delete(row, i))[: len(x) - f - 2] for i, row in enumerate(apart)]
    return list(np.argsort([row.sum() for row in near], kind="stable"))


def _weiszfeld(x: Matrix, w: Matrix) -> Matrix:
    at = w @ x / w.sum()
    for _ in range(400):
        pull = w / np.maximum(np.linalg.norm(x - at, axis=1), 1e-12)
        at = pull @ x / pull.sum()
    return np.asarray(at)


def _bounded(x: Matrix, w: Matrix, radius: float) -> Matrix:
    return np.asarray((w * np.minimum(1.0, radius / np.linalg.norm(x, axis=1))) @ x / w.sum())


def _clipped(x: Matrix, radius: float, iterations: int) -> Matrix:
    at = np.zeros(x.shape[1])
    for _ in range(iterations):
        pull = x - at
        at = at + (pull * np.minimum(1.0, radius / np.linalg.norm(pull, axis=1))[:, None]).mean(0)
    return at


def _apart(x: Matrix) -> Matrix:
    return np.array([[float(((a - b) ** 2).sum()) for b in x] for a in x])


def _bulyan(x: Matrix, apart: Matrix, f: int) -> Matrix:
    left: list[int] = list(range(len(x)))
    picked: list[int] = []
    while len(picked) < len(x) - 2 * f:
        scores = []
        for i in left:
            near = sorted(apart[i, j] for j in left if j != i)
            scores.append(sum(near[: max(1, len(left) - f - 2)]))
        picked.append(left.pop(int(np.argmin(scores))))
    chosen = x[picked]
    order = np.argsort(np.abs(chosen - np.median(chosen, axis=0)), axis=0, kind="stable")
    return np.asarray(np.take_along_axis(chosen, order[: len(x) - 4 * f], axis=0).mean(axis=0))


def aggregate(
    robust: Robust, words: Sequence[Words], world: int = 1, dtype: Any = np.float32
) -> NDArray[Any]:
    """One round as `world` ranks do it: each its parts and its shard, one sum for all."""
    ranks = [
        KeptRows(robust, CODEC, words, WEIGHTS[: len(words)], NumpyTiles(CLIENTS))
        for _ in range(world)
    ]
    cut = ranks[0].parts
    products = [ranks[place % world].products(part) for place, part in enumerate(cut)]
    out = np.empty(SIZE, dtype)
    for rank, (low, high) in zip(ranks, shards(SIZE, world), strict=True):
        if products:
            rank.decide(products)
        for start in range(low, high, 9000):
            stop = min(start + 9000, high)
            rank.decode(start, stop, out[start:stop])
    return out


@pytest.mark.parametrize("name", SERVED)
def test_the_rule_is_the_papers_on_what_was_sent(name: str) -> None:
    words = encoded(deltas_of())
    robust = rule_of(name)
    assert np.abs(aggregate(robust, words) - reference(robust, decoded(words))).max() <= 2e-8


@pytest.mark.parametrize("name", SERVED)
def test_any_world_has_the_same_bits(name: str) -> None:
    words = encoded(deltas_of())
    found = [aggregate(rule_of(name), words, world).tobytes() for world in (1, 2, 3)]
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize("name", ["median", "trimmed-mean"])
def test_the_code_moves_a_coordinate_by_no_more_than_its_resolution(name: str) -> None:
    """Of each client: value_range * weight_cap / (Q w); here weights are 8 or more."""
    deltas, weights = deltas_of(), [max(8, weight) for weight in WEIGHTS]
    words = encoded(deltas, weights)
    kept = KeptRows(rule_of(name), CODEC, words, weights, NumpyTiles(CLIENTS))
    out = np.empty(SIZE)
    kept.decode(0, SIZE, out)
    resolution = 0.5 * 64 / ((2**27 - 1) * 8)
    assert np.abs(out - reference(rule_of(name), deltas)).max() <= resolution + 2**-26


def test_one_resolution_is_not_given_away() -> None:
    """One code more at one client moves the median of one value by what a code is worth."""
    words = [np.full(16, code, np.uint32) for code in (10, 20, 30)]
    found = []
    for middle in (20, 21):
        words[1][:] = middle
        kept = KeptRows(Robust(rule="median"), CODEC, words, [64, 64, 64], NumpyTiles(3))
        kept.decode(0, 16, out := np.empty(16))
        found.append(out[0])
    assert found[1] - found[0] == pytest.approx(0.5 / (2**27 - 1), rel=1e-6)


def test_a_weight_is_its_own_clients() -> None:
    """The same codes with half the weight are a delta twice as large."""
    words = [np.array([64, 0] * 8, np.uint32)] * 3
    kept = KeptRows(Robust(rule="median"), CODEC, words, [1, 2, 4], NumpyTiles(3))
    kept.decode(0, 16, out := np.empty(16))
    assert out.tolist() == pytest.approx([64 / (CODEC.scale * 2), 0.0] * 8)


@pytest.mark.parametrize("came", [CLIENTS, CLIENTS - 1, 5, 4, 3])
@pytest.mark.parametrize("cut", [0.25, 0.4, 0.0])
def test_the_stream_has_the_bits_of_the_rows_in_any_order(came: int, cut: float) -> None:
    robust, words = Robust(rule="trimmed-mean", cut=cut), encoded(deltas_of())[:came]
    expected = aggregate(robust, words)
    for order in (range(came), range(came - 1, -1, -1), [*range(2, came), 1, 0]):
        stream = TrimmedRows(robust, CODEC, SIZE, NumpyTiles(1))
        for client in order:
            stream.add(words[client], WEIGHTS[client])
        stream.freeze()
        out = np.empty(SIZE, np.float32)
        for start in range(0, SIZE, 9000):
            stop = min(start + 9000, SIZE)
            stream.decode(start, stop, out[start:stop])
        assert out.tobytes() == expected.tobytes()


def test_the_streams_memory_is_its_lists_and_a_wide_sum() -> None:
    stream = TrimmedRows(Robust(rule="trimmed-mean", cut=0.1), CODEC, SIZE, NumpyTiles(1))
    assert stream.nbytes == (2 * 1 + 2) * 4 * SIZE


@pytest.mark.parametrize(("rule", "clients"), [("bulyan", 10), ("krum", 6), ("median", 4)])
def test_too_few_end_the_round_with_the_number_that_would_do(rule: str, clients: int) -> None:
    with pytest.raises(TooFewMembers, match=f"{rule} with 2 .* {clients + 1} or more clients"):
        enough(Robust(rule=rule, byzantine=2), clients)


def test_too_few_end_the_streams_round() -> None:
    stream = TrimmedRows(Robust(rule="trimmed-mean", byzantine=1), CODEC, 16, NumpyTiles(1))
    for _ in range(4):  # of which a fifth is nobody
        stream.add(np.zeros(16, np.uint32), 1)
    with pytest.raises(TooFewMembers, match="5 or more clients"):
        stream.freeze()


def test_the_parts_are_whole_tiles_and_do_not_depend_on_the_world() -> None:
    for words, clients in ((1, 3), (SIZE, 5), (10_000_000, 32), (10_000_000, 2000)):
        cut = parts(words, clients)
        assert [part.start for part in cut] == [0, *(part.stop for part in cut[:-1])]
        assert cut[-1].stop == words
        assert all(part.start % GRAM_TILE == 0 for part in cut)
        assert len(cut) <= PARTS
        assert len(cut) * clients**2 <= max(2**22, clients**2)
