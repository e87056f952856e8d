"""The processes that test models next to the core: how many, who does what, what becomes of them.

    test data ─► parts ─► shares ─► W evaluators (evaluator_process.py) ─► sums ─► means

The examples are cut into parts by their number alone and the sums of all parts are added exactly
(strategies/testing.py): so it makes no difference how many processes there are, or which of them
did what. One is started at once, while clients still gather; it says how many examples there are,
and with that it is known how many are worth their start:

    W = min(cores / 2, examples / 4096, parts), 1 at least             unless the caller says W

An evaluator that dies is started anew, and another one, or it, measures its share again. One that
raises ends that model's test, for it would raise again. Either is one line in the log. Nothing here
waits: `poll` looks, and returns.
"""

from __future__ import annotations

import os
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

from .evaluator_process import EvaluatorProcess, Said
from ..protocol.errors import UmbelError
from ..strategies.testing import parts, shares

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ..strategies.app import AppRef

ROWS_EACH = 4096
"""Examples for which one more process is worth its start."""
TRIES = 2
"""How often evaluators may die over one model."""
PAUSE_S, LONGEST_S = 1.0, 8.0
"""Pause before an evaluator that fell twice in a row is started, doubled up to the longest."""
NO_DATA, RAISED, DIED = "no test data", "raised", "died"


class Model(NamedTuple):
    """A model to test: that of a round."""

    number: int
    digest: bytes


class Found(NamedTuple):
    """What came of one test."""

    model: Model
    metrics: Mapping[str, float]
    """Means by name; empty where there are none."""
    why: str = ""
    """Why there are none: a code."""


class AppTest(NamedTuple):
    """A task's own test."""

    app: AppRef
    """Where a process finds the task."""
    means: Callable[[Sequence[Mapping[str, Any]]], dict[str, float]]
    """Makes means out of what was measured on every part, as `TaskTrainer.tested`."""
    processes: int = 0
    """How many; 0 for as many as are worth it."""


class _Hand:
    """One evaluator, and what it is doing."""

    def __init__(self, number: int, app: AppRef) -> None:
        self.number, self.process = number, EvaluatorProcess(app)
        self.ready, self.raised = False, False
        self.falls, self.not_before = 0, 0.0
        """How often in a row it ended, and when it may be started again."""
        self.model: Model | None = None
        self.share: range | None = None

    def start(self) -> None:
        self.ready, self.raised, self.share = False, False, None
        self.process.start()

    def fall(self, now: float) -> None:
        self.falls += 1
        pause = min(PAUSE_S * 2.0 ** (self.falls - 2), LONGEST_S) if self.falls > 1 else 0.0
        self.not_before = now + pause


class Evaluators:
    """All of them, at work on one model at a time."""

    def __init__(
        self,
        test: AppTest,
        place: Callable[[Model], dict[str, Any]],
        warn: Callable[[str], None],
    ) -> None:
        """Start one.

        Args:
            test: The task's.
            place: Says where a model is, as evaluator.py is told.
            warn: Takes a line for the log.
        """
        self._test, self._place, self._warn = test, place, warn
        self._examples = 0
        self._model: Model | None = None
        self._left: deque[range] = deque()
        self._sums: dict[int, Mapping[str, Any]] = {}
        self._deaths, self._failed = 0, ""
        self._complaints: set[str] = set()
        self._hands = [_Hand(1, test.app)]
        self._hands[0].start()

    def begin(self, model: Model) -> None:
        """Test a model; the one before is done."""
        self._model, self._failed, self._deaths = model, "", 0
        self._share_out()

    def poll(self, now: float) -> Found | None:
        """Go on, and return what came of the model, once.

        Args:
            now: Monotonic seconds.
        """
        for hand in list(self._hands):
            for said in hand.process.look():
                self._hear(hand, said, now)
        found = self._found()
        if found is not None:
            self._model = None
        for hand in self._hands:
            wanted = self._model is not None or not hand.falls
            if wanted and not hand.process.running and now >= hand.not_before:
                hand.start()
            if self._model is not None and hand.ready and hand.share is None and self._left:
                hand.model, hand.share = self._model, self._left.popleft()
                share = [hand.share.start, hand.share.stop]
                hand.process.ask({**self._place(self._model), "parts": share})
        return found

    def close(self) -> None:
        """End every process."""
        for hand in self._hands:
            hand.process.end()

    # -- what is heard --------------------------------------------------------------------------

    def _hear(self, hand: _Hand, said: Said, now: float) -> None:
        mine = self._model is not None and (not hand.ready or hand.model == self._model)
        if said.ended:
            self._ended(hand, said.ended, now, mine=mine)
        elif said.raised:
            hand.raised = True
            self._complain(hand, f"raised {said.raised}")
            if mine:
                self._failed = RAISED
        elif said.sums is not None:
            self._measured(hand, said.sums, mine=mine)
        else:
            self._counted(hand, said.examples or 0)

    def _measured(self, hand: _Hand, sums: Sequence[Mapping[str, Any]], *, mine: bool) -> None:
        share, hand.share = hand.share or range(0), None
        if mine and len(sums) == len(share):
            self._sums.update(zip(share, sums, strict=True))
        elif mine:
            self._complain(hand, f"measured {len(sums)} parts of {len(share)}")
            self._failed = RAISED
        hand.falls = 0

    def _ended(self, hand: _Hand, how: str, now: float, *, mine: bool) -> None:
        if not hand.raised:
            self._complain(hand, how)
            if mine:
                self._deaths += 1
                self._failed = self._failed or DIED * (self._deaths >= TRIES)
        if mine and hand.share is not None:
            self._left.append(hand.share)
        hand.ready, hand.share = False, None
        hand.fall(now)

    def _counted(self, hand: _Hand, examples: int) -> None:
        """Learn how many examples there are: the first time, share them out."""
        hand.ready = True
        if not examples:
            self._failed = NO_DATA
        elif not self._examples:
            self._examples = examples
            self._hands += [_Hand(n, self._test.app) for n in range(2, self._worth() + 1)]
            self._share_out()
        elif examples != self._examples:
            hand.raised, hand.ready = True, False
            self._complain(hand, f"has {examples} examples, another one {self._examples}")
            self._failed = RAISED
            hand.process.end(0)

    def _complain(self, hand: _Hand, what: str) -> None:
        """Say what is wrong, once in the same words."""
        if what not in self._complaints:
            self._complaints.add(what)
            name = f"evaluator {hand.number} (process {hand.process.pid})"
            self._warn(f"{name} {what}; the run goes on, and it is started anew")

    # -- shares ---------------------------------------------------------------------------------

    def _worth(self) -> int:
        """Return how many processes there are to be."""
        most = len(parts(self._examples))
        cores = len(os.sched_getaffinity(0))
        wanted = self._test.processes or max(1, min(cores // 2, self._examples // ROWS_EACH))
        return min(wanted, most)

    def _share_out(self) -> None:
        self._sums = {}
        count = len(parts(self._examples)) if self._examples else 0
        self._left = deque(shares(count, len(self._hands)) if count else ())

    def _found(self) -> Found | None:
        if (model := self._model) is None:
            return None
        if self._failed:
            return Found(model, {}, self._failed)
        if not self._examples or len(self._sums) < len(parts(self._examples)):
            return None
        try:
            return Found(model, self._test.means([of for _, of in sorted(self._sums.items())]))
        except UmbelError as error:
            self._complain(self._hands[0], f"or another one measured what is not declared: {error}")
            return Found(model, {}, RAISED)
