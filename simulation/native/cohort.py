"""The examples of a cohort as addresses: one row of a table a client.

The task is asked for each client's examples in every round, as on a device, and what it raises
costs that client. Its arrays are used where they lie, without a copy, if they are what the kernels
read. The exponent of a sum follows from the weights of the whole cohort, so all are asked before
the first trains; beyond `HELD` bytes they are dropped and asked for again.

T3 seeds the global generators before each call (engine/isolation.py), which costs more than
training a small model. Few tasks draw from them: so they are seeded once, and only if they have
moved after the first cohort is each client asked again, seeded, now and in later rounds.
"""

from __future__ import annotations

import random
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from .bindings import COLUMNS, pointer
from ..engine.examples import HELD
from ..engine.isolation import DATA, isolated, seed
from ...clients.child import boundary
from ...protocol import messages_pb2 as pb
from ...protocol.errors import Refused

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from ..engine.reducing import Tally
    from ..engine.work import Work
    from ...strategies.task import Task


@dataclass(frozen=True, slots=True)
class Reader:
    """What the kernels read of a task's examples."""

    shape: tuple[int, ...]
    """Of one example's inputs."""
    inputs: np.dtype[Any]
    casts: bool
    """Whether other numbers become that dtype, as a numpy model makes them; torch refuses."""
    targets: int
    """Values of one example's target; 0 where it is a class."""

    def read(self, data: Any) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return inputs and targets as contiguous arrays, copied only where they must be.

        Raises:
            Refused: They are not what the model takes.
        """
        if not isinstance(data, tuple | list) or len(data) != 2:  # noqa: PLR2004
            raise _refused("a pair (inputs, targets)", type(data).__name__)
        x, y = np.asarray(data[0]), np.asarray(data[1])
        if x.dtype != self.inputs:
            whole = self.inputs.kind == "i" and x.dtype.kind in "iu"
            if not self.casts and not whole:
                raise _refused(f"inputs of dtype {self.inputs}", x.dtype)
            x = x.astype(self.inputs)
        if x.shape[1:] != self.shape:
            raise _refused(f"inputs of shape (examples, *{self.shape})", x.shape)
        if len(x) != len(y) or len(x) < 1:
            raise _refused(f"{max(1, len(x))} targets", len(y))
        return _contiguous(x), _contiguous(self._targets(y))

    def _targets(self, y: NDArray[Any]) -> NDArray[Any]:
        """Return classes as int64 or int32, other targets in the dtype of the model."""
        if self.targets:
            if y.size != len(y) * self.targets:
                raise _refused(f"targets of {self.targets} values an example", y.shape)
            return y.astype(self.inputs, copy=False)
        if y.ndim != 1 or y.dtype.kind not in "iu":
            raise _refused("targets of shape (examples,), integers", f"{y.shape} {y.dtype}")
        return y if y.dtype in (np.int64, np.int32) else y.astype(np.int64)


def _contiguous(array: NDArray[Any]) -> NDArray[Any]:
    """Return the array, aligned and in C order."""
    flags = array.flags
    if flags.c_contiguous and flags.aligned:
        return array
    return np.require(array, requirements=["C", "A"])


def _refused(expected: str, got: object) -> Refused:
    """Return what costs this client."""
    return Refused(pb.REASON_TASK_FAILED, f"train_data(site): expected {expected}, got {got}")


@dataclass(slots=True)
class Cohort:
    """The table of one work."""

    task: Task
    reader: Reader
    work: Work
    tally: Tally
    draws: bool
    """Whether the task draws from global generators; set when that is seen."""
    table: NDArray[np.int64] = field(init=False)
    """Shape (clients, columns)."""
    held: dict[int, Any] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        """Make an empty table."""
        self.table = np.zeros((len(self.work.clients), len(COLUMNS)), np.int64)

    def count(self) -> int:
        """Ask for everybody's examples; return what their weights add up to."""
        self._asked(range(len(self.work.clients)), whole=True)
        return int(self.table[:, COLUMNS.index("weight")].sum())

    def windows(self) -> Iterator[tuple[int, int]]:
        """Yield rows (start, stop) whose examples are in memory until the next is asked for."""
        start, clients = 0, len(self.work.clients)
        while start < clients:
            if not self._ready(start):
                self._asked(range(start, clients), whole=False)
            stop = start
            while stop < clients and self._ready(stop):
                stop += 1
            yield start, stop
            self.held.clear()
            start = stop

    def _ready(self, index: int) -> bool:
        """Whether this client's examples are here, or its task has failed."""
        return index in self.held or index in self.tally.causes

    def _asked(self, indices: range, *, whole: bool) -> None:
        """Ask for clients' examples and hold the first of them, up to `HELD` bytes.

        Args:
            indices: Of the clients.
            whole: Whether to go on and count the others; else the first that finds no room ends it.
        """
        if not self.draws:
            with isolated():
                seed(self.work.site(indices[0]), DATA)
                before = _state()
                self._ask(indices, whole=whole)
                self.draws = _state() != before
        if self.draws:
            with isolated():
                self._ask(indices, whole=whole)

    def _ask(self, indices: range, *, whole: bool) -> None:
        """Fill the rows of these clients."""
        size = 0
        for index in indices:
            if size > HELD and not whole:
                return
            try:
                x, y = self._one(index)
            except Refused as error:
                self.tally.failed(index, str(error))
                self.table[index] = 0
                continue
            if size <= HELD:
                self.held[index] = x, y
            size += x.nbytes + y.nbytes

    def _one(self, index: int) -> tuple[NDArray[Any], NDArray[Any]]:
        """Ask for one client's examples."""
        site = self.work.site(index)
        with boundary():
            if self.draws:
                seed(site, DATA)
            data = self.task.train_data(site)
            x, y = self.reader.read(data)
        n = len(x)
        self.table[index] = (
            *(pointer(x), pointer(y), n, y.itemsize, site.round, site.index),
            *(0 if self.work.model_of is None else int(self.work.model_of[index]),),
            min(n, self.work.weight_cap),
        )
        return x, y


def _state() -> tuple[object, ...]:
    """Return where the global generators stand."""
    torch = sys.modules.get("torch")
    name, words, *rest = np.random.get_state(legacy=True)
    tensors = None if torch is None else torch.get_rng_state().numpy().tobytes()
    return random.getstate(), name, np.asarray(words).tobytes(), *rest, tensors
