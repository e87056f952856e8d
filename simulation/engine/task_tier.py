"""Tiers T3 and T1 for tasks: each client as a device would train, in a pool of worker processes.

The reference of the other tiers is T3 without processes (loop.py). Sums and rows have its
bits for any number of workers, and whatever becomes of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .pool import Answered, Forked, Item, Named, Pool
from .pool_task import SLOTS, TAKEN, TaskCallee, packed
from .reducing import Tally, Trained, count_values, row_dtype
from .work import Reduced, Verdict, exponent_for
from ...protocol.errors import SettingsError
from ...protocol.manifest import Manifest
from ...strategies.app import AppRef

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from .work import Report, Work
    from ...server.core.segments import Segment
    from ...strategies.task import Task

_BLOCKS = 4
"""Messages of a worker in which it counts the examples of a cohort."""


class Counted(NamedTuple):
    """A client before it trains."""

    examples: int
    worker: int
    """Which holds them."""


class TaskTier:
    """Trains a task's clients in worker processes."""

    def __init__(self, app: AppRef | Task, workers: int, name: str = "T3") -> None:
        """Start the pool: from a clean process for an app, from a fork of this one for a task.

        Raises:
            Refused: The app raised while it was imported.
        """
        self.name = name
        source: Forked | Named = Forked(lambda: TaskCallee(app, name))  # type: ignore[arg-type]
        if isinstance(app, AppRef):
            where = {"directory": str(app.directory), "component": app.component}
            source = Named({"kind": "task", "tier": name, **where})
        self._pool = Pool(source, workers)
        self._kept: dict[str, Segment] = {}

    def reduce(self, work: Work) -> Reduced:
        """Train and return the sum; the same bits for any number of workers."""
        tally = Tally(work)
        sums = self._memory("sums", len(self._pool) * count_values(work.models[0]) * 8)
        totals = sums.array("int64").reshape(len(self._pool), -1)
        totals[:] = 0
        self._begin(work, sums, "int64")
        counts = self._count(work, tally)
        own = sum(tally.weight(found.examples) for found in counts.values())
        weight = work.round_weight(own)
        left = counts
        while left:
            again = self._train(left, weight, totals, tally)
            left = {index: counts[index] for index in again}
        report = tally.report()
        return Reduced(
            total=totals.sum(axis=0),
            exponent=exponent_for(weight),
            weight=int(report.weights[report.counted].sum()),
            report=report,
        )

    def rows(self, work: Work, out: NDArray[Any]) -> Report:
        """Train and write each client's update into its row."""
        shape = (len(work.clients), count_values(work.models[0]))
        if out.ndim != 2 or out.shape[0] < shape[0] or out.shape[1] != shape[1]:  # noqa: PLR2004
            raise SettingsError("rows(out)", f"rows of shape {shape}", out.shape)
        tally, dtype = Tally(work), row_dtype(work.models[0])
        slots = self._memory("rows", SLOTS * len(self._pool) * shape[1] * dtype.itemsize)
        places = slots.array(dtype.name).reshape(-1, shape[1])
        self._begin(work, slots, dtype.name)
        out[: shape[0]] = 0
        for found in self._pool.run([Item({"index": index}) for index in range(shape[0])]):
            if not isinstance(found, Answered):
                _note_death(tally, found.place, found.cause)
            elif _note(tally, found.place, found) is Verdict.COUNTED:
                out[found.place] = places[int(found.fields["slot"]) % len(places)]
        return tally.report()

    def close(self) -> None:
        """End the workers."""
        self._pool.close()

    def _begin(self, work: Work, out: Segment, dtype: str) -> None:
        """Tell the workers of a work and where to put what comes of it."""
        manifest = Manifest.of(work.models[0])
        size = manifest.total_bytes
        models = self._memory("models", max(1, size * len(work.models)))
        for place, model in enumerate(work.models):
            for name, view in manifest.views(models.view[place * size :][:size]).items():
                view[...] = model[name]
        fields, blobs = packed(work, models)
        self._pool.heads[:, TAKEN] = 0
        told = {**fields, "out": str(out.path), "out_bytes": len(out.view), "dtype": dtype}
        self._pool.begin(told, blobs)

    def _count(self, work: Work, tally: Tally) -> dict[int, Counted]:
        """Return by index how many examples a client has, and the worker that holds them."""
        blocks = np.array_split(np.arange(len(work.clients)), _BLOCKS * len(self._pool))
        left = [block.tolist() for block in blocks if block.size]
        found: dict[int, Counted] = {}
        while left:
            again = []
            for said in self._pool.run([Item({"count": block}) for block in left]):
                block = [] if said.place is None else left[said.place]
                if isinstance(said, Answered):
                    _note_counts(tally, found, block, said)
                elif len(block) == 1:
                    tally.failed(block[0], said.cause)
                else:  # one of them ended the worker: the next time it is alone
                    again += [[index] for index in block]
            left = again
        return found

    def _train(
        self, counts: Mapping[int, Counted], weight: int, totals: NDArray[np.int64], tally: Tally
    ) -> list[int]:
        """Train clients into the workers' sums, those with most examples first.

        Returns:
            Who must train again: a worker that died while an update went through its sum, or
            before it could say that one had, leaves a sum that nobody can believe.
        """
        order = sorted(counts, key=lambda index: (-counts[index].examples, index))
        items = [
            Item({"index": index, "weight": weight, "examples": counts[index].examples},
                 home=counts[index].worker)
            for index in order
        ]  # fmt: skip
        taken = self._pool.heads[:, TAKEN]
        done: list[list[int]] = [[] for _ in range(len(self._pool))]
        before, again = taken.copy(), list[int]()
        for found in self._pool.run(items):
            index = None if found.place is None else order[found.place]
            if isinstance(found, Answered):
                if _note(tally, order[found.place], found) is not Verdict.FAILED:
                    done[found.worker].append(order[found.place])
                continue
            _note_death(tally, index, found.cause)
            if taken[found.worker] != before[found.worker] + 2 * len(done[found.worker]):
                again += done[found.worker]
                done[found.worker] = []
                totals[found.worker] = 0
                before[found.worker] = taken[found.worker] = 0
        return again

    def _memory(self, kind: str, nbytes: int) -> Segment:
        """Return mapped memory of a kind, the last one's where it has this size."""
        kept = self._kept.get(kind)
        if kept is None or len(kept.view) != max(1, nbytes):
            if kept is not None:
                kept.unlink()
            kept = self._kept[kind] = self._pool.segment(nbytes, kind)
        return kept


