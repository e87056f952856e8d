"""What the native tier refuses, each in one line that names the culprit."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from umbel.simulation.native.net import Unsupported  # noqa: E402
from umbel.simulation.native.tier import tier  # noqa: E402
from umbel.tests.native_cases import Ragged  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable

IMAGE, ROW = (3, 8, 8), (6,)


class Twice(nn.Linear):
    """A layer of the user's own."""

    def forward(self, x: Any) -> Any:
        """Return twice what a Linear returns."""
        return 2 * super().forward(x)


class Residual(nn.Sequential):
    """A Sequential with a way of its own."""

    def forward(self, x: Any) -> Any:
        """Return input and output together."""
        return x + super().forward(x)  # type: ignore[no-untyped-call]


def tied() -> Any:
    first, second = nn.Linear(6, 6), nn.Linear(6, 6)
    second.weight = first.weight
    return nn.Sequential(first, second)


def hooked() -> Any:
    model = nn.Sequential(nn.Linear(6, 4))
    model[0].register_forward_hook(lambda *_: None)
    return model


def patched() -> Any:
    model = nn.Sequential(nn.Linear(6, 4))
    model[0].forward = lambda x: x[:, :4]
    return model


def masked() -> Any:
    model = nn.Sequential(nn.Linear(6, 4))
    model[0].weight.register_hook(lambda g: g * (g > 0))  # type: ignore[operator]
    return model


def frozen() -> Any:
    model = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 4))
    model[0].weight.requires_grad = False
    return model


def parametrised() -> Any:
    return nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(6, 4)))


CASES: list[tuple[tuple[int, ...], Callable[[], Any], str]] = [
    (IMAGE, lambda: nn.Conv2d(3, 4, 3, stride=2), "layer 0 (Conv2d): stride"),
    (IMAGE, lambda: nn.Conv2d(3, 4, 3, dilation=2), "layer 0 (Conv2d): dilation"),
    (IMAGE, lambda: nn.Conv2d(3, 3, 3, groups=3), "layer 0 (Conv2d): groups"),
    (IMAGE, lambda: nn.Conv2d(3, 3, 3, padding_mode="circular"), "(Conv2d): padding_mode"),
    (IMAGE, lambda: nn.Conv2d(3, 3, 3, padding=3), "layer 0 (Conv2d): padding"),
    (IMAGE, lambda: nn.Conv2d(4, 4, 3), "layer 0 (Conv2d): expected 4 channels"),
    (IMAGE, lambda: nn.Conv2d(3, 4, 9), "layer 0 (Conv2d): expected an image"),
    (ROW, lambda: nn.Conv2d(6, 4, 1), "layer 0 (Conv2d): expected 6 channels of an image"),
    (IMAGE, lambda: nn.MaxPool2d(2, ceil_mode=True), "layer 0 (MaxPool2d): ceil_mode"),
    (IMAGE, lambda: nn.MaxPool2d(2, dilation=2), "layer 0 (MaxPool2d): dilation"),
    (IMAGE, lambda: nn.AvgPool2d(2, divisor_override=3), "(AvgPool2d): divisor_override"),
    (
        IMAGE,
        lambda: nn.BatchNorm2d(3),
        "has a kernel, got 'BatchNorm2d'",
    ),
    (IMAGE, lambda: nn.Flatten(2), "layer 0 (Flatten): start_dim, end_dim"),
    (IMAGE, lambda: nn.Linear(8, 4), "layer 0 (Linear): expected inputs of shape (8,)"),
    (ROW, lambda: nn.Linear(5, 4), "layer 0 (Linear): expected inputs of shape (5,)"),
    (ROW, lambda: nn.Linear(6, 4, dtype=torch.bfloat16), "expected parameters in float32"),
    (ROW, lambda: nn.LSTM(6, 4), "layer 0: expected a layer that has a kernel, got 'LSTM'"),
    (ROW, lambda: Twice(6, 4), "layer 0: expected a layer that has a kernel, got 'Twice'"),
    (ROW, lambda: Residual(nn.Linear(6, 6)), "layer 0: expected a Sequential's own forward()"),
    (ROW, lambda: nn.Embedding(9, 4, padding_idx=0), "layer 0 (Embedding): padding_idx"),
    (ROW, lambda: nn.Embedding(9, 4, sparse=True), "layer 0 (Embedding): sparse"),
    (ROW, lambda: nn.Dropout(1.0), "layer 0 (Dropout): p: expected below 1"),
    (
        IMAGE,
        lambda: nn.Sequential(nn.Conv2d(3, 4, 7), nn.Flatten()),
        "model: expected outputs of one pixel, or of a Linear",
    ),
    (ROW, nn.ReLU, "model: expected a layer with parameters"),
    (ROW, tied, "model: 0.1.weight: expected an array of its own, got 'that of 0.0.weight'"),
    (ROW, hooked, "layer 0.0: expected a layer without hooks"),
    (ROW, patched, "layer 0.0: expected its class's forward()"),
    (ROW, masked, "model: 0.0.weight: expected a gradient without hooks"),
    (ROW, frozen, "model: 0.0.weight: expected a parameter that is trained"),
    (ROW, parametrised, "layer 0.0: expected a layer that has a kernel"),
]


@pytest.mark.parametrize(("shape", "make", "line"), CASES)
def test_a_layer_without_a_kernel(
    shape: tuple[int, ...], make: Callable[[], Any], line: str
) -> None:
    task = Ragged(lambda: nn.Sequential(make()), shape, 4)
    with pytest.raises(Unsupported) as error:
        tier(task, task.pairs[0], 1)
    assert line in str(error.value)


def test_a_task_that_does_things_its_own_way() -> None:
    task = Ragged(lambda: nn.Sequential(nn.Linear(6, 4)), ROW, 4)
    with pytest.raises(Unsupported, match=r"train_data\(\): expected a pair"):
        tier(task, torch.utils.data.TensorDataset(torch.zeros(3, 6)), 1)

    class Own(Ragged):
        """Another evaluation."""

        def evaluate(self, model: Any, data: Any) -> Any:
            """Measure nothing."""
            return {"examples": len(data[0])}

    own = Own(task.make, ROW, 4)
    with pytest.raises(Unsupported, match=r"task.evaluate\(\)"):
        tier(own, own.pairs[0], 1, evaluate=True)
    task.loss = lambda model, batch: model(batch[0]).sum()
    with pytest.raises(Unsupported, match=r"task.loss: expected one by name"):
        tier(task, task.pairs[0], 1)
    plain = Ragged(dict, ROW, 4)
    with pytest.raises(Unsupported, match=r"task.model\(\): expected an nn.Sequential or an MLP"):
        tier(plain, (np.zeros((2, 6)), np.zeros(2)), 1)


def test_without_a_compiler_it_says_so() -> None:
    program = (
        "from umbel import MLP\n"
        "from umbel.simulation.native.tier import tier\n"
        "from umbel.tests.native_cases import Ragged\n"
        "task = Ragged(lambda: MLP(6, 4), (6,), 4)\n"
        "try:\n    tier(task, task.pairs[0], 1)\n"
        "except Exception as error:\n    print(type(error).__name__, error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={"PATH": ""},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == (
        "Unsupported compiler: expected one of g++, clang++, c++ on PATH, got 'none'; "
        "install g++ or clang, or let another tier train\n"
    )
