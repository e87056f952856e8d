"""A run's directory whose writes a thread does, in the order of the calls, and prunes beside it.

A round's messages need not wait for the disk: round r + 1 starts while the thread makes round r
durable, and is written only when r is committed. So at most one round is on its way to the disk,
and what a crash leaves is what it always was: rounds that the ledger calls finished, and rest
that `resume` drops.

| call | returns |
|---|---|
| `write_round` | when everything is written that came before it |
| `later`; `commit_round` and `event` of `ledger` | at once |
| `prune` | when the prune before it is done: rounds are removed while the next one is written |
| `flush`, `latest` | when everything is done |

After a failure nothing is written any more, and whatever is called next raises its error.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    from .ledger import RoundRecord
    from .run_directory import RunDirectory
    from ..protocol.manifest import Manifest


class WriteBehind:
    """A run's directory and ledger, as a coordinator uses them."""

    def __init__(self, directory: RunDirectory) -> None:
        """Write to `directory`, which nobody else writes to while this is open."""
        self._directory = directory
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="umbel-disk")
        self._pruner = ThreadPoolExecutor(1, thread_name_prefix="umbel-prune")
        self._written: Future[None] = Future()
        self._written.set_result(None)
        self._pruned = self._written

    def __enter__(self) -> Self:
        """Return this directory."""
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        """Wait for the writes; an error of theirs is raised unless another one is on its way."""
        self._writer.shutdown()
        self._pruner.shutdown()
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
    ) -> None:
        """Write a round's model as `RunDirectory.write_round`; the arrays must stay as they are."""
        self._written.result()
        self.later(self._directory.write_round, n, arrays, manifest, digest, extra)

    def commit_round(self, record: RoundRecord) -> None:
        """Append an outcome as `Ledger.commit_round`."""
        self.later(self._directory.ledger.commit_round, record)

    def event(self, kind: str, **fields: Any) -> None:
        """Append an event as `Ledger.event`."""
        self.later(lambda: self._directory.ledger.event(kind, **fields))

    def prune(self, best: int | None) -> None:
        """Remove what is not kept as `RunDirectory.prune`, once all before it is written."""
        self._pruned.result()
        self._pruned = self._after(self._pruner, self._directory.prune, best)

    def latest(self) -> int | None:
        """Return what `RunDirectory.latest` says after all that was written."""
        self.flush()
        return self._directory.latest()

    def later(self, work: Callable[..., object], *arguments: object) -> None:
        """Let the writer do `work` when everything before it is written.

        Raises:
            StateError: Something has failed.
        """
        self._written = self._after(self._writer, work, *arguments)

    def _after(
        self, thread: ThreadPoolExecutor, work: Callable[..., object], *arguments: object
    ) -> Future[None]:
        self.check()
        before = self._written

        def job() -> None:
            before.result()  # raises what it failed with
            work(*arguments)

        return thread.submit(job)

    def check(self) -> None:
        """Raise the error of what failed, if anything did."""
        for done in (self._written, self._pruned):
            if done.done():
                done.result()

    def flush(self) -> None:
        """Return when everything is done.

        Raises:
            StateError: Something has failed.
        """
        self._written.result()
        self._pruned.result()
