"""What a tier has in hand while a cohort trains: the sum or the rows, and what is known of each.

`Sum` and `Rows` take one client after another, in any order, by its index in the work; what they
hand over at the end does not depend on that order. One of them serves one thread: several workers
have one each, and `Sum.join` adds what another has.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .verdicts import Bounds, add, judge
from .work import REACH, Reduced, Report, Verdict, exponent_for
from ...protocol.errors import SettingsError
from ...strategies.trainer import is_buffer

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from .work import Arrays, Work


class Trained(NamedTuple):
    """One client's training."""

    update: Sequence[NDArray[Any]]
    """The float arrays of `local - received`, in manifest order; or one flat array of them all."""
    examples: int
    loss: float
    """Summed over every example of every epoch."""
    metrics: Mapping[str, float] = {}
    """Sums of the received model, under the task's names."""


class Tally:
    """What is known of each client of a work."""

    def __init__(self, work: Work) -> None:
        """Know nothing yet: who is never named has failed."""
        clients = len(work.clients)
        self.work = work
        self.verdicts = np.full(clients, Verdict.FAILED, np.uint8)
        self.weights = np.zeros(clients, np.int64)
        self.examples = np.zeros(clients, np.int64)
        self.losses = np.zeros(clients)
        self.metrics: dict[str, NDArray[np.float64]] = {}
        self.causes: dict[int, str] = {}

    def weight(self, examples: int) -> int:
        """Return the weight of so many examples."""
        return min(examples, self.work.weight_cap)

    def failed(self, index: int, cause: str) -> None:
        """Note that the task raised for a client."""
        self.verdicts[index], self.weights[index] = Verdict.FAILED, 0
        self.causes[index] = " ".join(cause.split())

    def trained(self, index: int, trained: Trained, verdict: Verdict) -> None:
        """Note one client's training and what its update was found to be."""
        self.verdicts[index] = verdict
        self.examples[index] = trained.examples
        self.weights[index] = self.weight(trained.examples)
        self.losses[index] = trained.loss
        for name, value in trained.metrics.items():
            self.metrics.setdefault(name, np.zeros(len(self.verdicts)))[index] = value

    def join(self, other: Tally, indices: NDArray[np.int64]) -> None:
        """Take over what another knows of these clients."""
        for name in ("verdicts", "weights", "examples", "losses"):
            getattr(self, name)[indices] = getattr(other, name)[indices]
        for name, values in other.metrics.items():
            own = self.metrics.setdefault(name, np.zeros(len(self.verdicts)))
            own[indices] = values[indices]
        self.causes |= other.causes

    def report(self) -> Report:
        """Return it all."""
        return Report(
            verdicts=self.verdicts,
            weights=self.weights,
            examples=self.examples,
            losses=self.losses,
            metrics=self.metrics,
            causes=dict(sorted(self.causes.items())),
        )


class Sum:
    """The int64 sum of the updates that count."""

    def __init__(self, work: Work, weight: int, tally: Tally | None = None) -> None:
        """Begin with zeros.

        Args:
            work: The cohort.
            weight: What the weights of its clients add up to; `Work.round_weight` gets it.
            tally: Where what is known of the clients goes on.
        """
        self.tally = Tally(work) if tally is None else tally
        self.exponent = exponent_for(work.round_weight(weight))
        self.bounds = Bounds(REACH, work.max_norm)
        self.total = np.zeros(count_values(work.models[0]), np.int64)

    def take(self, index: int, trained: Trained) -> None:
        """Judge one client's update, and add it if it counts."""
        scale = self.tally.weight(trained.examples) * self.tally.work.factor(index)
        verdict = judge(trained.update, self.bounds)
        self.tally.trained(index, trained, verdict)
        if verdict is Verdict.COUNTED:
            add(self.total, trained.update, scale, self.exponent)

    def reduced(self) -> Reduced:
        """Return the sum and the report."""
        report = self.tally.report()
        return Reduced(
            total=self.total,
            exponent=self.exponent,
            weight=int(report.weights[report.counted].sum()),
            report=report,
        )


class Rows:
    """One update a client, written into its row."""

    def __init__(self, work: Work, out: NDArray[Any]) -> None:
        """Take the buffer.

        Raises:
            SettingsError: It has too few rows, or rows of another length.
        """
        shape = (len(work.clients), count_values(work.models[0]))
        if out.ndim != 2 or out.shape[0] < shape[0] or out.shape[1] != shape[1]:  # noqa: PLR2004
            raise SettingsError("rows(out)", f"rows of shape {shape}", out.shape)
        self.tally = Tally(work)
        self.bounds = Bounds(max_norm=work.max_norm)
        self.out = out
        out[: shape[0]] = 0

    def take(self, index: int, trained: Trained) -> None:
        """Judge one client's update, and write it if it counts."""
        verdict = judge(trained.update, self.bounds)
        self.tally.trained(index, trained, verdict)
        if verdict is Verdict.COUNTED:
            write(self.out[index], trained.update)


def write(row: NDArray[Any], update: Sequence[NDArray[Any]]) -> None:
    """Write an update's arrays into a row, one after another."""
    start = 0
    for array in update:
        row[start : start + array.size] = array.reshape(-1)
        start += array.size


def count_values(model: Arrays) -> int:
    """Return how many values of a model are averaged."""
    return sum(math.prod(a.shape) for a in model.values() if not is_buffer(a))


def row_dtype(model: Arrays) -> np.dtype[Any]:
    """Return the dtype of a row: float64 where any array of the model is, else float32."""
    double = any(array.dtype == np.float64 for array in model.values())
    return np.dtype(np.float64 if double else np.float32)
