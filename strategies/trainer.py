"""One client's work on one task: evaluate what came, train, hand back the difference.

`load(task)` gives the trainer that clients, the training child and the simulator share. What
differs between numpy and torch is an `Engine` (numpy_task.py, torch_task.py); the order of work,
the settings, the weight, the differences and the metrics are here, once.

An update is `local - received` in float32, or float64 where the model is float64: narrower floats
are widened before the subtraction. Integer and bool arrays are buffers: they are loaded, may change
while training, and never leave the device.
"""

from __future__ import annotations

import importlib
import sys
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from .metrics import EXAMPLES, LOSS, Count, Metrics, Sum, checked, fractional_bits
from .numpy_task import NumpyEngine
from .testing import means, parts, total
from ..protocol import messages_pb2 as pb
from ..protocol.errors import Refused, SettingsError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from .optimizers import Optimizer
    from .task import Site, Task

TRAINING: Mapping[str, Sum | Count] = {"examples": EXAMPLES, "loss": LOSS}


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How to train in one round; None leaves the task's own value."""

    lr: float | None = None
    epochs: int | None = None
    batch_size: int | None = None
    round: int = 0
    seed: int = 0
    proximal_mu: float = 0.0
    """FedProx: mu/2 of the squared distance from the received model is added to the loss (Li et
    al. 2020, arXiv 1812.06127)."""

    @classmethod
    def of(cls, config: Mapping[str, object]) -> Settings:
        """Read lr, local-epochs, batch-size, proximal-mu, server-round and seed; no other key.

        Raises:
            SettingsError: One of them has another type, or lies outside its range.
        """
        lr = config.get("lr")
        if lr is not None and (
            isinstance(lr, bool) or not isinstance(lr, int | float) or not 0 < lr < float("inf")
        ):
            raise SettingsError("config.lr", "a finite number above 0", lr)
        mu = config.get("proximal-mu", 0.0)
        if type(mu) not in {int, float} or not 0 <= mu < float("inf"):  # type: ignore[operator]
            raise SettingsError("config.proximal-mu", "a finite number of 0 or more", mu)
        return cls(
            lr=None if lr is None else float(lr),
            epochs=_integer(config, "local-epochs", 1),
            batch_size=_integer(config, "batch-size", 1),
            round=_integer(config, "server-round", 0) or 0,
            seed=_integer(config, "seed", 0) or 0,
            proximal_mu=float(mu),  # type: ignore[arg-type]
        )

    def resolved(self, task: Task) -> tuple[Optimizer, Local]:
        """Return the optimiser and the numbers of this round, the task's own where None."""
        optimizer = task.optimizer if self.lr is None else replace(task.optimizer, lr=self.lr)
        epochs = task.epochs if self.epochs is None else self.epochs
        size = task.batch_size if self.batch_size is None else self.batch_size
        return optimizer, Local(epochs, size, self.round, self.seed, mu=self.proximal_mu)


def _integer(config: Mapping[str, object], key: str, low: int) -> int | None:
    """Return `config[key]`, an integer of at least `low`, or None if it is absent."""
    value = config.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < low:
        raise SettingsError(f"config.{key}", f"an integer of at least {low}", value)
    return value


@dataclass(frozen=True, slots=True)
class Local:
    """The numbers of one client's training, all known."""

    epochs: int
    batch_size: int
    round: int
    seed: int
    client: int = 0
    mu: float = 0.0
    """Of FedProx: `mu * (parameters - received)` is added to every gradient."""


@dataclass(frozen=True, slots=True)
class TrainResult:
    """What one client hands to the codec: nothing of it travels as it is in a secure round."""

    deltas: dict[str, NDArray[Any]] = field(repr=False)
    """Float arrays, float32 or float64; empty after an evaluation."""
    weight: int
    """Number of training examples, at least 1; 1 after an evaluation."""
    metrics: dict[str, int | float] = field(repr=False)
    """Exactly the declared names."""


