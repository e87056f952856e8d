"""Shares of losses, hours in which a site was cut off, and how far losses of an hour go together.

    share          Beta: what was thought counts as `weight` trials of which `mean` were lost
    cut off        a name's hour of at least LEAST asked devices from which nothing came; Beta over
                   hours, and its trials count for no other share
    correlation    of losses within a name's hour: the analysis-of-variance estimator for shares
                   (Ridout, Demetrio and Firth, Biometrics 1999), drawn to what was thought as if
                   that were HOURS hours

A device's own share keeps to that of its group as if that were DEVICE of its trials.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Iterable, Sequence

LEAST = 3
"""Asked in an hour, for its silence to be the site's: fewer are silent by chance."""
HOURS = 10.0
DEVICE = 20.0


class Share(NamedTuple):
    """What is thought of a probability."""

    mean: float
    weight: float
    """Trials."""

    def after(self, hits: float, trials: float) -> float:
        """Return the mean after some trials."""
        return (self.mean * self.weight + hits) / (self.weight + trials)


WEAK = Share(0.01, 1.0)
"""Of losses and crashes, where nobody says anything."""
WEAK_OUTAGE = Share(0.001, 1.0)
SAID = 10.0
"""Trials that a number of a fleet.toml is worth."""


class Losses(NamedTuple):
    """What a name's trials showed."""

    asked: int
    crashed: int
    lost: int
    hours: int
    silent: int
    """Hours in which it was cut off."""
    correlation: float | None
    """None: too few hours."""


def losses(trials: Iterable[Counter[str]]) -> Losses:
    """Return what trials by hour come to."""
    silent, pairs, hours = 0, list[tuple[int, int]](), 0
    asked = crashed = lost = 0
    for counts in trials:
        hours += 1
        n, gone = counts["asked"], counts["crashed"] + counts["lost"]
        if n >= LEAST and gone >= n:
            silent += 1
            continue
        asked, crashed, lost = asked + n, crashed + counts["crashed"], lost + counts["lost"]
        pairs.append((n - counts["crashed"], counts["lost"]))
    return Losses(asked, crashed, lost, hours, silent, correlation(pairs))


def correlation(pairs: Iterable[tuple[int, int]]) -> float | None:
    """Return the intra-class correlation of hits; None where it cannot be told.

    Args:
        pairs: Of each class its trials and hits.
    """
    kept: Sequence[tuple[int, int]] = [(n, x) for n, x in pairs if n > 0]
    total, classes = sum(n for n, _ in kept), len(kept)
    hits = sum(x for _, x in kept)
    if classes < 2 or total <= classes or not 0 < hits < total:  # noqa: PLR2004
        return None
    within_sum = sum(x - x * x / n for n, x in kept)
    between = (sum(x * x / n for n, x in kept) - hits * hits / total) / (classes - 1)
    within = within_sum / (total - classes)
    size = (total - sum(n * n for n, _ in kept) / total) / (classes - 1)
    whole = between + (size - 1) * within
    return max(0.0, min(1.0, (between - within) / whole)) if whole > 0 else None
