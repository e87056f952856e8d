"""The server's own test of the rounds' models, off the way of the rounds.

    round r finished ─► its folder is on the disk ─► tested, while r + 1 goes on ─► event `tested`

A model is read from its round's folder, which stays until then (keeping.py). One model is tested at
a time, to its end. Where rounds are quicker than tests, **the newest model waits, in the place of
one that waited**: those in between are never tested. The last model of a run always is, before the
run ends; a run that is told to end does not wait for it, and tests its newest model when it is
resumed. What came of a test is an event of the ledger: `tested` with the model's digest and the
means, or `not tested` with a code.

A task is tested by evaluators.py, a function by evaluate_here.py; nothing in the core service,
which serves all runs and runs no user code (docs/decisions/0072).
"""

from __future__ import annotations

from datetime import UTC, datetime
from threading import Event as Flag
from typing import TYPE_CHECKING, Any, Protocol

from . import outcome
from .evaluate_here import EvaluateHere
from .evaluators import NO_DATA, AppTest, Evaluators, Model
from .ledger import TESTED, UNTESTED
from .round_folder import read_model

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from .evaluators import Found
    from .ledger import RoundRecord
    from .run_directory import RunDirectory
    from .write_behind import WriteBehind

    Test = AppTest | Callable[[Mapping[str, Any]], Mapping[str, float]]


def _now() -> datetime:
    return datetime.now(UTC)


class Tester(Protocol):
    """What tests one model at a time."""

    def begin(self, model: Model) -> None:
        """Test a model; the one before is done."""

    def poll(self, now: float) -> Found | None:
        """Go on, and return what came of the model, once."""

    def close(self) -> None:
        """End what tests."""


class Evaluation:
    """The tests of one run, in one ServerApp."""

    def __init__(
        self, tester: Tester | None, disk: WriteBehind, wall: Callable[[], datetime] = _now
    ) -> None:
        """Test nothing yet.

        Args:
            tester: What tests; None where a run has no test of its own.
            disk: What writes rounds and ledger.
            wall: Civil time, for the events.
        """
        self._tester, self._disk, self._wall = tester, disk, wall
        self._running: Model | None = None
        self._next: tuple[Model, Flag] | None = None

    @property
    def held(self) -> frozenset[int]:
        """Rounds whose folders are still to be read."""
        waiting = () if self._next is None else (self._next[0],)
        running = () if self._running is None else (self._running,)
        return frozenset(model.number for model in (*running, *waiting))

    def submit(self, number: int, digest: bytes) -> None:
        """Let the model of a round wait for its test, and none that waited before."""
        if self._tester is not None:
            written = Flag()
            self._disk.later(written.set)
            self._next = Model(number, digest), written

    def resume(self, number: int, digest: bytes, records: Sequence[RoundRecord]) -> None:
        """Submit the model that a run goes on from, unless it was tested."""
        done = outcome.tests_of(records, number, digest.hex())
        if number and not done and number not in self.held:
            self.submit(number, digest)

    def step(self, now: float) -> tuple[int, dict[str, float]] | None:
        """Go on; return round and means of a test that is done, when its event is on its way.

        Args:
            now: Monotonic seconds.
        """
        if self._tester is None:
            return None
        found = self._tester.poll(now)
        if found is not None:
            self._running = None
        if self._running is None and self._next is not None and self._next[1].is_set():
            (self._running, _), self._next = self._next, None
            self._tester.begin(self._running)
        return None if found is None else self._record(found)

    def close(self) -> None:
        """End what tests."""
        if self._tester is not None:
            self._tester.close()

    def _record(self, found: Found) -> tuple[int, dict[str, float]]:
        means = {f"{outcome.TEST}{name}": value for name, value in found.metrics.items()}
        self._disk.ledger.event(
            TESTED if means else UNTESTED,
            round=found.model.number,
            attempt=0,
            code=found.model.digest.hex() if means else found.why,
            detail=means,
            at=self._wall().isoformat(timespec="milliseconds"),
        )
        if found.why == NO_DATA:
            self.close()
            self._tester, self._running, self._next = None, None, None
        return found.model.number, means


def chosen_tester(
    test: Test | None, directory: RunDirectory, warn: Callable[[str], None]
) -> Tester | None:
    """Return what does a run's test.

    Args:
        test: A task's, or a function from arrays by name to means by name; None for none.
        directory: Where the rounds are.
        warn: Takes a line for the log.
    """
    run = directory.path.name
    if test is None:
        return None
    if not isinstance(test, AppTest):
        return EvaluateHere(
            test,
            lambda of: read_model(directory.round_path(of.number), run, of.number).arrays,
            warn,
        )

    def place(of: Model) -> dict[str, Any]:
        folder = str(directory.round_path(of.number))
        return {"folder": folder, "run": run, "round": of.number, "digest": of.digest.hex()}

    return Evaluators(test, place, warn)
