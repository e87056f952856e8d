"""A work between processes: numbers as JSON, arrays as bytes, models as the flat buffers they are.

Both ends are ours and started together, so what is read here is believed.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np

from .work import Work
from ...protocol.manifest import Manifest
from ...strategies.trainer import Settings

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .work import Arrays


def packed(work: Work) -> tuple[dict[str, Any], list[memoryview]]:
    """Return all of a work but its models: fields for JSON, and blobs."""
    optional = (work.model_of, work.launches, work.factors)
    fields = {
        "partitions": work.partitions,
        "settings": asdict(work.settings),
        "config": dict(work.config),
        "weight_cap": work.weight_cap,
        "max_norm": work.max_norm,
        "evaluate": work.evaluate,
        "manifest": Manifest.of(work.models[0]).to_json(),
        "given": [array is not None for array in optional],
    }
    arrays = [work.clients, *(array for array in optional if array is not None)]
    return fields, [np.ascontiguousarray(array).data.cast("B") for array in arrays]


def unpacked(
    fields: Mapping[str, Any], blobs: Sequence[memoryview | bytes], models: memoryview
) -> Work:
    """Return the work of another process.

    Args:
        fields: What `packed` gave.
        blobs: With them.
        models: The flat buffers of its models, one after another.
    """
    manifest = Manifest.from_json(fields["manifest"])
    size = max(1, manifest.total_bytes)
    found: list[Arrays] = [
        manifest.views(models[start : start + manifest.total_bytes])
        for start in range(0, len(models), size)
    ]
    clients, rest = np.frombuffer(blobs[0], np.int64), list(blobs[1:])
    model_of, launches, factors = (rest.pop(0) if given else None for given in fields["given"])
    return Work(
        clients=clients,
        partitions=fields["partitions"],
        models=found,
        model_of=None if model_of is None else np.frombuffer(model_of, np.int64),
        settings=Settings(**fields["settings"]),
        config=fields["config"],
        launches=None if launches is None else np.frombuffer(launches, np.int64),
        factors=None if factors is None else np.frombuffer(factors, np.float64),
        weight_cap=fields["weight_cap"],
        max_norm=fields["max_norm"],
        evaluate=fields["evaluate"],
    )