class Engine(Protocol):
    """What a framework does for one task and one model."""

    def reset(self, seed: int) -> None:
        """Make the initial model of a run with this seed."""

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return copies of all arrays, in the model's own order."""

    def load(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Set all arrays; names, shapes and dtypes have been checked."""

    def count(self, data: Any) -> int:
        """Return the number of examples."""

    def part(self, data: Any, rows: range) -> Any:
        """Return these examples, which follow each other; nothing is copied."""

    def fit(self, data: Any, optimizer: Optimizer, local: Local) -> float:
        """Train in place and return the loss, summed over every example of every epoch."""

    def evaluate(self, data: Any) -> Metrics:
        """Return the standard sums over `data`."""

    @property
    def model(self) -> Any:
        """The model that `Task.evaluate` gets."""


class Trainer(Protocol):
    """What a client uses, whether user code runs here or in a child."""

    def arrays(self, seed: int = 0) -> dict[str, NDArray[Any]]:
        """Return the initial model of a run with this seed."""

    def declared(self, phase: str = "train") -> dict[str, int]:
        """Return the metric names of a phase with their fractional bits."""

    def train(
        self, arrays: Mapping[str, NDArray[Any]], site: Site, settings: Settings
    ) -> TrainResult:
        """Evaluate and then train the model that came."""

    def evaluate(self, arrays: Mapping[str, NDArray[Any]], site: Site) -> TrainResult:
        """Evaluate the model that came on the client's own examples."""

    def test(self, arrays: Mapping[str, NDArray[Any]]) -> dict[str, float]:
        """Return test means of the server's own examples, empty if the task has none."""


def engine(task: Task, model: Any) -> Engine:
    """Return what trains `model`: torch for an `nn.Module`, else numpy.

    torch is not imported here: a model that needs it has imported it.
    """
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(model, torch.nn.Module):
        made: Engine = importlib.import_module(".torch_task", __package__).TorchEngine(task, model)
        return made
    return NumpyEngine(task, model)


def load(task: Task) -> TaskTrainer:
    """Return the trainer of a task, its model built once and reused in every round."""
    return TaskTrainer(task)


class TaskTrainer:
    """The `Trainer` that calls the task directly, in this process."""

    def __init__(self, task: Task, make: Callable[[Task, Any], Engine] = engine) -> None:
        """Build the model; `make` returns what trains it."""
        self.task = task
        self._engine = make(task, task.model())
        # Sums become means by `examples`, so it is among the metrics whatever the task declares.
        self._metrics = {"examples": EXAMPLES, **task.declarations()}
        self._forms = _forms(self._engine.arrays())

    def arrays(self, seed: int = 0) -> dict[str, NDArray[Any]]:
        """Return the initial model of a run with this seed."""
        self._engine.reset(seed)
        return self._engine.arrays()

    def declared(self, phase: str = "train") -> dict[str, int]:
        """Return the metric names of a phase with their fractional bits."""
        names = {f"eval.{name}": metric for name, metric in self._metrics.items()}
        if phase == "train":
            names |= {f"train.{name}": metric for name, metric in TRAINING.items()}
        return fractional_bits(names)

    def train(
        self, arrays: Mapping[str, NDArray[Any]], site: Site, settings: Settings
    ) -> TrainResult:
        """Evaluate the received model, train it, and return the difference.

        Raises:
            Refused: No examples, a model of another shape, or metrics that were not declared.
        """
        site = replace(site, seed=settings.seed, round=settings.round)
        data, weight = self.data(site)
        self.load(arrays)
        metrics = self.evaluated(data)
        loss = self.fit(data, site, settings)
        done = {"examples": weight * settings.resolved(self.task)[1].epochs, "loss": loss}
        metrics |= _prefixed("train", checked(done, TRAINING))
        return TrainResult(self.update(arrays), weight, metrics)

    def evaluate(self, arrays: Mapping[str, NDArray[Any]], site: Site) -> TrainResult:
        """Evaluate the received model; the weight is 1, as the ring's phase `evaluate` wants."""
        data, _ = self.data(site)
        self.load(arrays)
        return TrainResult({}, 1, self.evaluated(data))

    def test(self, arrays: Mapping[str, NDArray[Any]]) -> dict[str, float]:
        """Return every metric over the test data as a mean; `correct` becomes `accuracy`."""
        data = self.task.test_data()
        if data is None:
            return {}
        split = self.split(data)
        return self.tested(self.measured(arrays, data, split))

    def split(self, data: Any) -> list[range]:
        """Return the parts in which test data are measured (testing.py).

        Raises:
            SettingsError: There are no examples.
        """
        examples = self._engine.count(data)
        if examples < 1:
            raise SettingsError("test_data()", "examples, or None", "none")
        return parts(examples)

    def measured(
        self, arrays: Mapping[str, NDArray[Any]], data: Any, split: Sequence[range]
    ) -> list[dict[str, int | float]]:
        """Return what the task measures of a model over each of these parts of the test data."""
        self.load(arrays)
        whole = range(self._engine.count(data))
        return [
            self._sums(data if rows == whole else self._engine.part(data, rows)) for rows in split
        ]

    def tested(self, found: Sequence[Mapping[str, int | float]]) -> dict[str, float]:
        """Return test means out of what was measured over every part, here or elsewhere.

        Raises:
            Refused: As `checked`, for a part or for all together.
        """
        whole = checked(total([checked(of, self._metrics) for of in found]), self._metrics)
        if not whole["examples"]:
            raise Refused(pb.REASON_TASK_FAILED, "the task's test says that it had no examples")
        return means(whole)

    def data(self, site: Site) -> tuple[Any, int]:
        """Return the client's examples and how many they are.

        Raises:
            Refused: There are none.
        """
        data = self.task.train_data(site)
        count = self._engine.count(data)
        if count < 1:
            raise Refused(pb.REASON_TASK_FAILED, "train_data(site) returned no examples")
        return data, count

    def load(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Load the received model after comparing it with the task's own, array by array.

        Raises:
            Refused: It has another shape.
        """
        forms = _forms(arrays)
        for name in sorted(self._forms.keys() | forms.keys()):
            expected, got = (side.get(name, "nothing") for side in (self._forms, forms))
            if expected != got:
                raise Refused(
                    pb.REASON_TASK_FAILED,
                    f"the model's array {name!r}: expected {expected}, got {got}; "
                    "server and client run different versions of the task",
                )
        self._engine.load(arrays)

    def evaluated(self, data: Any) -> dict[str, int | float]:
        """Return the task's metrics of the loaded model, under `eval.`.

        Raises:
            Refused: As `checked`.
        """
        return _prefixed("eval", self._sums(data))

    def fit(self, data: Any, site: Site, settings: Settings) -> float:
        """Train the loaded model and return its loss, summed over all examples of all epochs."""
        optimizer, local = settings.resolved(self.task)
        return self._engine.fit(data, optimizer, replace(local, client=site.index))

    def update(self, received: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Return what training has changed in the model that was received."""
        return differences(self._engine.arrays(), received)

    def _sums(self, data: Any) -> dict[str, int | float]:
        """Return what the task measures over `data`, and over how many examples."""
        found = self.task.evaluate(self._engine.model, data)
        return checked({"examples": self._engine.count(data), **found}, self._metrics)


def differences(
    local: Mapping[str, NDArray[Any]], received: Mapping[str, NDArray[Any]]
) -> dict[str, NDArray[Any]]:
    """Return `local - received` for every float array, in float32 or float64."""
    return {
        name: np.asarray(_wide(array) - _wide(received[name]))
        for name, array in local.items()
        if not is_buffer(array)
    }


def is_buffer(array: NDArray[Any]) -> bool:
    """Return whether an array stays on the device: integers and bools (bfloat16 has kind V)."""
    return array.dtype.kind in "iub"


def _wide(array: NDArray[Any]) -> NDArray[Any]:
    """Return the array in the dtype of its difference."""
    return array.astype(np.float64 if array.dtype == np.float64 else np.float32, copy=False)


def _forms(arrays: Mapping[str, NDArray[Any]]) -> dict[str, str]:
    """Return shape and dtype of every array as words."""
    return {name: f"{array.shape} {array.dtype.name}" for name, array in arrays.items()}


def _prefixed(prefix: str, values: Mapping[str, int | float]) -> dict[str, int | float]:
    """Return the values under `prefix.name`."""
    return {f"{prefix}.{name}": value for name, value in values.items()}
