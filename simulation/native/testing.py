"""The server's own test by the kernels: each part of its examples as a client that trains nothing.

The parts are those of strategies/testing.py, so the result depends on no number of threads.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from .bindings import ADVICE, COLUMNS, NO_MEMORY, UNMEASURED, pointer
from .running import flat, numbers
from ..engine.work import Verdict
from ...protocol import messages_pb2 as pb
from ...protocol.errors import Refused
from ...strategies.trainer import Settings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .tier import NativeTier
    from ..engine.work import Arrays

BATCH = 64
"""Examples at a time: a test has no batch of its own, and these activations stay in a cache."""


class Tester:
    """Measures models over the same examples."""

    def __init__(self, tier: NativeTier, data: Any) -> None:
        """Take the examples, a pair (inputs, targets).

        Raises:
            Refused: The model does not take them.
        """
        self._tier = tier
        self._inputs, self._targets = tier.reader().read(data)

    def measured(self, model: Arrays, parts: Sequence[range]) -> list[dict[str, int | float]]:
        """Return what Task.evaluate measures of a model over each of these parts.

        Raises:
            Refused: A target is no class of the model's.
            SettingsError: The model is not the task's.
        """
        tier, count = self._tier, len(parts)
        optimizer, local = Settings().resolved(tier.task)
        packed = flat(tier, model, tuple(model))[np.newaxis]
        table = np.array([self._row(part) for part in parts], np.int64)
        verdicts, faults = np.zeros(count, np.uint8), np.full(count, NO_MEMORY)
        losses, measured, factors = np.zeros(count), np.zeros((2, count)), np.ones(count)
        plan = numbers(optimizer, replace(local, epochs=0, batch_size=BATCH))
        plan.clients, plan.models, plan.evaluate = count, 1, 1
        plan.max_norm, plan.largest_loss = -1.0, math.inf
        plan.model, plan.table, plan.verdicts = map(pointer, (packed, table, verdicts))
        plan.losses, plan.measured, plan.factors = map(pointer, (losses, measured, factors))
        plan.faults = pointer(faults)
        tier.pool(optimizer, local.mu, tuple(model)).run(plan)
        for index in np.flatnonzero(verdicts == Verdict.FAILED).tolist():
            _check(parts[index], int(faults[index]))
        measured[0, faults == UNMEASURED] = np.nan
        return [self._sums(part, *measured[:, i]) for i, part in enumerate(parts)]

    def _row(self, part: range) -> tuple[int, ...]:
        """Return a part as a row of the table of clients."""
        x, y = self._inputs[part.start : part.stop], self._targets[part.start : part.stop]
        row = dict.fromkeys(COLUMNS, 0) | {"x": pointer(x), "y": pointer(y), "count": len(x)}
        return tuple((row | {"target_bytes": y.itemsize, "weight": 1}).values())

    def _sums(self, part: range, loss: float, correct: float) -> dict[str, int | float]:
        found: dict[str, int | float] = {"examples": len(part), "loss": float(loss)}
        if self._tier.net.loss == "cross_entropy":
            found["correct"] = int(correct)
        return found


def _check(part: range, fault: int) -> None:
    """Refuse a part that C++ gave up."""
    if fault == NO_MEMORY:
        raise Refused(pb.REASON_TASK_FAILED, f"no memory was left to test the model; {ADVICE}")
    if fault >= 0:
        what = f"test_data(): example {part.start + fault}: a class that the model has not"
        raise Refused(pb.REASON_TASK_FAILED, what)
