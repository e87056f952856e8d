"""The workloads' models, and the plain torch loop. Nothing of Umbel: a peer's process reads it too.

`python -m …torch_workloads MODEL FOLDER ROUNDS` prints the seconds of each round of the plain loop
as JSON: one model, slices in the order of the data, a running sum.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from .simulation_work import BATCH, CLASSES, LR, WORKLOADS, mapped

loss: Any = functional.cross_entropy
sgd = torch.optim.SGD


def tensors(folder: Path) -> tuple[torch.Tensor, torch.Tensor]:
    """Return inputs and labels, for a process that computes with one thread."""
    torch.set_num_threads(1)
    inputs, labels = map(torch.from_numpy, mapped(folder))
    return inputs, labels


def model(name: str) -> nn.Module:
    """Return a workload's model, always with the same parameters."""
    torch.manual_seed(0)
    if name == "mlp":
        return nn.Sequential(nn.Linear(784, 76), nn.ReLU(), nn.Linear(76, CLASSES))
    if name == "cnn":
        return nn.Sequential(
            nn.Conv2d(1, 16, 5), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 5), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(), nn.Linear(512, 90), nn.ReLU(), nn.Linear(90, CLASSES),
        )  # fmt: skip
    return nn.Sequential(
        nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2),
        nn.Dropout(0.25), nn.Flatten(), nn.Linear(12544, 128), nn.ReLU(), nn.Dropout(0.5),
        nn.Linear(128, CLASSES),
    )  # fmt: skip


def flop(name: str) -> float:
    """Return the operations of one client's training.

    Twice the multiply-adds of forward pass, weight gradients and input gradients, without the input
    gradient of the first layer.
    """
    total, first = 0, True
    inputs = torch.zeros(1, *WORKLOADS[name].shape)
    for layer in model(name).eval():  # type: ignore[attr-defined]
        inputs = layer(inputs)
        if isinstance(layer, nn.Conv2d | nn.Linear):
            pixels = inputs.shape[2] * inputs.shape[3] if isinstance(layer, nn.Conv2d) else 1
            total += 2 * pixels * layer.weight.numel() * (2 if first else 3)
            first = False
    return float(total * WORKLOADS[name].samples)


def fit(net: nn.Module, inputs: torch.Tensor, labels: torch.Tensor) -> None:
    """Train one client: slices in the order of the data."""
    stepper = sgd(net.parameters(), lr=LR)
    for start in range(0, len(inputs), BATCH):
        stepper.zero_grad()
        outputs = net(inputs[start : start + BATCH])
        loss(outputs, labels[start : start + BATCH]).backward()
        stepper.step()


def looped(name: str, folder: Path, rounds: int) -> list[float]:
    """Return the seconds of each round of the plain loop."""
    work, net, seconds = WORKLOADS[name], model(name), []
    inputs, labels = tensors(folder)
    for number in range(rounds):
        began = time.perf_counter()
        start = {key: value.clone() for key, value in net.state_dict().items()}
        total = {key: torch.zeros_like(value) for key, value in start.items()}
        for client in work.drawn(number):
            net.load_state_dict(start)
            fit(net, inputs[work.rows(client)], labels[work.rows(client)])
            for key, value in net.state_dict().items():
                total[key] += value * work.samples
        net.load_state_dict(
            {key: value / (work.samples * work.cohort) for key, value in total.items()}
        )
        seconds.append(time.perf_counter() - began)
    return seconds


def main(arguments: list[str]) -> None:
    """Print the plain loop's figure."""
    name, folder, rounds = arguments
    print(json.dumps(looped(name, Path(folder), int(rounds))))


if __name__ == "__main__":
    main(sys.argv[1:])
