"""The peers of `umbel bench robust`: Flower 1.42's robust rules, and a geometric median in numpy.

Flower's own functions on what its ServerApp holds when all replies are in: `np.median` as
FedMedian calls it and `trim_mean` of FedTrimmedAvg on decoded arrays, `select_multikrum` and
`aggregate_arrayrecords` of MultiKrum on records. Inflating messages is left out, in its favour.

Flower has no geometric median. OpenFL has one, and is no dependency of ours: `geometric_median`
is written anew after its description, the smoothed Weiszfeld algorithm of Pillutla et al. 2019
(https://arxiv.org/abs/1912.13445) with OpenFL's defaults: at most 4 iterations, smoothing 1e-5, an
end when the objective changes by less than 1e-6 of itself. Each iteration takes all distances,
then `np.average` of the list, as OpenFL does (float64 temporaries), then all distances again.
"""

from __future__ import annotations

from importlib.metadata import version
from typing import TYPE_CHECKING

import numpy as np
from flwr.app import Array, ArrayRecord, MetricRecord, RecordDict
from flwr.serverapp.strategy.fedtrimmedavg import trim_mean
from flwr.serverapp.strategy.multikrum import compute_distances, select_multikrum
from flwr.serverapp.strategy.strategy_utils import aggregate_arrayrecords

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Floats = NDArray[np.float32]

FLOWER = f"flwr {version('flwr')}"
OPENFL = "OpenFL's smoothed Weiszfeld in numpy"
_WEIGHT = "num-examples"
_ITERATIONS, _SMOOTHING, _TOLERANCE = 4, 1e-5, 1e-6


def median(updates: Sequence[Floats]) -> Floats:
    """Return FedMedian's aggregate of one layer."""
    return np.asarray(np.median(np.stack(updates), axis=0))


def trimmed_mean(updates: Sequence[Floats], share: float) -> Floats:
    """Return FedTrimmedAvg's aggregate of one layer."""
    return np.asarray(trim_mean(np.stack(updates), share))


def records(updates: Sequence[Floats]) -> list[RecordDict]:
    """Return replies with one array each."""
    return [
        RecordDict(
            {
                "arrays": ArrayRecord({"flat": Array(update)}),
                "metrics": MetricRecord({_WEIGHT: 1.0}),
            }
        )
        for update in updates
    ]


def multi_krum(replies: list[RecordDict], byzantine: int, keep: int) -> Floats:
    """Return MultiKrum's aggregate."""
    chosen = select_multikrum(replies, byzantine, keep)
    return np.asarray(aggregate_arrayrecords(chosen, _WEIGHT)["flat"].numpy())


def krum_pick(replies: list[RecordDict], byzantine: int) -> int:
    """Return which reply Krum picks."""
    (chosen,) = select_multikrum(replies, byzantine, 1)
    return next(place for place, reply in enumerate(replies) if reply is chosen)


def squared_distances(replies: list[RecordDict]) -> NDArray[np.float32]:
    """Return Flower's distances between all replies."""
    return np.asarray(compute_distances([reply.array_records["arrays"] for reply in replies]))


def geometric_median(updates: Sequence[Floats]) -> Floats:
    """Return the geometric median as OpenFL approximates it."""
    count = len(updates)
    weights = np.full(count, 1.0 / count)
    point = _mean(updates, weights)
    before = _objective(updates, point, weights)
    for _ in range(_ITERATIONS):
        distances = np.array([np.linalg.norm(update - point) for update in updates])
        pull = weights / np.maximum(distances, _SMOOTHING)
        point = _mean(updates, pull / pull.sum())
        after = _objective(updates, point, weights)
        if abs(before - after) < _TOLERANCE * after:
            break
        before = after
    return point


def _objective(updates: Sequence[Floats], point: Floats, weights: NDArray[np.float64]) -> float:
    apart = [float(np.linalg.norm(update - point)) for update in updates]
    return float(weights @ np.array(apart))


def _mean(updates: Sequence[Floats], weights: NDArray[np.float64]) -> Floats:
    return np.asarray(np.average(updates, axis=0, weights=weights))
