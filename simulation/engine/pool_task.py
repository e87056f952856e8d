"""What a worker does for a task: count a client's examples, train it, add or write its update.

The training is loop.py's, so an update has the bits of a device's. With `sum` each worker has an
int64 sum of its own in memory that the pool has mapped; integers add up to the same whoever has
which. A worker says in its head that it is at adding, so that one that dies there is not believed.
With `rows` an update goes to a slot, from which the pool takes it.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .examples import Examples
from .isolation import isolated
from .loop import Loop
from .reducing import Sum, Tally, count_values, write
from .verdicts import Bounds, judge
from .work import Verdict, Work
from ...protocol.manifest import Manifest
from ...server.core.segments import Segment
from ...strategies.app import AppRef, load_task
from ...strategies.trainer import Settings

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .pool_worker import Answer, Me
    from .reducing import Trained
    from .work import Arrays
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
        with isolated():
            if "count" in fields:
                return self._count(fields["count"])
            if "weight" in fields:
                return self._add(fields["index"], fields["weight"])
            return self._write(fields["index"])

    def _count(self, indices: Sequence[int]) -> Answer:
        tally = Tally(self._work)
        examples = Examples(self._loop.trainer, self._work, tally, indices)
        self._counted |= dict.fromkeys(examples.counts, examples)
        counts = [examples.counts.get(index, 0) for index in indices]
        return {"counts": counts, "causes": [tally.causes.get(index, "") for index in indices]}, ()

    def _add(self, index: int, weight: int) -> Answer:
        """Train a client into this worker's sum; the weights of the round add up to `weight`."""
        if self._sum is None:
            self._sum = Sum(self._work, weight)
            self._sum.total = self._out[self._me.number]
        trained = self._trained(index)
        self._me.head[TAKEN] += 1
        self._sum.take(index, trained)
        self._me.head[TAKEN] += 1
        return _said(trained, Verdict(self._sum.tally.verdicts[index]))

    def _write(self, index: int) -> Answer:
        """Train a client into one of this worker's slots."""
        work, trained = self._work, self._trained(index)
        self._turn = (self._turn + 1) % SLOTS
        slot = self._me.number * SLOTS + self._turn
        verdict = judge(trained.update, 1.0, Bounds(work.sharing, None, work.max_norm))
        if verdict is Verdict.COUNTED:
            write(self._out[slot], trained.update)
        fields, blobs = _said(trained, verdict)
        return {**fields, "slot": slot}, blobs

    def _trained(self, index: int) -> Trained:
        examples = self._counted.get(index)
        if examples is None:
            examples = Examples(self._loop.trainer, self._work, Tally(self._work), ())
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
    optional = (work.model_of, work.launches, work.factors)
    fields = {
        "partitions": work.partitions,
        "settings": asdict(work.settings),
        "config": dict(work.config),
        "weight_cap": work.weight_cap,
        "max_norm": work.max_norm,
        "evaluate": work.evaluate,
        "cohort": work.sharing,
        "models": str(model.path),
        "model_bytes": len(model.view),
        "manifest": Manifest.of(work.models[0]).to_json(),
        "given": [array is not None for array in optional],
    }
    arrays = [work.clients, *(array for array in optional if array is not None)]
    return fields, [np.ascontiguousarray(array).data.cast("B") for array in arrays]


def unpacked(fields: Mapping[str, Any], blobs: Sequence[memoryview]) -> Work:
    """Return the work of another process."""
    manifest = Manifest.from_json(fields["manifest"])
    view = Segment.attach(Path(fields["models"]), fields["model_bytes"], write=False).view
    size = max(1, manifest.total_bytes)
    models: list[Arrays] = [
        manifest.views(view[start : start + manifest.total_bytes])
        for start in range(0, len(view), size)
    ]
    clients, rest = np.frombuffer(blobs[0], np.int64), list(blobs[1:])
    model_of, launches, factors = (rest.pop(0) if given else None for given in fields["given"])
    return Work(
        clients=clients,
        partitions=fields["partitions"],
        models=models,
        model_of=None if model_of is None else np.frombuffer(model_of, np.int64),
        settings=Settings(**fields["settings"]),
        config=fields["config"],
        launches=None if launches is None else np.frombuffer(launches, np.int64),
        factors=None if factors is None else np.frombuffer(factors, np.float64),
        weight_cap=fields["weight_cap"],
        max_norm=fields["max_norm"],
        evaluate=fields["evaluate"],
        cohort=fields["cohort"],
    )
