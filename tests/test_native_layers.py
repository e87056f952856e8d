"""Each layer of the native tier against torch's autograd in float64: equal to 1e-12.

A layer stands alone between what gives it inputs with a gradient and what makes outputs of them.
Clients are ragged: whole batches, a part of one, a single example. Every model is compiled, so most
of them are slow; one that holds many layers is not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from umbel.simulation.engine.loop import Loop  # noqa: E402
from umbel.simulation.native.tier import tier  # noqa: E402
from umbel.strategies.optimizers import SGD, Adam, Optimizer  # noqa: E402
from umbel.tests.native_cases import SIZES, Ragged, tensors, work_of  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable


def compare(task: Ragged, **numbers: Any) -> None:
    """Compare each client's update of one round with a device's own training."""
    native = tier(task, task.pairs[0], 2, evaluate=True)
    work = work_of(task, numbers=numbers, evaluate=True)
    values = sum(array.size for array in work.models[0].values())
    found, expected = np.empty((2, len(SIZES), values))
    report, wanted = native.rows(work, found), Loop(task).rows(work, expected)
    native.close()
    assert np.abs(expected).max() > 1e-3  # it moved by far more than the tolerance
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)
    np.testing.assert_allclose(report.losses, wanted.losses, rtol=1e-12)
    for name, sums in wanted.metrics.items():  # torch evaluates in float32
        np.testing.assert_allclose(report.metrics[name], sums, rtol=1e-5)


IMAGE = (3, 9, 8)
CASES: dict[str, tuple[tuple[int, ...], Callable[[], list[Any]]]] = {
    "linear": ((5,), lambda: [nn.Linear(5, 33)]),
    "linear without bias": ((5,), lambda: [nn.Linear(5, 3, bias=False)]),
    "relu": ((5,), lambda: [nn.Linear(5, 20), nn.Tanh(), nn.ReLU()]),
    "gelu": ((5,), lambda: [nn.Linear(5, 20), nn.GELU()]),
    "gelu by tanh": ((5,), lambda: [nn.Linear(5, 20), nn.GELU("tanh")]),
    "nested": ((5,), lambda: [nn.Sequential(nn.Linear(5, 20), nn.Sequential(nn.Tanh()))]),
    "conv": (IMAGE, lambda: [nn.Conv2d(3, 5, 3)]),
    "conv, padded": (
        IMAGE,
        lambda: [nn.Conv2d(3, 5, (3, 2), padding=(2, 1)), nn.Conv2d(5, 17, 3, padding="same")],
    ),
    "conv, relu": (IMAGE, lambda: [nn.Conv2d(3, 40, 3, bias=False), nn.ReLU()]),
    "conv, relu, pool": (
        IMAGE,
        lambda: [
            *(nn.Conv2d(3, 6, 2), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(6, 20, 3, padding=1), nn.MaxPool2d(2), nn.ReLU()),
        ],
    ),
    "conv, pool": (
        IMAGE,
        lambda: [
            *(nn.Conv2d(3, 16, 4, padding=1), nn.MaxPool2d(2)),
            *(nn.Conv2d(16, 3, 2, bias=False), nn.MaxPool2d(2)),
        ],
    ),
    "pools": (
        IMAGE,
        lambda: [
            *(nn.Conv2d(3, 5, 2), nn.MaxPool2d(3, 2, 1), nn.Tanh(), nn.MaxPool2d((2, 1), 1)),
            nn.AvgPool2d(2, 1, 1),
        ],
    ),
    "average without the zeros around": (
        IMAGE,
        lambda: [nn.Conv2d(3, 5, 2), nn.AvgPool2d(3, 2, 1, count_include_pad=False)],
    ),
    "pool first": (IMAGE, lambda: [nn.AvgPool2d(2), nn.Conv2d(3, 4, 2)]),
    "group norm": (IMAGE, lambda: [nn.Conv2d(3, 6, 2), nn.GroupNorm(3, 6)]),
    "group norm first": (IMAGE, lambda: [nn.GroupNorm(1, 3), nn.Conv2d(3, 4, 2)]),
    "group norm without weights": (
        IMAGE,
        lambda: [nn.Conv2d(3, 6, 2), nn.GroupNorm(2, 6, affine=False)],
    ),
    "layer norm": ((5,), lambda: [nn.Linear(5, 20), nn.LayerNorm(20)]),
    "layer norm first": ((5,), lambda: [nn.LayerNorm(5), nn.Linear(5, 20)]),
    "layer norm of an image": (
        IMAGE,
        lambda: [nn.Conv2d(3, 16, 2), nn.LayerNorm((16, 8, 7), bias=False)],
    ),
}


def model_of(name: str) -> Callable[[], Any]:
    """Return what makes the model of a case: its layers, and a linear one to four classes."""
    shape, layers = CASES[name]
    values = nn.Sequential(*layers(), nn.Flatten())(torch.zeros(2, *shape)).shape[1]
    tail = [nn.Flatten()] * (len(shape) > 1)
    return lambda: nn.Sequential(*layers(), *tail, nn.Linear(values, 4)).double()


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_a_layer_is_torchs(name: str) -> None:
    compare(tensors(Ragged(model_of(name), CASES[name][0], 4, dtype=np.float64)))


def words() -> Any:
    return nn.Sequential(
        nn.Embedding(11, 5), nn.LayerNorm(5), nn.Flatten(), nn.Linear(15, 4)
    ).double()


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", [SGD(0.1, weight_decay=0.1), SGD(0.1, momentum=0.5)])
def test_an_embedding_is_torchs(optimizer: Optimizer) -> None:
    task = Ragged(words, (3,), 4, dtype=np.float64, optimizer=optimizer)
    rng = np.random.Generator(np.random.Philox(12))
    task.pairs = [(rng.integers(0, 11, x.shape), y) for x, y in task.pairs]
    compare(tensors(task))


def test_an_embedding_before_numbers_is_torchs() -> None:
    task = Ragged(words, (3,), 4, dtype=np.float64, loss="mse")
    rng = np.random.Generator(np.random.Philox(12))
    task.pairs = [(rng.integers(0, 11, x.shape), y) for x, y in task.pairs]
    compare(tensors(task))


def many() -> Any:
    return nn.Sequential(
        *(nn.Conv2d(3, 6, 2), nn.GroupNorm(2, 6), nn.GELU()),
        nn.AvgPool2d(3, 2, 1, count_include_pad=False),
        *(nn.Conv2d(6, 5, 2, padding=1), nn.Tanh(), nn.MaxPool2d(3, 2, 1), nn.Flatten()),
        *(nn.Linear(45, 20), nn.LayerNorm(20), nn.GELU("tanh"), nn.Linear(20, 4)),
    ).double()


@pytest.mark.parametrize(
    ("optimizer", "mu"),
    [
        (SGD(0.05, momentum=0.9, weight_decay=0.01), 0.0),
        (SGD(0.05), 0.3),
        (Adam(0.01, weight_decay=0.01), 0.1),
    ],
    ids=["momentum and decay", "FedProx", "Adam and FedProx"],
)
def test_many_layers_and_optimisers_are_torchs(optimizer: Optimizer, mu: float) -> None:
    task = tensors(Ragged(many, IMAGE, 4, dtype=np.float64, optimizer=optimizer))
    compare(task, epochs=2, proximal_mu=mu)


def ends_in_relu() -> Any:
    return nn.Sequential(
        *(nn.Flatten(), nn.ReLU(), nn.Linear(216, 9), nn.Tanh(), nn.Linear(9, 4), nn.ReLU())
    ).double()


def ends_in_tanh() -> Any:
    return nn.Sequential(
        nn.Conv2d(3, 4, (9, 8)), nn.GroupNorm(2, 4), nn.Flatten(), nn.Tanh()
    ).double()


def ends_in_a_pool() -> Any:
    return nn.Sequential(nn.Conv2d(3, 4, (8, 7)), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()).double()


def ends_in_a_norm() -> Any:
    return nn.Sequential(nn.Flatten(), nn.Linear(216, 4), nn.LayerNorm(4)).double()


@pytest.mark.parametrize(
    "ends",
    [
        ends_in_relu,
        ends_in_tanh,
        pytest.param(ends_in_a_pool, marks=pytest.mark.slow),
        pytest.param(ends_in_a_norm, marks=pytest.mark.slow),
    ],
)
def test_a_model_need_not_end_in_a_linear_layer(ends: Callable[[], Any]) -> None:
    """The loss puts the gradient where the outputs were, and a ReLU goes back by its outputs."""
    compare(tensors(Ragged(ends, IMAGE, 4, dtype=np.float64, loss="mse")))
