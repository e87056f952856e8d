"""Training with torch: the `Engine` for a model that is an `nn.Module`.

All of the state dict travels as named arrays: parameters and float buffers (BatchNorm's running
statistics) as differences, integer buffers only downwards. bfloat16 is a numpy array of ml_dtypes'
type. Batches go to the device on which the model lies. torch's global generator is seeded for each
call (Dropout draws from it) and restored after.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.nn import functional
from torch.utils.data import Dataset, Subset, default_collate

from .metrics import Metrics
from .optimizers import Adam, Optimizer
from .task import batches, stream
from ..protocol.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

    from .task import Task
    from .trainer import Local

EVALUATION_ROWS = 512


class TorchEngine:
    """One task and one `nn.Module`."""

    noise = "torch"
    """Purpose of the random stream that training draws from."""

    def __init__(self, task: Task, model: torch.nn.Module) -> None:
        """Check that the loss is a function or a name that torch_task knows."""
        if not callable(task.loss) and task.loss not in ("cross_entropy", "mse"):
            raise SettingsError("task.loss", "'cross_entropy', 'mse' or a function", task.loss)
        self.task = task
        self.model = model

    def reset(self, seed: int) -> None:
        """Build the model again with torch's generator at the run's seed."""
        with _seeded(stream(seed, "initial model")):
            model = self.task.model()
        self.model.load_state_dict(model.state_dict())

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return copies of the state dict's tensors."""
        return {name: to_numpy(tensor) for name, tensor in self.model.state_dict().items()}

    def load(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Copy `arrays` into the state dict."""
        with torch.no_grad():
            for name, tensor in self.model.state_dict().items():
                tensor.copy_(to_torch(arrays[name]))

    def count(self, data: Any) -> int:
        """Return the number of examples."""
        if isinstance(data, Dataset):
            return len(data)  # type: ignore[arg-type]
        inputs, targets = data
        if len(inputs) != len(targets):
            raise SettingsError("task data", f"{len(inputs)} targets", len(targets))
        return len(inputs)

    def part(self, data: Any, rows: range) -> Any:
        """Return views of these rows, or a subset of the dataset."""
        if isinstance(data, Dataset):
            return Subset(data, rows)
        return tuple(part[rows.start : rows.stop] for part in data)

    def fit(self, data: Any, optimizer: Optimizer, local: Local) -> float:
        """Train in place and return the loss, summed over every example of every epoch."""
        wanted = [p for p in self.model.parameters() if p.requires_grad]
        stepper = _optimizer(optimizer, wanted)
        received = [p.detach().clone() for p in wanted] if local.mu else []
        total = torch.zeros((), dtype=torch.float64, device=self._device)
        self.model.train()
        with _seeded(stream(local.seed, self.noise, local.round, local.client)):
            for rows in batches(local, self.count(data)):
                stepper.zero_grad()
                total += self._backward(data, rows)
                _pull(wanted, received, local.mu)
                stepper.step()
        return float(total)

    def _backward(self, data: Any, rows: NDArray[np.intp]) -> torch.Tensor:
        """Leave the gradients of one batch's mean loss and return the sum of its losses."""
        loss = self._loss(self._batch(data, rows))
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach() * len(rows)

    def evaluate(self, data: Any) -> Metrics:
        """Return examples, the sum of losses and, for classes, how many were right."""
        count, loss, correct = self.count(data), 0.0, 0
        classes = self.task.loss == "cross_entropy"
        self.model.eval()
        with torch.no_grad():
            for start in range(0, count, EVALUATION_ROWS):
                rows = np.arange(start, min(start + EVALUATION_ROWS, count))
                batch = self._batch(data, rows)
                if classes:
                    outputs = self.model(batch[0]).float()
                    correct += int((outputs.argmax(dim=1) == batch[1]).sum())
                    loss += float(functional.cross_entropy(outputs, batch[1], reduction="sum"))
                else:
                    loss += float(self._loss(batch)) * len(rows)
        found = Metrics(examples=count, loss=loss)
        if classes:
            found["correct"] = correct
        return found

    @property
    def _device(self) -> torch.device:
        """Where the model lies; the CPU if it has no parameters."""
        first = next(self.model.parameters(), None)
        return torch.device("cpu") if first is None else first.device

    def _batch(self, data: Any, rows: NDArray[np.intp]) -> Any:
        """Return these rows as tensors on the model's device."""
        if isinstance(data, Dataset):
            parts = default_collate([data[int(row)] for row in rows])
        else:
            parts = [_rows(part, rows) for part in data]
        if isinstance(parts, list | tuple):
            return tuple(part.to(self._device) for part in parts)
        return parts

    def _loss(self, batch: Any) -> torch.Tensor:
        """Return the mean loss of one batch."""
        if callable(self.task.loss):
            loss: torch.Tensor = self.task.loss(self.model, batch)
            return loss
        outputs, targets = self.model(batch[0]), batch[1]
        if self.task.loss == "cross_entropy":
            return functional.cross_entropy(outputs, targets)
        return functional.mse_loss(outputs, targets.reshape(outputs.shape).to(outputs.dtype))


def tensor_of(part: Any) -> torch.Tensor:
    """Return the examples as a tensor: over the same memory, or a copy where nobody may write it.

    torch has no tensors that are read only, and warns of one over memory that is.
    """
    if isinstance(part, np.ndarray) and not part.flags.writeable:
        return torch.from_numpy(part.copy())
    return torch.as_tensor(part)


def _rows(part: Any, rows: NDArray[np.intp]) -> torch.Tensor:
    """Return a copy of these rows, the only part read of an array that is mapped from a file."""
    if isinstance(part, np.ndarray):
        return torch.from_numpy(part[rows])
    return torch.as_tensor(part)[torch.from_numpy(rows)]


def to_numpy(tensor: torch.Tensor) -> NDArray[Any]:
    """Return a copy in numpy; bfloat16 by its bits, since numpy has no such type of its own."""
    tensor = tensor.detach().cpu().contiguous()
    if tensor.dtype is torch.bfloat16:
        import ml_dtypes  # noqa: PLC0415 - only models in bfloat16 need it

        return tensor.view(torch.int16).numpy().copy().view(ml_dtypes.bfloat16)
    array: NDArray[Any] = tensor.numpy().copy()
    return array


def to_torch(array: NDArray[Any]) -> torch.Tensor:
    """Return a tensor with a copy of the array's values."""
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16).copy()).view(torch.bfloat16)
    return torch.from_numpy(np.array(array))


