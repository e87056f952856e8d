"""The examples of a cohort as addresses: one row of a table a client.

The task is asked for each client's examples in every round, as on a device, and what it raises
costs that client. Its arrays are used where they lie, without a copy, if they are what the kernels
read.

T3 seeds the global generators before each call (engine/isolation.py), which takes longer than
training a small model. Few tasks draw from them: so a cohort is asked without, and only if the
generators have moved is each client asked again, seeded, now and in later rounds (running.py).
"""

from __future__ import annotations

import random
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from .bindings import COLUMNS, pointer
from ..engine.isolation import DATA, cause, seed
from ...clients.child import boundary
from ...protocol import messages_pb2 as pb
from ...protocol.errors import Refused

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from ..engine.reducing import Tally
    from ..engine.work import Work
    from ...strategies.task import Task


CHUNK = 4
"""Clients that are handed to the threads at a time."""


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
    real: np.dtype[Any]
    """Of the model, and of targets that are no classes."""

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
            return y.astype(self.real, copy=False)
        if y.ndim != 1 or y.dtype.kind not in "iu":
            raise _refused("targets of shape (examples,), integers", f"{y.shape} {y.dtype}")
        if not self.casts and y.dtype not in (np.int64, np.uint8):  # as torch, so as a device
            raise _refused("targets of dtype int64 or uint8", y.dtype)
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


class Generators:
    """Where the global generators stand."""

    def __init__(self) -> None:
        """Remember it."""
        torch = sys.modules.get("torch")
        self._python = random.getstate()
        self._numpy: Any = np.random.get_state(legacy=True)
        self._torch = None if torch is None else torch.get_rng_state()

    def moved(self) -> bool:
        """Whether somebody has drawn from one of them; then they are put back."""
        now = Generators()
        same = self._python == now._python and all(
            np.array_equal(one, other) for one, other in zip(self._numpy, now._numpy, strict=True)
        )
        if self._torch is not None and now._torch is not None:
            same = same and bool((self._torch == now._torch).all())
        if not same:
            random.setstate(self._python)
            np.random.set_state(self._numpy)
            if self._torch is not None:
                sys.modules["torch"].set_rng_state(self._torch)
        return not same


@dataclass(slots=True)
class Cohort:
    """The table of one work."""

    task: Task
    reader: Reader
    work: Work
    tally: Tally
    table: NDArray[np.int64] = field(init=False)
    """Shape (clients, columns)."""
    held: list[Any] = field(init=False, default_factory=list)
    """What the table's addresses lead to."""
    bytes: int = field(init=False, default=0)
    """Of what is held."""

    def __post_init__(self) -> None:
        """Make an empty table."""
        self.table = np.zeros((len(self.work.clients), len(COLUMNS)), np.int64)

    @property
    def weight(self) -> int:
        """What the weights of all whose examples are there add up to."""
        return int(self.table[:, COLUMNS.index("weight")].sum())

    def chunks(self, *, seeded: bool) -> Iterator[tuple[int, int]]:
        """Ask the task for everybody's examples; yield rows (start, stop) as they are filled.

        Args:
            seeded: Whether the global generators are seeded for each client, inside `isolated`.
        """
        clients = len(self.work.clients)
        for start in range(0, clients, CHUNK):
            stop = min(start + CHUNK, clients)
            for index in range(start, stop):
                try:
                    self._one(index, seeded=seeded)
                except Refused as error:
                    self.tally.failed(index, cause(error))
            yield start, stop

    def drop(self) -> None:
        """Let the examples go: nobody reads the addresses any more."""
        self.held.clear()
        self.bytes = 0

    def _one(self, index: int, *, seeded: bool) -> None:
        """Ask for one client's examples and fill its row."""
        work = self.work
        site = work.site(index)
        with boundary():
            if seeded:
                seed(site, DATA)
            x, y = self.reader.read(self.task.train_data(site))
        n = len(x)
        model = 0 if work.model_of is None else int(work.model_of[index])
        self.table[index] = (
            *(pointer(x), pointer(y), n, y.itemsize, site.round, site.index),
            *(model, min(n, work.weight_cap)),
        )
        self.held.append((x, y))
        self.bytes += x.nbytes + y.nbytes