def _note_counts(
    tally: Tally, found: dict[int, Counted], block: Sequence[int], said: Answered
) -> None:
    """Note how many examples these clients have, or what the task raised."""
    if "cause" in said.fields:
        for index in block:
            tally.failed(index, str(said.fields["cause"]))
        return
    counts, causes = said.fields["counts"], said.fields["causes"]
    for index, count, cause in zip(block, counts, causes, strict=True):
        if cause:
            tally.failed(index, str(cause))
        else:
            found[index] = Counted(int(count), said.worker)


def _note(tally: Tally, index: int, found: Answered) -> Verdict:
    """Note what a worker said of a client; it ran user code, so its numbers are looked at."""
    fields = found.fields
    if "cause" in fields:
        tally.failed(index, str(fields["cause"]))
        return Verdict.FAILED
    try:
        loss, *values = np.frombuffer(found.blobs[0], np.float64).tolist()
        metrics = dict(zip(map(str, fields["metrics"]), values, strict=True))
        verdict = Verdict(fields["verdict"])
        trained = Trained((), int(fields["examples"]), loss, metrics)
    except (IndexError, KeyError, TypeError, ValueError) as error:
        tally.failed(index, f"worker {found.worker}: an answer that is none: {error!r}")
        return Verdict.FAILED
    tally.trained(index, trained, verdict)
    return verdict


def _note_death(tally: Tally, index: int | None, cause: str) -> None:
    """Note that a worker died while it was at a client."""
    if index is not None:
        tally.failed(index, cause)
