"""The peer of `umbel bench fold`: Flower 1.42's aggregation of the replies of a round.

`aggregate_arrayrecords` on replies as Flower holds them when they have come: a RecordDict with an
ArrayRecord, whose arrays are the bytes of .npy files, and a MetricRecord with the weight. It
unpacks each array, multiplies, adds, and packs the mean.
"""

from __future__ import annotations

from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import numpy as np
from flwr.app import Array, ArrayRecord, MetricRecord, RecordDict
from flwr.serverapp.strategy.strategy_utils import aggregate_arrayrecords

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

NAME = f"flwr {version('flwr')} aggregate_arrayrecords"
WEIGHT = "num-examples"


def replies(
    rows: NDArray[np.float32], weights: Sequence[float], sizes: Sequence[int]
) -> list[RecordDict]:
    """Return a reply for each row, cut into arrays of `sizes`."""
    cuts = np.cumsum(sizes)[:-1]
    return [
        RecordDict(
            {
                "arrays": ArrayRecord(
                    {f"layer-{n}": Array(part) for n, part in enumerate(np.split(row, cuts))}
                ),
                "metrics": MetricRecord({WEIGHT: weight}),
            }
        )
        for row, weight in zip(rows, weights, strict=True)
    ]


def aggregate(records: list[RecordDict]) -> ArrayRecord:
    """Return the weighted mean, packed."""
    return aggregate_arrayrecords(records, WEIGHT)


def flat(record: ArrayRecord) -> NDArray[Any]:
    """Return the arrays of a record as one vector."""
    return np.concatenate([array.numpy() for array in record.values()])
