"""Sessions whose training a tier does, by the cohort: a `Seat` is the `Trainer` of one session.

    session i: start, model -> Update.compute -> Seat.train -+- trained beside others: its own row
                                                             +- else: tier.rows(a window of them)

Only who is trained beside whom is the simulator's. Each session still checks its terms, receives
and hashes its model, and clips, encodes, masks and signs its own row: a seat hands over what
`TaskTrainer.train` returns. The first session that trains has those trained beside it that are
still to come in the same attempt, a window of rows at a time. A row counts only for the model, the
numbers and the config that it was made with; who asks with others is trained anew.

A client that failed has its refusal raised in its own session, as on a device.
"""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np

from .engine.work import Verdict, Work
from ..protocol import messages_pb2 as pb
from ..protocol.errors import Refused, reason_text
from ..protocol.manifest import Manifest
from ..strategies.metrics import EXAMPLES, Count, checked
from ..strategies.trainer import TRAINING, TrainResult

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from numpy.typing import NDArray

    from .engine.work import Report, Tier
    from ..strategies.metrics import Sum
    from ..strategies.task import Site, Task
    from ..strategies.trainer import Settings, Trainer

    Arrays = Mapping[str, NDArray[Any]]

WINDOW_BYTES = 256 << 20
"""Rows that are trained at a time take at most so much, unless one alone takes more."""


class _Batch(NamedTuple):
    """What rows are made with."""

    model: Arrays
    settings: Settings
    config: Mapping[str, bool | int | float | str]
    partitions: int

    def fits(self, other: _Batch) -> bool:
        """Whether rows of the one are rows of the other, bit for bit."""
        return self[1:] == other[1:] and _same(self.model, other.model)


