"""What a round counts beside the task's own metrics, where the run's settings ask for it.

    count-clipped = true    `clipped`: whose update its own policy shortened to an L2 bound
    histogram = 10          `histogram.0` ... `histogram.9`: in which tenth the accuracy lies that
                            the received model has on a client's own data; by `eval.correct` and
                            `eval.examples`, which the task counts anyway

Both are counts: each is one word of 8 bytes in section 64 of a client's message (docs/protocol.md,
section 8.4), 0 or 1, and in a secure run only their sums are ever seen. Off by default: an update
has no such words then. The settings are part of a round's `config`, and so of what every member
signs; a device lays its message out by them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..protocol.errors import SettingsError
from ..protocol.layout import COUNT

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from numpy.typing import ArrayLike

HISTOGRAM, CLIPPED = "histogram", "count-clipped"
"""Settings."""
CLIP, BIN = "clipped", "histogram."
"""A metric, and what stands before the number of a bin."""
MOST = 20
"""Bins."""
_CORRECT, _EXAMPLES = "eval.correct", "eval.examples"


def asked(table: Mapping[str, object]) -> dict[str, bool | int]:
    """Return the settings that ask for something, as a round's `config` has them.

    Raises:
        SettingsError: The bins are not 0, or 2 to `MOST`.
    """
    bins, clipped = table[HISTOGRAM], table[CLIPPED]
    if type(bins) is not int or (bins and not 2 <= bins <= MOST):  # noqa: PLR2004 - one is none
        raise SettingsError(HISTOGRAM, f"0 for none, or 2 to {MOST} bins", bins)
    found: dict[str, bool | int] = {HISTOGRAM: bins} if bins else {}
    return found | ({CLIPPED: True} if clipped is True else {})


def names(phase: str, config: Mapping[str, object], own: Mapping[str, int]) -> dict[str, int]:
    """Return what is counted in a phase, by name with its fractional bits.

    Args:
        phase: Only training rounds count.
        config: Of the round.
        own: The task's declared metrics.
    """
    if phase != "train":
        return {}
    found = {CLIP: COUNT} if config.get(CLIPPED) is True else {}
    bins = config.get(HISTOGRAM)
    if type(bins) is int and 0 < bins <= MOST and {_CORRECT, _EXAMPLES} <= own.keys():
        found |= {f"{BIN}{i}": COUNT for i in range(bins)}
    return found


def check(config: Mapping[str, object], own: Mapping[str, int]) -> None:
    """Refuse a histogram of what the task does not count.

    Raises:
        SettingsError: It asks for one, and the clients count no correct answers.
    """
    if config.get(HISTOGRAM) and not {_CORRECT, _EXAMPLES} <= own.keys():
        expected = f"a task that declares {_CORRECT.removeprefix('eval.')!r} in its metrics"
        raise SettingsError(HISTOGRAM, expected, "one that does not", "set histogram to 0")


def values(
    layout: Iterable[str], metrics: Mapping[str, float | int], *, clipped: bool
) -> dict[str, int]:
    """Return a client's own counts.

    Args:
        layout: Names of all metrics of its message.
        metrics: Those of the task.
        clipped: Whether its update was shortened.
    """
    counted = [name for name in layout if name.startswith(BIN)]
    found = {name: 0 for name in counted}
    if counted and metrics[_EXAMPLES] > 0:
        found[f"{BIN}{bin_of(metrics[_CORRECT], metrics[_EXAMPLES], len(counted))}"] = 1
    return found | ({CLIP: int(clipped)} if CLIP in layout else {})


def bin_of(correct: float, examples: float, bins: int) -> int:
    """Return in which of so many parts of [0, 1] a share lies; 1 is in the last."""
    return min(max(int(bins * correct // examples), 0), bins - 1)


def of_many(
    config: Mapping[str, object], correct: ArrayLike | None, examples: ArrayLike
) -> dict[str, float]:
    """Return the sums of a simulated cohort, in which nothing is clipped; see `names`.

    Args:
        config: Of the round.
        correct: Shape (clients,): right answers of each; None where the round tests no model.
        examples: Shape (clients,): of how many.
    """
    import numpy as np  # noqa: PLC0415 - devices count without

    found = {CLIP: 0.0} if config.get(CLIPPED) is True else {}
    bins = config.get(HISTOGRAM)
    if type(bins) is int and bins and correct is not None:
        right, of = np.asarray(correct, np.float64), np.asarray(examples, np.float64)
        some = of > 0
        places = np.clip(bins * right[some] // of[some], 0, bins - 1).astype(np.int64)
        counts = np.bincount(places, minlength=bins)
        found |= {f"{BIN}{i}": float(count) for i, count in enumerate(counts)}
    return found


def recorded(sums: Mapping[str, float | int]) -> dict[str, float]:
    """Return what of a round's sums was counted so: counts, which no number divides."""
    return {
        name: float(value) for name, value in sums.items() if name == CLIP or name.startswith(BIN)
    }
