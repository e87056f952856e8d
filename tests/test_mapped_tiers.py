"""Every tier trains on slices of a mapped set, and to the bits of the same rows in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from torch import nn

from umbel.simulation.data.mapped import ClientData, Writer
from umbel.simulation.engine.loop import Loop
from umbel.simulation.engine.torch_cohort import Cohorts
from umbel.simulation.native.tier import tier as native
from umbel.strategies.trainer import load
from umbel.tests.engine_works import CLASSES, FEATURES, SIZES, NumpyTask, examples, work

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from umbel import Site, Task


class TorchTask(NumpyTask):
    """The same clients with a model of torch."""

    def model(self) -> Any:
        """Return two layers."""
        return nn.Sequential(nn.Linear(FEATURES, 9), nn.ReLU(), nn.Linear(9, CLASSES))


def mapped(task: type[NumpyTask], place: Path) -> Task:
    """Return the task with its clients' examples in files."""
    with Writer(place) as out:
        for client in range(len(SIZES)):
            out.add(*examples(client))
    data = ClientData.open(place)

    class Mapped(task):  # type: ignore[misc, valid-type]
        """Slices instead of arrays of their own."""

        def train_data(self, site: Site) -> Any:
            return data.client(site.index)

    made: Task = Mapped()
    return made


TIERS: dict[str, tuple[type[NumpyTask], Callable[[Any], Any]]] = {
    "T3, numpy": (NumpyTask, Loop),
    "T3, torch": (TorchTask, Loop),
    "T2": (TorchTask, lambda task: Cohorts(task, 1)),
    "T0": (TorchTask, lambda task: native(task, examples(0), 2)),
    "T0, numpy": (NumpyTask, lambda task: native(task, examples(0), 2)),
}


@pytest.mark.parametrize("name", TIERS)
def test_mapped_rows_train_to_the_bits_of_rows_in_memory(name: str, tmp_path: Path) -> None:
    task, make = TIERS[name]
    model = load(task()).arrays(5)
    totals = []
    for one in (task(), mapped(task, tmp_path / "set")):
        made = make(one)
        totals.append(made.reduce(work(model)).total)
        made.close()
    assert np.array_equal(*totals)
    assert totals[0].any()
