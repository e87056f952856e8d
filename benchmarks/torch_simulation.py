"""Umbel's tiers on the workloads, and the machine's limit.

`python -m …torch_simulation WHAT MODEL FOLDER ROUNDS`, one process a figure, prints JSON:

    T0 T1 T2 T3      seconds of each round in which a tier hands over a sum
    rows/T0 …        the same by that tier's rows
    limit            clients/s if all operations ran as products of 1024x1024 float32 on all cores
"""

from __future__ import annotations

import json
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from .simulation_work import BATCH, LR, WORKLOADS, mapped
from .torch_workloads import fit, flop, model
from ..simulation.engine.reducing import count_values, row_dtype
from ..simulation.engine.tiers import candidates
from ..simulation.engine.work import Work
from ..strategies.optimizers import SGD
from ..strategies.task import Site, Task, batches
from ..strategies.trainer import Local, Settings, TaskTrainer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    from ..simulation.engine.work import Tier

GEMM, GEMM_S, GEMM_TRIES = 1024, 0.5, 3
TOLERANCE = 1e-5
"""Largest difference from the plain loop after one round, in float32."""


class Learned(Task):
    """A workload as a task."""

    optimizer = SGD(lr=LR)
    batch_size = BATCH

    def __init__(self, name: str, folder: Path) -> None:
        """Map the data."""
        self._name, self._data = name, mapped(folder)

    def model(self) -> torch.nn.Module:
        """Return the model."""
        return model(self._name)

    def train_data(self, site: Site) -> tuple[Any, Any]:
        """Return one client's rows."""
        rows = WORKLOADS[self._name].rows(site.partition or 0)
        return self._data[0][rows], self._data[1][rows]


def tiered(what: str, name: str, folder: Path, rounds: int) -> list[float]:
    """Return the seconds of each round of a tier; its first model is compared with the loop's.

    Raises:
        ValueError: They differ by more than `TOLERANCE`.
        SettingsError: There is no such tier here, or it cannot train the model.
    """
    kind, _, tier_name = what.partition("/")
    task = Learned(name, folder)
    arrays, seconds = TaskTrainer(task).arrays(), list[float]()
    tier = _tier(tier_name or kind, task, name, arrays)
    step = _by_rows if kind == "rows" else _by_sum
    first: Mapping[str, NDArray[Any]] = {}
    for number in range(rounds):
        cohort = _cohort(name, number, arrays)
        began = time.perf_counter()
        mean = step(tier, cohort)
        arrays, start = {}, 0
        for key, array in cohort.models[0].items():
            part = mean[start : start + array.size].reshape(array.shape)
            arrays[key] = array + part.astype(array.dtype)
            start += array.size
        seconds.append(time.perf_counter() - began)
        first = first or arrays
    tier.close()
    if name != "cifar":  # its masks of dropout are each tier's own
        _compare(task, name, first)
    return seconds


def _tier(wanted: str, task: Learned, name: str, arrays: Mapping[str, NDArray[Any]]) -> Tier:
    sample = _cohort(name, 0, arrays)
    return candidates(task, sample, len(os.sched_getaffinity(0)))[wanted].make()


def _cohort(name: str, number: int, arrays: Mapping[str, NDArray[Any]]) -> Work:
    return Work(
        clients=WORKLOADS[name].drawn(number),
        partitions=WORKLOADS[name].clients,
        models=[arrays],
        settings=Settings(round=number),
    )


def _by_sum(tier: Tier, cohort: Work) -> NDArray[np.float64]:
    reduced = tier.reduce(cohort)
    mean: NDArray[np.float64] = reduced.total / (2.0**reduced.exponent * reduced.weight)
    return mean


def _by_rows(tier: Tier, cohort: Work) -> NDArray[np.float64]:
    shape = (len(cohort.clients), count_values(cohort.models[0]))
    out = np.empty(shape, row_dtype(cohort.models[0]))
    report = tier.rows(cohort, out)
    mean: NDArray[np.float64] = report.weights @ out / report.weights.sum()
    return mean


def _compare(task: Learned, name: str, found: Mapping[str, NDArray[Any]]) -> None:
    """Compare a model after one round with that of the loop, over batches in the tiers' order."""
    work, net = WORKLOADS[name], model(name)
    start = {key: value.clone() for key, value in net.state_dict().items()}
    total = {key: torch.zeros_like(value, dtype=torch.float64) for key, value in start.items()}
    for client in work.drawn(0).tolist():
        net.load_state_dict(start)
        inputs, labels = map(torch.from_numpy, task.train_data(Site(client, work.clients)))
        order = np.concatenate(list(batches(Local(1, BATCH, 0, 0, client), work.samples)))
        fit(net, inputs[order], labels[order])
        for key, value in net.state_dict().items():
            total[key] += value
    for key, value in total.items():
        apart = float(np.abs(value.numpy() / work.cohort - found[key]).max())
        if not apart <= TOLERANCE:
            raise ValueError(f"{key} after one round: {apart} from the plain loop's")


def limit(name: str) -> float:
    """Return how many clients a second the machine's matrix products would allow.

    By the faster of the two libraries that are here: which one is, depends on the processor.
    """
    torch.set_num_threads(1)
    left, right = torch.rand(2, GEMM, GEMM)
    products = (lambda: left @ right), (lambda: left.numpy() @ right.numpy())
    best = max(_rate(product) for product in products for _ in range(GEMM_TRIES))
    return best * 2.0 * GEMM**3 / flop(name)


def _rate(product: Callable[[], object]) -> float:
    """Return how often a second all cores together do this, each by itself."""

    def repeat(_core: int) -> float:
        count, began = 0, time.perf_counter()
        while (spent := time.perf_counter() - began) < GEMM_S:
            product()
            count += 1
        return count / spent

    cores = len(os.sched_getaffinity(0))
    with ThreadPoolExecutor(cores) as threads:
        return sum(threads.map(repeat, range(cores)))


def main(arguments: list[str]) -> None:
    """Print one figure."""
    what, name, folder, rounds = arguments
    if what == "limit":
        print(json.dumps([limit(name)]))
        return
    torch.set_num_threads(1)
    print(json.dumps(tiered(what, name, Path(folder), int(rounds))))


if __name__ == "__main__":
    main(sys.argv[1:])