class Cohort:
    """The rows of one federation that are trained and not yet asked for."""

    def __init__(self, tier: Tier, task: Task, own: Trainer, *, window: int = WINDOW_BYTES) -> None:
        """Train nothing yet.

        Args:
            tier: Trains.
            task: What is trained.
            own: Does the rest: the first model, evaluations, the server's tests.
            window: Bytes of rows that are trained at a time.
        """
        self.own = own
        self.ahead: Callable[[], Iterable[int]] = tuple
        """Returns who trains in the open attempt, in the order of their turns."""
        self._tier, self._task, self._window = tier, task, window
        self._metrics = {"examples": EXAMPLES, **task.declarations()}
        self._declared = {phase: own.declared(phase) for phase in ("train", "evaluate")}
        self._first: dict[int, dict[str, NDArray[Any]]] = {}
        self._batch: _Batch | None = None
        self._done: dict[int, TrainResult | Refused] = {}
        self._asked = set[int]()

    def seats(self, clients: int) -> list[Seat]:
        """Return the trainers of so many clients, in their order."""
        return [Seat(self, client, clients) for client in range(clients)]

    def arrays(self, seed: int) -> dict[str, NDArray[Any]]:
        """Return the initial model, made once for all seats; read only."""
        if seed not in self._first:
            self._first = {seed: self.own.arrays(seed)}
        return self._first[seed]

    def declared(self, phase: str) -> dict[str, int]:
        """Return the metric names of a phase with their fractional bits."""
        return self._declared[phase]

    def row(self, client: int, batch: _Batch) -> TrainResult:
        """Return what a client trained, done now with others' if it is not there.

        Raises:
            Refused: The task failed on this client's examples, or its update is not finite.
        """
        if self._batch is None or not self._batch.fits(batch):
            self._batch, self._done, self._asked = batch, {}, set()
        if client in self._asked:  # another attempt: everybody trains again
            self._asked.clear()
        if client not in self._done:
            ahead = (i for i in self.ahead() if i not in self._asked and i not in self._done)
            self._train(list(dict.fromkeys([client, *ahead])), batch)
        self._asked.add(client)
        found = self._done.pop(client)
        if isinstance(found, Refused):
            raise found
        return found

    def _train(self, clients: list[int], batch: _Batch) -> None:
        """Train a window of these clients: the first, and as many more as there is room for."""
        manifest = Manifest.of(batch.model)
        values = sum(entry.size for entry in manifest.averaged)
        wide = any(array.dtype == np.float64 for array in batch.model.values())
        dtype = np.dtype(np.float64 if wide else np.float32)
        clients = clients[: max(1, self._window // max(1, values * dtype.itemsize))]
        work = Work(
            clients=np.array(clients, np.int64),
            partitions=batch.partitions,
            models=[batch.model],
            settings=batch.settings,
            config=batch.config,
            evaluate=True,
        )
        rows = np.empty((len(clients), values), dtype)
        report = self._tier.rows(work, rows)
        for index, client in enumerate(clients):
            try:
                self._done[client] = self._result(report, index, batch, rows[index])
            except Refused as error:
                self._done[client] = error

    def _result(self, report: Report, index: int, batch: _Batch, row: NDArray[Any]) -> TrainResult:
        """Return what `TaskTrainer.train` would of one client, or raise its refusal."""
        if report.verdicts[index] == Verdict.FAILED:
            raise refusal(report.causes.get(index, ""))
        if report.verdicts[index] != Verdict.COUNTED:
            raise Refused(pb.REASON_NOT_FINITE, "the update is NaN or infinite")
        examples, loss = int(report.examples[index]), float(report.losses[index])
        _, local = batch.settings.resolved(self._task)
        found = {name: float(values[index]) for name, values in report.metrics.items()}
        evaluated = _numbers({"examples": examples, **found}, self._metrics)
        trained = _numbers({"examples": examples * local.epochs, "loss": loss}, TRAINING)
        metrics = {f"eval.{name}": value for name, value in evaluated.items()}
        metrics |= {f"train.{name}": value for name, value in trained.items()}
        return TrainResult(deltas(row, batch.model), examples, metrics)


class Seat:
    """The `Trainer` of one simulated client."""

    def __init__(self, cohort: Cohort, client: int, clients: int) -> None:
        """Take the client's number, and how many there are."""
        self._cohort, self._client, self._clients = cohort, client, clients

    def arrays(self, seed: int = 0) -> dict[str, NDArray[Any]]:
        """Return the initial model of a run with this seed."""
        return self._cohort.arrays(seed)

    def declared(self, phase: str = "train") -> dict[str, int]:
        """Return the metric names of a phase with their fractional bits."""
        return self._cohort.declared(phase)

    def train(self, arrays: Arrays, site: Site, settings: Settings) -> TrainResult:
        """Return what the tier trained from this model, with these numbers and this config."""
        batch = _Batch(arrays, settings, dict(site.settings), self._clients)
        return self._cohort.row(self._client, batch)

    def evaluate(self, arrays: Arrays, site: Site) -> TrainResult:
        """Evaluate the model that came on the client's own examples."""
        return self._cohort.own.evaluate(arrays, site)

    def test(self, arrays: Arrays) -> dict[str, float]:
        """Return test means of the server's own examples."""
        return self._cohort.own.test(arrays)


def deltas(row: NDArray[Any], model: Arrays) -> dict[str, NDArray[Any]]:
    """Return a row's values by the arrays that they belong to, shaped, in their update's dtype.

    Args:
        row: An update in the flat order of engine/work.py, of a dtype that holds each exactly.
        model: What was trained.
    """
    found: dict[str, NDArray[Any]] = {}
    end = 0
    for entry in Manifest.of(model).averaged:
        part = row[end : end + entry.size].reshape(entry.shape)
        own = np.float64 if entry.dtype == "float64" else np.float32
        found[entry.name] = part.astype(own, copy=False)
        end += entry.size
    return found


def refusal(cause: str) -> Refused:
    """Return the refusal whose words these are; others are a task that failed."""
    for value in pb.Reason.values():
        reason = cast("pb.Reason", value)
        before, found, detail = cause.partition(f"{reason_text(reason)}: ")
        if found and not before:
            return Refused(reason, detail)
    return Refused(pb.REASON_TASK_FAILED, cause)


def _numbers(
    values: Mapping[str, float], declared: Mapping[str, Sum | Count]
) -> dict[str, int | float]:
    """Return what a report says in float64 in the types of the declared metrics, checked."""
    counts = {name for name, metric in declared.items() if isinstance(metric, Count)}
    return checked(
        {n: int(v) if n in counts and isfinite(v) else v for n, v in values.items()}, declared
    )


def _same(one: Arrays, other: Arrays) -> bool:
    """Whether two models have the same bits in arrays of the same names and forms."""
    if one is other:
        return True
    forms = [[(n, a.dtype, a.shape) for n, a in side.items()] for side in (one, other)]
    if forms[0] != forms[1]:
        return False
    return all(np.array_equal(_bytes(array), _bytes(other[name])) for name, array in one.items())


def _bytes(array: NDArray[Any]) -> NDArray[np.uint8]:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)
