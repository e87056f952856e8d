"""The torch engine: state that travels, state that stays, and the same path as numpy."""

from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import Dataset

from umbel.protocol.errors import SettingsError
from umbel.strategies.numpy_models import MLP
from umbel.strategies.numpy_task import NumpyEngine
from umbel.strategies.optimizers import SGD, Adam, Optimizer
from umbel.strategies.task import Site, Task
from umbel.strategies.torch_task import TorchEngine, tensor_of, to_numpy, to_torch
from umbel.strategies.trainer import Local, Settings, differences, load

LOCAL = Local(epochs=1, batch_size=16, round=1, seed=2, client=3)


def _data(rows: int = 120) -> tuple[torch.Tensor, torch.Tensor]:
    rng = np.random.default_rng(1)
    labels = rng.integers(3, size=rows)
    inputs = (rng.normal(size=(rows, 4)) + labels[:, None]).astype(np.float32)
    return torch.from_numpy(inputs), torch.from_numpy(labels)


class Small(Task):
    """Two linear layers."""

    optimizer: Optimizer = SGD(lr=0.1)

    def model(self) -> nn.Module:
        """Return the model."""
        return nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))

    def train_data(self, site: Site) -> Any:
        """Return the examples."""
        return _data()

    def test_data(self) -> Any:
        """Return the test examples."""
        return _data(40)


class Normed(Small):
    """With BatchNorm and Dropout."""

    def model(self) -> nn.Module:
        """Return the model."""
        return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 3))


@pytest.mark.parametrize("optimizer", [SGD(0.1), SGD(0.05, 0.9, 0.01), Adam(0.01)])
def test_numpy_and_torch_walk_one_path(optimizer: Optimizer) -> None:
    data = _data()
    numpy_engine = NumpyEngine(Task(), MLP(4, 5, 3, seed=7))
    torch_engine = TorchEngine(Small(), Small().model())
    torch_engine.load(numpy_engine.arrays())
    pair = (data[0].numpy(), data[1].numpy())
    losses = numpy_engine.fit(pair, optimizer, LOCAL), torch_engine.fit(data, optimizer, LOCAL)
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    for name, array in torch_engine.arrays().items():
        np.testing.assert_allclose(numpy_engine.arrays()[name], array, rtol=0, atol=1e-6)
    ours, theirs = numpy_engine.evaluate(pair), torch_engine.evaluate(data)
    assert ours.pop("loss") == pytest.approx(theirs.pop("loss"), rel=1e-5)
    assert ours == theirs


@pytest.mark.parametrize("optimizer", [SGD(0.1), SGD(0.05, 0.9, 0.01), Adam(0.01)])
def test_fedprox_is_the_gradient_of_its_loss(optimizer: Optimizer) -> None:
    start = {name: to_torch(array) for name, array in MLP(4, 5, 3, seed=7).arrays.items()}

    class Written(Small):
        @staticmethod
        def loss(model: nn.Module, batch: Any) -> Any:
            pull = sum((p - start[name]).square().sum() for name, p in model.named_parameters())
            return nn.functional.cross_entropy(model(batch[0]), batch[1]) + 0.7 / 2 * pull

    local, data = Local(3, 16, 1, 2, 3, mu=0.7), _data()
    engines = [TorchEngine(task, task.model()) for task in (Small(), Written(), Small())]
    ends = []
    for engine, numbers in zip(engines, (local, LOCAL, LOCAL), strict=True):
        engine.load({name: tensor.numpy() for name, tensor in start.items()})
        engine.fit(data, optimizer, replace(numbers, epochs=3))
        ends.append(engine.arrays())
    numpy_engine = NumpyEngine(Task(), MLP(4, 5, 3, seed=7))
    numpy_engine.fit((data[0].numpy(), data[1].numpy()), optimizer, local)
    for name, array in ends[0].items():
        np.testing.assert_allclose(ends[1][name], array, rtol=0, atol=2e-6)
        np.testing.assert_allclose(numpy_engine.arrays()[name], array, rtol=0, atol=2e-6)
        assert np.abs(ends[2][name] - array).max() > 1e-3  # the pull is felt


def test_a_batch_norms_statistics_travel_and_its_counter_stays() -> None:
    trainer = load(Normed())
    start = trainer.arrays(0)
    assert start["1.num_batches_tracked"].dtype == np.int64
    result = trainer.train(start, Site(), Settings(round=1))
    assert result.deltas.keys() == start.keys() - {"1.num_batches_tracked"}
    assert {delta.dtype for delta in result.deltas.values()} == {np.dtype(np.float32)}
    assert np.abs(result.deltas["1.running_mean"]).max() > 0.01
    # The server's counter comes with the next model: 8 batches of 16 were counted meanwhile.
    assert trainer._engine.arrays()["1.num_batches_tracked"] == 8
    trainer._engine.load(start)
    assert trainer._engine.arrays()["1.num_batches_tracked"] == 0


def test_training_is_seeded_and_leaves_the_global_generator_alone() -> None:
    trainer = load(Normed())
    start = trainer.arrays(0)
    torch.manual_seed(11)
    untouched = torch.rand(3)
    torch.manual_seed(11)
    first = trainer.train(start, Site(), Settings(round=1)).deltas
    assert torch.equal(torch.rand(3), untouched)
    same = trainer.train(start, Site(), Settings(round=1)).deltas
    other = trainer.train(start, Site(), Settings(round=2)).deltas
    assert all(first[name].tobytes() == same[name].tobytes() for name in first)
    assert first["0.weight"].tobytes() != other["0.weight"].tobytes()


