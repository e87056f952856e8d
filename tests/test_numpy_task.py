"""The numpy engine: what fits together, and one epoch beside the same arithmetic in torch."""

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch.nn import functional

from umbel.protocol.errors import SettingsError
from umbel.strategies.numpy_models import MLP
from umbel.strategies.numpy_task import NumpyEngine
from umbel.strategies.optimizers import SGD, Adam, Optimizer
from umbel.strategies.task import Task, batches
from umbel.strategies.trainer import Local

LOCAL = Local(epochs=1, batch_size=16, round=2, seed=3, client=4)


def _digits_like(rows: int = 200) -> tuple[NDArray[Any], NDArray[Any]]:
    rng = np.random.default_rng(0)
    labels = rng.integers(4, size=rows)
    return (rng.normal(size=(rows, 6)) + labels[:, None] / 2).astype(np.float32), labels


@pytest.mark.parametrize("optimizer", [SGD(0.1), SGD(0.05, 0.9, 0.001), Adam(0.01)])
def test_an_epoch_is_the_one_that_torch_walks(optimizer: Optimizer) -> None:
    inputs, labels = _digits_like()
    engine = NumpyEngine(Task(), MLP(6, 8, 4, seed=1))
    twin = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 4))
    twin.load_state_dict({k: torch.from_numpy(a) for k, a in engine.arrays().items()})
    reference: torch.optim.Optimizer
    if isinstance(optimizer, SGD):
        reference = torch.optim.SGD(
            twin.parameters(),
            optimizer.lr,
            optimizer.momentum,
            weight_decay=optimizer.weight_decay,
        )
    else:
        reference = torch.optim.Adam(twin.parameters(), optimizer.lr)
    total = 0.0
    for rows in batches(LOCAL, len(labels)):
        reference.zero_grad()
        outputs = twin(torch.from_numpy(inputs[rows]))
        loss = functional.cross_entropy(outputs, torch.from_numpy(labels[rows]))
        loss.backward()  # type: ignore[no-untyped-call]
        reference.step()
        total += loss.item() * len(rows)
    assert engine.fit((inputs, labels), optimizer, LOCAL) == pytest.approx(total, rel=1e-5)
    for name, tensor in twin.state_dict().items():
        np.testing.assert_allclose(engine.arrays()[name], tensor.numpy(), rtol=0, atol=1e-6)


def test_evaluation_by_hand() -> None:
    # Weights zero: every class has probability 1/3, and argmax picks class 0.
    engine = NumpyEngine(Task(), MLP(2, 3, seed=0))
    engine.load({"0.weight": np.zeros((3, 2)), "0.bias": np.zeros(3)})
    found = engine.evaluate((np.ones((4, 2), np.float32), np.array([0, 1, 2, 0])))
    assert found["examples"] == 4
    assert found["correct"] == 2
    assert found["loss"] == pytest.approx(4 * np.log(3), rel=1e-6)


def test_a_regression_has_no_correct() -> None:
    class Line(Task):
        loss = "mse"

    engine = NumpyEngine(Line(), MLP(1, 1, seed=0, dtype=np.float64))
    engine.load({"0.weight": np.array([[2.0]]), "0.bias": np.array([1.0])})
    # Outputs 1, 3, 5 against 1, 2, 3: squares 0, 1, 4.
    found = engine.evaluate((np.array([[0.0], [1.0], [2.0]]), np.array([1.0, 2.0, 3.0])))
    assert dict(found) == {"examples": 3, "loss": pytest.approx(5.0)}


class Mean(Task):
    """Learns one number, the mean of the targets, from named arrays and a function."""

    optimizer = SGD(lr=0.5)

    def model(self) -> dict[str, NDArray[Any]]:
        """Return the model."""
        return {"mean": np.zeros(()), "steps": np.zeros((), np.int64)}

    @staticmethod
    def loss(arrays: Any, batch: Any) -> tuple[float, dict[str, NDArray[Any]]]:
        """Return the mean loss and, for numpy, its gradients."""
        arrays["steps"][...] += 1
        gap = arrays["mean"] - batch[1].mean()
        return float(gap**2), {"mean": np.asarray(2 * gap)}


def test_named_arrays_train_by_the_tasks_own_gradients() -> None:
    task = Mean()
    engine = NumpyEngine(task, task.model())
    data = (np.zeros((4, 1)), np.array([1.0, 2.0, 3.0, 6.0]))
    assert dict(engine.evaluate(data)) == {"examples": 4, "loss": 4 * 9.0}
    # One batch of all four: the gap is -3, the step 0.5 * 2 * 3 lands on the mean.
    assert engine.fit(data, task.optimizer, Local(1, 4, 0, 0)) == 36.0
    assert engine.arrays()["mean"] == 3.0
    engine.reset(0)
    assert engine.arrays()["mean"] == 0.0


def test_fedprox_pulls_towards_the_received_model() -> None:
    task = Mean()
    engine = NumpyEngine(task, task.model())
    data = (np.zeros((4, 1)), np.array([1.0, 2.0, 3.0, 6.0]))
    # The first step lands on the mean, 3, as above; there the pull alone is left: 3 - 0.5 * 1 * 3.
    engine.fit(data, task.optimizer, Local(2, 4, 0, 0, mu=1.0))
    assert engine.arrays()["mean"] == 1.5


def test_arrays_are_copies() -> None:
    engine = NumpyEngine(Task(), MLP(2, 2, seed=0))
    before = engine.arrays()
    engine.arrays()["0.bias"][...] = 99
    assert engine.arrays()["0.bias"].tolist() == before["0.bias"].tolist()


def test_the_runs_seed_draws_the_model_unless_the_task_fixed_it() -> None:
    free, fixed = NumpyEngine(Task(), MLP(2, 2)), NumpyEngine(Task(), MLP(2, 2, seed=5))
    starts = []
    for seed in (1, 2, 1):
        free.reset(seed)
        fixed.reset(seed)
        starts.append(free.arrays()["0.weight"].tobytes())
        assert (
            fixed.arrays()["0.weight"].tobytes() == MLP(2, 2, seed=5).arrays["0.weight"].tobytes()
        )
    assert starts[0] == starts[2] != starts[1]


@pytest.mark.parametrize(
    ("loss", "model", "says"),
    [
        (
            "hinge",
            MLP(2, 2),
            r"task\.loss: expected one of \['cross_entropy', 'mse'\], got 'hinge'",
        ),
        ("mse", {"w": np.zeros(1)}, r"task\.loss: expected a function"),
        (
            "mse",
            [1, 2],
            r"task\.model\(\): expected an nn.Module, an MLP or named arrays, got 'list'",
        ),
    ],
)
def test_what_does_not_fit_is_named(loss: str, model: object, says: str) -> None:
    task = Task()
    task.loss = loss
    with pytest.raises(SettingsError, match=says):
        NumpyEngine(task, model)


def test_a_part_is_no_copy() -> None:
    data = np.arange(12.0).reshape(6, 2), np.arange(6)
    inputs, targets = NumpyEngine(Task(), MLP(2, 2)).part(data, range(2, 5))
    assert inputs.tolist() == [[4, 5], [6, 7], [8, 9]]
    assert targets.tolist() == [2, 3, 4]
    assert np.shares_memory(inputs, data[0])
    assert np.shares_memory(targets, data[1])


def test_targets_must_match_the_inputs() -> None:
    with pytest.raises(SettingsError, match="expected 3 targets, got 2"):
        NumpyEngine(Task(), MLP(2, 2)).count((np.zeros((3, 2)), np.zeros(2)))
