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
    from collections.abc import Iterable, Mapping, Sequence

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
    followed: int = 0
    """Hours after one in which it was cut off, of the same run."""
    went_on: int = 0
    """In how many of them it still was."""


def losses(trials: Mapping[tuple[int, int], Counter[str]]) -> Losses:
    """Return what trials by run and hour come to."""
    silent, pairs, hours = set[tuple[int, int]](), list[tuple[int, int]](), 0
    asked = crashed = lost = 0
    for when, counts in trials.items():
        hours += 1
        n, gone = counts["asked"], counts["crashed"] + counts["lost"]
        if n >= LEAST and gone >= n:
            silent.add(when)
            continue
        asked, crashed, lost = asked + n, crashed + counts["crashed"], lost + counts["lost"]
        pairs.append((n - counts["crashed"], counts["lost"]))
    after = {(run, hour + 1) for run, hour in silent} & trials.keys()
    return Losses(
        asked,
        crashed,
        lost,
        hours,
        len(silent),
        correlation(pairs),
        len(after),
        len(after & silent),
    )


def lasts(before: float, outage: float, found: Losses, weight: float) -> float:
    """Return how many hours an outage lasts, at least 1.

    After an hour of one the next is one of its own with 1 - 1 / L, or of the next one: the share c
    of such hours is Beta, and L = (1 - outage) / (1 - c).

    Args:
        before: What was thought.
        outage: Share of hours.
        found: What was seen.
        weight: Hours that the thought is worth.
    """
    if not found.followed or outage >= 1.0:
        return before
    thought = Share(1.0 - (1.0 - outage) / before, weight)
    stays = thought.after(found.went_on, found.followed)
    return max(1.0, (1.0 - outage) / (1.0 - stays)) if stays < 1.0 else before


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
