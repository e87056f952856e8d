"""A run's directory whose writes one thread does, in the order of the calls.

A round's messages need not wait for the disk: round r + 1 starts while the thread makes round r
durable, and is written only when r is committed. So at most one round is on its way to the disk,
and what a crash leaves is what it always was: rounds that the ledger calls finished, and rest
that `resume` drops.

| call | returns |
|---|---|
| `write_round` | when everything before it is done |
| `prune`, `later`; `commit_round` and `event` of `ledger` | at once |
| `flush`, `settle`, `latest`, `state` | when everything is done |

After a write that failed nothing is written any more, and whatever is called next raises its error.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    from .ledger import Event, RoundRecord
    from .run_directory import RunDirectory
    from .stepping import StateFile
    from ..protocol.manifest import Manifest


class WriteBehind:
    """A run's directory and ledger, as a coordinator uses them."""

    def __init__(self, directory: RunDirectory) -> None:
        """Write to `directory`, which nobody else writes to while this is open."""
        self._directory = directory
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="umbel-disk")
        self._last: Future[None] | None = None

    def __enter__(self) -> Self:
        """Return this directory."""
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        """Wait for the writes; an error of theirs is raised unless another one is on its way."""
        self._thread.shutdown()
        if kind is None:
            self.flush()

    @property
    def ledger(self) -> WriteBehind:
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
        """Write a round as `RunDirectory.write_round`; arrays and moments must stay as they are."""
        self.flush()
        self.later(self._directory.write_round, n, arrays, manifest, digest, extra, moments)

    def commit_round(self, record: RoundRecord, *beside: Event) -> None:
        """Append an outcome as `Ledger.commit_round`."""
        self.later(self._directory.ledger.commit_round, record, *beside)

    def event(self, kind: str, **fields: Any) -> None:
        """Append an event as `Ledger.event`."""
        self.later(lambda: self._directory.ledger.event(kind, **fields))

    def prune(self, best: int | None, *held: int) -> None:
        """Remove what is not kept as `RunDirectory.prune`."""
        self.later(self._directory.prune, best, *held)

    def settle(self) -> None:
        """Return when everything is done."""
        self.flush()

    def latest(self) -> int | None:
        """Return what `RunDirectory.latest` says after all that was written."""
        self.flush()
        return self._directory.latest()

    def state(self) -> StateFile | None:
        """Return what `RunDirectory.state` says after all that was written."""
        self.flush()
        return self._directory.state()

    def later(self, work: Callable[..., object], *arguments: object) -> None:
        """Let the thread do `work` when everything before it is done.

        Raises:
            StateError: An earlier write failed.
        """
        self.check()
        before = self._last

        def job() -> None:
            if before is not None:
                before.result()  # done, there is one thread; raises what it failed with
            work(*arguments)

        self._last = self._thread.submit(job)

    def check(self) -> None:
        """Raise the error of a write that failed, if one did."""
        if self._last is not None and self._last.done():
            self._last.result()

    def flush(self) -> None:
        """Return when everything is done.

        Raises:
            StateError: A write failed.
        """
        if self._last is not None:
            self._last.result()
