"""What a worker does for a task: count a client's examples, train it, add or write its update.

The training is loop.py's, so an update has the bits of a device's. With `sum` each worker has an
int64 sum of its own in memory that the pool has mapped; integers add up to the same whoever has
which. A worker says in its head that it is at adding, so that one that dies there is not believed.
With `rows` an update goes to a slot, from which the pool takes it.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from . import work_wire
from .examples import Examples
from .isolation import alone
from .loop import Loop
from .reducing import Sum, Tally, count_values, write
from .verdicts import Bounds, judge
from .work import Verdict, Work
from ...server.core.segments import Segment
from ...strategies.app import AppRef, load_task

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .pool_worker import Answer, Me
    from .reducing import Trained
    from ...strategies.task import Task

TAKEN = 1
"""Place in a worker's head: twice the updates that went through its sum; odd while one does."""
SLOTS = 2
"""Rows of a worker: one is read while the next is written."""


def make(fields: Mapping[str, Any]) -> TaskCallee:
    """Return the callee of an app's task."""
    task = load_task(AppRef(Path(fields["directory"]), fields["component"]))
    return TaskCallee(task, fields["tier"])


class TaskCallee:
    """Trains a task's clients."""

    def __init__(self, task: Task, tier: str) -> None:
        """Build the task's model, to be trained as in this tier.

        Raises:
            Refused: The task raised, or the tier cannot train it.
        """
        self._loop = Loop(task, tier)

    def begin(self, fields: Mapping[str, Any], blobs: Sequence[memoryview], me: Me) -> None:
        """Take a work and where its sums or slots are."""
        self._me, self._turn = me, 0
        self._work = unpacked(fields, blobs)
        self._counted: dict[int, Examples] = {}
        self._sum: Sum | None = None
        found = Segment.attach(Path(fields["out"]), fields["out_bytes"], write=True)
        values = count_values(self._work.models[0])
        self._out = found.array(fields["dtype"]).reshape(-1, values)

    def call(self, fields: Mapping[str, Any], blobs: Sequence[memoryview]) -> Answer:
        """Count the examples of some clients, or train one."""
        alone()
        if "count" in fields:
            return self._count(fields["count"])
        if "weight" in fields:
            return self._add(fields["index"], fields["weight"], fields["examples"])
        return self._write(fields["index"])

    def _count(self, indices: Sequence[int]) -> Answer:
        tally = Tally(self._work)
        examples = Examples(self._loop.trainer, self._work, tally, indices)
        self._counted |= dict.fromkeys(examples.counts, examples)
        counts = [examples.counts.get(index, 0) for index in indices]
        return {"counts": counts, "causes": [tally.causes.get(index, "") for index in indices]}, ()

    def _add(self, index: int, weight: int, counted: int) -> Answer:
        """Train a client into this worker's sum; the weights of the round add up to `weight`."""
        if self._sum is None:
            self._sum = Sum(self._work, weight)
            self._sum.total = self._out[self._me.number]
        trained = self._trained(index, counted)
        self._me.head[TAKEN] += 1
        self._sum.take(index, trained)
        self._me.head[TAKEN] += 1
        return _said(trained, Verdict(self._sum.tally.verdicts[index]))

    def _write(self, index: int) -> Answer:
        """Train a client into one of this worker's slots."""
        work, trained = self._work, self._trained(index)
        self._turn = (self._turn + 1) % SLOTS
        slot = self._me.number * SLOTS + self._turn
        verdict = judge(trained.update, Bounds(max_norm=work.max_norm))
        if verdict is Verdict.COUNTED:
            write(self._out[slot], trained.update)
        fields, blobs = _said(trained, verdict)
        return {**fields, "slot": slot}, blobs

    def _trained(self, index: int, counted: int | None = None) -> Trained:
        examples = self._counted.get(index)
        if examples is None:  # whoever counted them died
            examples = Examples(self._loop.trainer, self._work, Tally(self._work), ())
            examples.counts |= {} if counted is None else {index: counted}
        return self._loop.client(self._work, examples, index)


def _said(trained: Trained, verdict: Verdict) -> Answer:
    """Return what is said of a client's training; numbers that JSON cannot say are in a blob."""
    fields = {
        "verdict": int(verdict),
        "examples": trained.examples,
        "metrics": list(trained.metrics),
    }
    return fields, [np.array([trained.loss, *trained.metrics.values()], np.float64).data]


def packed(work: Work, model: Segment) -> tuple[dict[str, Any], list[memoryview]]:
    """Return a work as fields and blobs; its models lie in `model`, one after another."""
    fields, blobs = work_wire.packed(work)
    return {**fields, "models": str(model.path), "model_bytes": len(model.view)}, blobs


def unpacked(fields: Mapping[str, Any], blobs: Sequence[memoryview]) -> Work:
    """Return the work of another process."""
    view = Segment.attach(Path(fields["models"]), fields["model_bytes"], write=False).view
    return work_wire.unpacked(fields, blobs, view)
