"""A run's directory whose rounds one thread commits in groups: for rounds shorter than the disk.

A simulated round may take a few milliseconds, and making one durable as many. So the thread takes
all rounds that have finished since it last looked, every `EVERY_S` seconds, and commits them as
one: first the models that stay, which is the last one and those that `prune` named, then the rows
of the ledger, together. What a crash leaves is what it always was: rounds that the ledger calls
finished, the newest of them whole, and a rest that `resume` drops and a seeded run repeats.

| call | returns |
|---|---|
| everything that writes | at once; moments are copied, a model stays as it is |
| `flush` | at once: a step may follow, nothing that was handed over is written over by it |
| `settle`, `latest`, `state`, leaving the block | when everything is durable |

After a write that failed nothing is written any more, and whatever is called next raises its error.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    from .ledger import Event, RoundRecord
    from .run_directory import RunDirectory
    from .stepping import StateFile
    from ..protocol.manifest import Manifest

EVERY_S = 0.5
"""Least seconds between two commits; what a killed process has to do again."""


@dataclass
class _Group:
    """What is to be committed together."""

    models: dict[int, tuple[Any, ...]] = field(default_factory=dict)
    """By round what `RunDirectory.write_round` takes after its number."""
    rows: list[Callable[[], None]] = field(default_factory=list)
    stay: tuple[int | None, tuple[int, ...]] | None = None
    """The best round and those that are held; None for no word about it."""

    @property
    def waits(self) -> bool:
        """Whether there is something to write."""
        return bool(self.models or self.rows)

    def join(self, later: _Group) -> None:
        """Take what follows; with a word about what stays, give up the other models."""
        self.models |= later.models
        self.rows += later.rows
        if later.stay is not None:
            best, held = self.stay = later.stay
            stay = {0, max(self.models, default=0), best, *held}
            self.models = {n: model for n, model in self.models.items() if n in stay}


class GroupCommit:
    """A run's directory and ledger, as a coordinator uses them."""

    def __init__(self, directory: RunDirectory, every: float = EVERY_S) -> None:
        """Write to `directory`, which nobody else writes to while this is open."""
        self._directory, self._every = directory, every
        self._open, self._ready = _Group(), _Group()
        self._lock = threading.Condition()
        self._busy = self._closed = self._hurry = self._over = False
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="umbel-disk")
        self._job = self._thread.submit(self._work)

    def __enter__(self) -> Self:
        """Return this directory."""
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        """Commit what has finished; an error of it is raised unless another one is on its way."""
        with self._lock:
            self._ready.join(self._open)
            self._closed = True
            self._lock.notify_all()
        self._thread.shutdown()
        if kind is None:
            self._job.result()

    @property
    def ledger(self) -> GroupCommit:
        """What takes the ledger's entries: the same queue."""
        return self

    def write_round(
        self,
        n: int,
        arrays: Mapping[str, NDArray[Any]],
        manifest: Manifest,
        digest: bytes,
        extra: Mapping[str, Any],
        moments: Mapping[str, memoryview] | None = None,
    ) -> None:
        """Take a round as `RunDirectory.write_round`; its arrays must stay as they are."""
        kept = {name: memoryview(bytes(buffer)) for name, buffer in (moments or {}).items()}
        self.flush()
        self._open.models[n] = (arrays, manifest, digest, extra, kept)
        if n == 0:  # it has no entry that would finish it
            self._finish()

    def commit_round(self, record: RoundRecord, *beside: Event) -> None:
        """Take an outcome as `Ledger.commit_round`; with it the round is whole."""
        self._open.rows.append(lambda: self._directory.ledger.commit_round(record, *beside))
        self._finish()

    def event(self, kind: str, **fields: Any) -> None:
        """Take an event as `Ledger.event`."""
        self._open.rows.append(lambda: self._directory.ledger.event(kind, **fields))

    def prune(self, best: int | None, *held: int) -> None:
        """Keep these rounds beside the newest, as `RunDirectory.prune`."""
        self._open.stay = (best, held)
        self._finish()

    def settle(self) -> None:
        """Return when everything that was handed over is durable, events after a round too."""
        self._finish()
        self._settle()

    def latest(self) -> int | None:
        """Return what `RunDirectory.latest` says after all that was written."""
        self._settle()
        return self._directory.latest()

    def state(self) -> StateFile | None:
        """Return what `RunDirectory.state` says after all that was written."""
        self._settle()
        return self._directory.state()

    def flush(self) -> None:
        """Raise the error of a write that failed, if one did.

        Raises:
            StateError: It did.
        """
        if self._over:
            self._job.result()

    def _finish(self) -> None:
        """Give what was taken so far to the thread."""
        self.flush()
        with self._lock:
            first = not self._ready.waits
            self._ready.join(self._open)
            self._open = _Group()
            if first:  # else it is awake, or waits for its time: to wake it costs more than a round
                self._lock.notify_all()

    def _settle(self) -> None:
        """Wait until all rounds that have finished are durable."""
        self.flush()
        with self._lock:
            self._hurry = True
            self._lock.notify_all()
            self._lock.wait_for(lambda: self._over or not (self._busy or self._ready.waits))
            self._hurry = False
        self.flush()

    def _work(self) -> None:
        """Commit one group after another until the block is left."""
        try:
            while (group := self._next()).waits:
                self._commit(group)
                with self._lock:
                    self._busy = False
                    self._lock.notify_all()
        finally:
            with self._lock:
                self._over = True
                self._lock.notify_all()

    def _next(self) -> _Group:
        """Return what has finished, some time after the first of it; nothing at the end."""
        with self._lock:
            self._lock.wait_for(lambda: self._closed or self._ready.waits)
            self._lock.wait_for(lambda: self._closed or self._hurry, self._every)
            group, self._ready = self._ready, _Group()
            self._busy = True
            return group

    def _commit(self, group: _Group) -> None:
        """Models first, then the rows that finish their rounds, then what need not stay."""
        for n, model in sorted(group.models.items()):
            self._directory.write_round(n, *model)
        with self._directory.ledger.together():
            for write in group.rows:
                write()
        if group.stay is not None:
            best, held = group.stay
            self._directory.prune(best, *held)
