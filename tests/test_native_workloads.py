"""The models that the simulator is measured with: torch's parameters after a round, and equal bits.

They are compiled at their full size: slow.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from umbel.simulation.engine.work import Work  # noqa: E402
from umbel.simulation.native.tier import tier  # noqa: E402
from umbel.strategies.optimizers import SGD  # noqa: E402
from umbel.tests.native_cases import Ragged, loop, mean, tensors, work_of  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.slow


def mlp() -> Any:
    return nn.Sequential(nn.Linear(784, 76), nn.ReLU(), nn.Linear(76, 10))


def cnn() -> Any:
    return nn.Sequential(
        *(nn.Conv2d(1, 16, 5), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 32, 5), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(512, 90), nn.ReLU(), nn.Linear(90, 10)),
    )


def cifar(rates: tuple[float, float] = (0.25, 0.5)) -> Any:
    return nn.Sequential(
        *(nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Dropout(rates[0]), nn.Flatten(), nn.Linear(12544, 128), nn.ReLU()),
        *(nn.Dropout(rates[1]), nn.Linear(128, 10)),
    )


CASES = {
    "mlp": (mlp, (784,), SGD(0.1)),
    "cnn": (cnn, (1, 28, 28), SGD(0.1)),
    "cnn with momentum": (cnn, (1, 28, 28), SGD(0.05, momentum=0.9, weight_decay=0.01)),
    "cifar": (lambda: cifar((0.0, 0.0)), (3, 32, 32), SGD(0.01)),
    "cifar in float64": (lambda: cifar((0.0, 0.0)).double(), (3, 32, 32), SGD(0.1)),
}
"""Of 700,000 cells of the last model's pool one or another has two inputs that are equal to seven
digits, and then float32 programs may differ by which of them wins: float64 tells an error from
that."""


@pytest.mark.parametrize("name", CASES)
def test_a_round_is_torchs(name: str) -> None:
    make, shape, optimizer = CASES[name]
    double = "float64" in name
    dtype = np.float64 if double else np.float32
    task = tensors(Ragged(make, shape, 10, optimizer=optimizer, dtype=dtype))
    made = tier(task, task.pairs[0], 2)
    work = work_of(task)
    found, expected = mean(made.reduce(work)), mean(loop(task, work))
    made.close()
    assert np.abs(expected).max() > 1e-3
    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-12 if double else 1e-5)


def trained(make: Callable[[], Any], shape: tuple[int, ...], threads: int) -> bytes:
    """Return the digest of the model after three rounds."""
    task = tensors(Ragged(make, shape, 10))
    made, work = tier(task, task.pairs[0], threads), work_of(task)
    model = {name: array.copy() for name, array in work.models[0].items()}
    for number in range(3):
        numbers = replace(work.settings, round=number)
        update, at = mean(made.reduce(replace(work, models=[model], settings=numbers))), 0
        for name, array in model.items():
            part = update[at : at + array.size].reshape(array.shape)
            model[name] = array + part.astype(array.dtype)
            at += array.size
    made.close()
    return hashlib.sha256(b"".join(array.tobytes() for array in model.values())).digest()


@pytest.mark.parametrize(("make", "shape"), [(cnn, (1, 28, 28)), (cifar, (3, 32, 32))])
def test_bits_are_equal_for_one_to_three_threads_with_dropout(
    make: Callable[[], Any], shape: tuple[int, ...]
) -> None:
    assert len({trained(make, shape, threads) for threads in (1, 2, 3)}) == 1


def test_many_clients_are_one_after_another_in_little_memory() -> None:
    """A work of a thousand clients: each of them is trained once, whoever does it."""
    task = tensors(Ragged(mlp, (784,), 10, sizes=(3,)))
    made = tier(task, task.pairs[0], 3)
    one = Work(
        clients=np.zeros(1, np.int64),
        partitions=1,
        models=work_of(task, [0]).models,
        settings=work_of(task, [0]).settings,
    )
    many = replace(one, clients=np.zeros(1000, np.int64))
    np.testing.assert_array_equal(made.reduce(many).total, 1000 * made.reduce(one).total)
    made.close()