def _optimizer(declared: Optimizer, parameters: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
    """Return torch's optimiser of the same formula."""
    if isinstance(declared, Adam):
        return torch.optim.Adam(
            parameters,
            lr=declared.lr,
            betas=declared.betas,
            eps=declared.eps,
            weight_decay=declared.weight_decay,
        )
    return torch.optim.SGD(
        parameters,
        lr=declared.lr,
        momentum=declared.momentum,
        weight_decay=declared.weight_decay,
    )


def _pull(parameters: list[torch.nn.Parameter], received: list[torch.Tensor], mu: float) -> None:
    """Add FedProx's `mu * (parameter - received)` to the gradients that there are."""
    with torch.no_grad():
        for parameter, start in zip(parameters, received, strict=False):
            if parameter.grad is not None:
                parameter.grad.add_(parameter - start, alpha=mu)


def seed_all(number: int) -> None:
    """Seed torch's generators on every device, those too that are first used afterwards.

    Where there is only the CPU, `torch.manual_seed` would note a seed for other devices, slowly.
    """
    if torch.accelerator.is_available():
        torch.manual_seed(number)
    else:
        torch.default_generator.manual_seed(number)


@contextmanager
def _seeded(bits: np.random.Philox) -> Iterator[None]:
    """Seed torch's generators from a stream, and restore them after."""
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_available() else []
    with torch.random.fork_rng(devices=devices):
        seed_all(int(bits.random_raw()) >> 1)
        yield
