"""The example: real data, split and learned as its page says."""

import statistics
import tomllib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from flwr.common.config import validate_config
from sklearn.datasets import load_digits  # type: ignore[import-untyped]

from umbel.clients.child import Child
from umbel.strategies.app import AppRef, load_task
from umbel.strategies.task import Site, Task
from umbel.strategies.trainer import Settings

APP = Path(__file__).resolve().parents[1] / "examples" / "digits"
ROUNDS = 15  # the app's own 25 leave room for a loss and for ten clients


@pytest.fixture(scope="module")
def task() -> Task:
    """The task, imported here."""
    return load_task(AppRef.read(APP))


@pytest.fixture(scope="module")
def child() -> Iterator[Child]:
    """One child for all clients: one BLAS thread, as on a device."""
    with Child(AppRef.read(APP)) as made:
        yield made


def test_the_data_is_scikit_learns(task: Task) -> None:
    images, labels = load_digits(return_X_y=True)
    expected = sorted((row.tobytes(), label) for row, label in zip(images, labels, strict=True))
    parts = [task.train_data(Site(0, 1)), task.test_data()]
    found = sorted(
        ((row * 16).astype(np.float64).tobytes(), label)
        for part in parts
        for row, label in zip(*part, strict=True)
    )
    assert found == expected
    assert [len(part[1]) for part in parts] == [1438, 359]
    assert np.bincount(parts[1][1]).tolist() == [
        round(0.2 * count) for count in np.bincount(labels)
    ]


@pytest.mark.parametrize("count", [3, 5, 10])
def test_the_deal_is_a_partition_and_uneven(task: Task, count: int) -> None:
    whole = task.train_data(Site(0, 1))
    parts = [task.train_data(Site(index, count)) for index in range(count)]
    rows = sorted(row.tobytes() for images, _ in parts for row in images)
    assert rows == sorted(row.tobytes() for row in whole[0])
    shares = np.array([np.bincount(y, minlength=10) for _, y in parts]) / np.bincount(whole[1])
    assert shares.max(axis=0).mean() > 1.5 / count
    if count > 3:
        assert shares.max() < 0.9


def _accuracy(child: Child, seed: int, lost: int | None = None) -> float:
    """Return the test accuracy after plain federated averaging with five clients."""
    config = AppRef.read(APP).settings
    model = child.arrays(seed)
    for number in range(1, ROUNDS + 1):
        settings = Settings.of({**config, "seed": seed, "server-round": number})
        members = [i for i in range(5) if i != lost or number == 1]
        results = [child.train(model, Site(i, 5), settings) for i in members]
        total = sum(result.weight for result in results)
        for name in model:
            mean = sum(r.weight * r.deltas[name].astype(np.float64) for r in results) / total
            assert np.abs(mean).max() <= config["value-range"]
            model[name] = (model[name] + mean).astype(np.float32)
    return child.test(model)["accuracy"]


def test_five_clients_learn_it_at_every_seed(child: Child) -> None:
    assert min(_accuracy(child, seed) for seed in range(5)) >= 0.95


def test_the_worst_single_loss_costs_little(child: Child) -> None:
    assert statistics.median(_accuracy(child, seed, lost=2) for seed in range(5)) >= 0.93


def test_the_torch_twin_has_the_same_arrays(task: Task) -> None:
    twin = load_task(AppRef(APP, "digits.task:TorchDigits"))
    arrays = {name: tuple(t.shape) for name, t in twin.model().state_dict().items()}
    assert arrays == {name: a.shape for name, a in task.model().arrays.items()}


def test_flower_accepts_the_app() -> None:
    document = tomllib.loads((APP / "pyproject.toml").read_text())
    assert validate_config(document, check_module=True, project_dir=APP) == (True, [], [])
    assert not any("umbel" in item for item in document["project"]["dependencies"])