def test_the_runs_seed_draws_the_model() -> None:
    trainer = load(Small())
    starts = [trainer.arrays(seed)["0.weight"].tobytes() for seed in (1, 2, 1)]
    assert starts[0] == starts[2] != starts[1]


def test_a_frozen_layer_does_not_move() -> None:
    class Frozen(Small):
        def model(self) -> nn.Module:
            model = super().model()
            model[0].requires_grad_(False)  # type: ignore[index]
            return model

    trainer = load(Frozen())
    deltas = trainer.train(trainer.arrays(), Site(), Settings()).deltas
    assert not deltas["0.weight"].any()
    assert deltas["2.weight"].any()


def test_bfloat16_differences_are_taken_in_float32() -> None:
    class Narrow(Small):
        def model(self) -> nn.Module:
            return super().model().to(torch.bfloat16)

        def train_data(self, site: Site) -> Any:
            inputs, labels = _data()
            return inputs.to(torch.bfloat16), labels

    trainer = load(Narrow())
    start = trainer.arrays()
    assert start["0.weight"].dtype == ml_dtypes.bfloat16
    deltas = trainer.train(start, Site(), Settings()).deltas
    assert {delta.dtype for delta in deltas.values()} == {np.dtype(np.float32)}
    assert deltas["2.weight"].any()
    # 256 - 3/2 = 509/2 needs nine bits; bfloat16 has eight and would say 254 or 256.
    wide = differences(
        {"w": np.array([256.0], ml_dtypes.bfloat16)}, {"w": np.array([1.5], ml_dtypes.bfloat16)}
    )
    assert wide["w"].tolist() == [254.5]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64, torch.int64])
def test_tensors_and_arrays_have_the_same_bits(dtype: torch.dtype) -> None:
    for tensor in (
        torch.arange(-3, 3).to(dtype),
        torch.tensor(5).to(dtype),
        torch.zeros(0, 2).to(dtype),
    ):
        array = to_numpy(tensor)
        assert array.shape == tuple(tensor.shape)
        assert array.dtype.name == str(dtype).removeprefix("torch.")
        assert torch.equal(to_torch(array), tensor)


class Rows(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """The same rows as `_data`, one at a time."""

    def __len__(self) -> int:
        return len(_data()[0])

    def __getitem__(self, row: int) -> tuple[torch.Tensor, torch.Tensor]:
        inputs, labels = _data()
        return inputs[row], labels[row]


def test_a_dataset_and_its_tensors_train_alike() -> None:
    engines = [TorchEngine(Small(), Small().model()) for _ in range(2)]
    for engine, data in zip(engines, (_data(), Rows()), strict=True):
        engine.reset(3)
        assert engine.count(data) == 120
        engine.fit(data, SGD(0.1), LOCAL)
    first, second = (engine.arrays() for engine in engines)
    assert all(first[name].tobytes() == second[name].tobytes() for name in first)


def test_a_part_is_no_copy_of_tensors_and_a_subset_of_a_dataset() -> None:
    engine, (inputs, labels) = TorchEngine(Small(), Small().model()), _data()
    first, second = engine.part((inputs, labels), range(100, 117))
    assert first.data_ptr() == inputs[100].data_ptr()
    assert second.data_ptr() == labels[100].data_ptr()
    part = engine.part(Rows(), range(100, 117))
    assert engine.count(part) == engine.count((first, second)) == 17
    assert torch.equal(torch.stack([part[row][0] for row in range(17)]), inputs[100:117])


def test_a_loss_of_the_tasks_own() -> None:
    class Absolute(Small):
        @staticmethod
        def loss(model: nn.Module, batch: Any) -> torch.Tensor:
            loss: torch.Tensor = (model(batch[0]).sum(dim=1) - batch[1]).abs().mean()
            return loss

    trainer = load(Absolute())
    result = trainer.train(trainer.arrays(), Site(), Settings(epochs=20, lr=0.01))
    # 120 examples, evaluated before training; the running mean over 20 epochs must be below it.
    assert result.metrics["eval.examples"] == 120
    assert result.metrics["train.loss"] / 2400 < 0.8 * result.metrics["eval.loss"] / 120
    assert "eval.correct" not in result.metrics


def test_an_unknown_loss_is_named() -> None:
    task = Small()
    task.loss = "hinge"
    with pytest.raises(SettingsError, match=r"task\.loss: expected 'cross_entropy', 'mse' or a"):
        TorchEngine(task, task.model())


def test_targets_must_match_the_inputs() -> None:
    with pytest.raises(SettingsError, match="expected 3 targets, got 2"):
        TorchEngine(Small(), Small().model()).count((torch.zeros(3, 4), torch.zeros(2)))


def test_arrays_that_nobody_may_write_train_like_others() -> None:
    """As slices of a mapped set are; torch warns of such an array, and a warning is an error."""
    data = tuple(tensor.numpy() for tensor in _data())
    for array in data:
        array.flags.writeable = False
    engine, other = TorchEngine(Small(), Small().model()), TorchEngine(Small(), Small().model())
    other.load(engine.arrays())
    assert engine.fit(data, SGD(0.1), LOCAL) == other.fit(_data(), SGD(0.1), LOCAL)
    assert engine.evaluate(data) == other.evaluate(_data())


def test_a_tensor_shares_memory_unless_nobody_may_write_it() -> None:
    array = np.arange(4.0)
    assert tensor_of(array).data_ptr() == array.ctypes.data
    array.flags.writeable = False
    copied = tensor_of(array)
    assert copied.data_ptr() != array.ctypes.data
    assert copied.tolist() == [0, 1, 2, 3]
    assert tensor_of(copied) is copied
