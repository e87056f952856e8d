"""Metrics that travel in the masked message: sums and counts, declared with a bound.

A device never reports a mean: the server divides the opened sums, so nobody sees what one client
measured. Each value is one word of section 64 (docs/protocol.md, section 8.4): a `Sum` in fixed
point with 24 fractional bits, a `Count` unscaled. Which names a run carries is fixed by its layout
digest, so a name that was not declared, or a value beyond its bound, ends on the device.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ..protocol import messages_pb2 as pb
from ..protocol.errors import Refused, SettingsError

if TYPE_CHECKING:
    from collections.abc import Mapping

FRACTION_BITS = 24
MAX_SUM = 2.0**38  # 63 bits less the fraction; the layout lowers it by log2 of the members
MAX_COUNT = 2**42  # a million members still add up below 2^63


@dataclass(frozen=True, slots=True)
class Sum:
    """A real number that adds up over examples and clients; `abs(value) <= bound`."""

    bound: float

    def __post_init__(self) -> None:
        """Check the bound against what the ring can hold."""
        if not 0.0 < self.bound <= MAX_SUM:
            raise SettingsError("metrics: Sum.bound", f"a number in (0, {MAX_SUM:.0f}]", self.bound)


@dataclass(frozen=True, slots=True)
class Count:
    """A whole number that adds up over examples and clients; `0 <= value <= bound`."""

    bound: int

    def __post_init__(self) -> None:
        """Check the bound against what the ring can hold."""
        if not 0 < self.bound <= MAX_COUNT:
            raise SettingsError("metrics: Count.bound", f"in 1 to {MAX_COUNT}", self.bound)


class Metrics(dict[str, "int | float"]):
    """What one evaluation found: name to sum or count, as in `Metrics(examples=9, loss=1.5)`."""


EXAMPLES = Count(2**40)
LOSS = Sum(2.0**28)  # the ring's own limit for 1,024 members


def standard(loss: object) -> dict[str, Sum | Count]:
    """Return what the built-in evaluation declares: `correct` only where labels are classes."""
    declared: dict[str, Sum | Count] = {"examples": EXAMPLES, "loss": LOSS}
    if loss == "cross_entropy":
        declared["correct"] = EXAMPLES
    return declared


def fractional_bits(declared: Mapping[str, Sum | Count]) -> dict[str, int]:
    """Return for each name how many fractional bits its word has: 24 for a sum, 0 for a count."""
    return {name: FRACTION_BITS if isinstance(d, Sum) else 0 for name, d in declared.items()}


def of_app(metrics: Mapping[str, Sum | Count]) -> dict[str, dict[str, Sum | Count]]:
    """Return what a wrapped Flower app declares in each phase; server and devices agree by it.

    `train.NAME` and `eval.NAME` are the metrics NAME of the app's train and evaluate replies. What
    is declared under `eval.` is measured on the received model before training, too; where nothing
    is, the app's evaluate function is not called. The numbers of examples come with them.

    Raises:
        SettingsError: A name without one of the two prefixes, or one that is counted anyway.
    """
    for name in metrics:
        prefix, _, short = name.partition(".")
        if prefix not in {"train", "eval"} or not short or short == "examples":
            expected = "train.NAME or eval.NAME, of a metric in the app's replies"
            raise SettingsError(f"metrics: {name}", expected, name)
    evaluated = {name: metric for name, metric in metrics.items() if name.startswith("eval.")}
    if evaluated:
        evaluated["eval.examples"] = EXAMPLES
    return {"train": {"train.examples": EXAMPLES, **metrics, **evaluated}, "evaluate": evaluated}


def checked(
    values: Mapping[str, object], declared: Mapping[str, Sum | Count]
) -> dict[str, int | float]:
    """Return `values` as plain numbers, exactly the declared names, each within its bound.

    Raises:
        Refused: `undeclared metric` for a foreign name or a value beyond its bound, `not finite`
            for NaN and infinity, `task failed` for a missing name or a value of another kind.
    """
    for name in values:
        if name not in declared:
            known = ", ".join(sorted(declared)) or "none"
            raise Refused(
                pb.REASON_UNDECLARED_METRIC,
                f"metric {name!r} is not declared (declared: {known}); add it to Task.metrics",
            )
    return {name: _value(name, values, bound) for name, bound in declared.items()}


def _value(name: str, values: Mapping[str, object], declared: Sum | Count) -> int | float:
    """Return one value as int or float; the messages are for the device's own console."""
    if name not in values:
        raise Refused(pb.REASON_TASK_FAILED, f"metric {name!r} is declared but was not returned")
    value = values[name]
    if isinstance(declared, Count):
        if isinstance(value, bool) or not isinstance(value, int | np.integer):
            raise _kind(name, "an integer", value)
        return int(_bounded(name, int(value), 0, declared.bound))
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
        raise _kind(name, "a number", value)
    if not math.isfinite(value):
        raise Refused(pb.REASON_NOT_FINITE, f"metric {name!r} is {float(value)}")
    return _bounded(name, float(value), -declared.bound, declared.bound)


def _kind(name: str, expected: str, got: object) -> Refused:
    """Return the refusal of a value of another kind."""
    return Refused(
        pb.REASON_TASK_FAILED, f"metric {name!r}: expected {expected}, got {type(got).__name__}"
    )


def _bounded(name: str, value: float, low: float, high: float) -> float:
    """Return the value if it lies within its bound."""
    if not low <= value <= high:
        raise Refused(
            pb.REASON_UNDECLARED_METRIC,
            f"metric {name!r}: expected {low:g} to {high:g}, got {value:g}; declare a larger bound",
        )
    return value
