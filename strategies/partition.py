"""Who gets which rows of a data set: the partitioners of flwr-datasets, by their names.

They mean what they mean there and take the same arguments, all by name, but for two: there is no
`partition_by`, since what they split by (labels, a number, ids; one for each example) is given to
`partitions`, and no `shuffle`, since a client's rows are sorted and training shuffles. Rows in no
partition are nobody's, where a partitioner allows that.

    partition_sizes.py     how much each client gets
    partition_labels.py    which classes
    partition_shards.py    both, laid down
    partition_ids.py       whose they are

Choices are keyed by `seed` and nothing else: raw words of the counter-based generator where that is
enough, numpy's distributions for Dirichlet and normal draws.
"""

from __future__ import annotations

from .partition_ids import GroupedNaturalIdPartitioner, NaturalIdPartitioner
from .partition_labels import (
    DirichletPartitioner,
    InnerDirichletPartitioner,
    PathologicalPartitioner,
)
from .partition_shards import DistributionPartitioner, ShardPartitioner
from .partition_sizes import (
    ContinuousPartitioner,
    ExponentialPartitioner,
    IdToSizeFncPartitioner,
    IidPartitioner,
    LinearPartitioner,
    SizePartitioner,
    SquarePartitioner,
)

__all__ = [
    "ContinuousPartitioner",
    "DirichletPartitioner",
    "DistributionPartitioner",
    "ExponentialPartitioner",
    "GroupedNaturalIdPartitioner",
    "IdToSizeFncPartitioner",
    "IidPartitioner",
    "InnerDirichletPartitioner",
    "LinearPartitioner",
    "NaturalIdPartitioner",
    "PathologicalPartitioner",
    "ShardPartitioner",
    "SizePartitioner",
    "SquarePartitioner",
]
