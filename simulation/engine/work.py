"""What a round asks of a tier, and what a tier hands over: the one interface of all tiers.

    Work    who trains in this round, from which model, by which numbers
    Tier    reduce(work) -> Reduced      the sum only: no single update leaves the tier
            rows(work, out) -> Report    one update a client, in the rows of a buffer

An update is `local - received` over the float arrays of the manifest (`Manifest.averaged`), each
flattened in C order, one after another: the same order in which the codec takes them
(protocol/layout.py). Client i of a work is the i-th of `clients`; everything that a tier returns
about clients is in that order, whoever trained them and whenever.

The sum is in fixed point, so that it has the same bits for any number of workers and any order:

    total = sum over counted clients of  rint(w_i * f_i * delta_i * 2^exponent)      int64
    mean  = total / (2^exponent * weight),   weight = sum of w_i

rint is to nearest, ties to even, of the float64 product (w_i * f_i * 2^exponent) * delta_i. f_i is
1 except where an update counts for less because it is stale (`Work.factors`); the weights by which
the sum is divided stay, as in FedBuff (Nguyen et al. 2022, arXiv 2106.06639). A client counts if
its update is finite, its L2 norm (float64) at most `max_norm`, and no value above `REACH`, the same
for every client however heavy: the exponent is so small that all weights of the round together,
each times `REACH`, stay below 2^62, so that no cohort's sum can wrap. The others are named by their
verdict, and nothing of theirs is in the sum.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Protocol

from numpy.typing import NDArray

from ...strategies.task import Site

if TYPE_CHECKING:
    import numpy as np

    from ...strategies.trainer import Settings

Arrays = Mapping[str, NDArray[Any]]

EXPONENT = 36
"""Bits behind the point of a term: a client's rounding is below 1.5e-11."""
ROOM = 62
"""The sum of all magnitudes stays below 2^62, but for half a unit of rounding a client."""
REACH = 1 << 10
"""Largest magnitude of a value that counts."""


class Verdict(IntEnum):
    """What a tier says of one client's update."""

    COUNTED = 0
    NOT_FINITE = 1
    """A value is NaN or infinite: the client diverged."""
    TOO_LONG = 2
    """Its norm is above the run's bound."""
    TOO_LARGE = 3
    """A value is beyond what the fixed point holds."""
    FAILED = 4
    """The task raised; `Report.causes` says what."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """One cohort's training: only clients whose update will be used."""

    clients: NDArray[np.int64]
    """Numbers of the clients, each in range(partitions), none twice for one model."""
    partitions: int
    """How many clients are registered."""
    models: Sequence[Arrays] = field(repr=False)
    """The models that clients start from: one, or several where rounds overlap. Read only."""
    model_of: NDArray[np.int64] | None = None
    """For each client the index of its model; None is the first for all."""
    settings: Settings
    """Numbers of this round (strategies/trainer.py); its seed and round key every stream."""
    config: Mapping[str, bool | int | float | str] = field(default_factory=dict)
    """The round's config, as a client gets it; tasks see it as `site.settings`."""
    launches: NDArray[np.int64] | None = None
    """For each client the number that stands for the round in its streams, where clients of one
    work began at different times; None is `settings.round` for all."""
    factors: NDArray[np.float64] | None = None
    """For each client what its update is multiplied by in the sum, in (0, 1]; None is 1 for all."""
    weight_cap: int = 1 << 32
    """A client's weight is its number of examples, at most this."""
    max_norm: float | None = None
    """Largest L2 norm of an update that counts; None for no bound."""
    evaluate: bool = False
    """Whether each client tests the received model first, as a real client does."""

    agree: Callable[[int], int] | None = field(default=None, repr=False)
    """Where this is a share of a round: given the weights of its clients, added up, it waits for
    the other shares and returns what all of them add up to."""

    def round_weight(self, own: int) -> int:
        """Return the weight from which the round's exponent follows.

        A tier calls it exactly once in `reduce`, after it has counted its clients' examples and
        before it adds up anything, even where it has no client.

        Args:
            own: min(examples, weight_cap) of this work's clients, added up.
        """
        return own if self.agree is None else self.agree(own)

    def part(self, places: slice | NDArray[np.int64]) -> Work:
        """Return the work of the clients at these places, as one of its own."""

        def of(values: NDArray[Any] | None) -> NDArray[Any] | None:
            return None if values is None else values[places]

        return replace(
            self,
            clients=self.clients[places],
            model_of=of(self.model_of),
            launches=of(self.launches),
            factors=of(self.factors),
        )

    def round_of(self, index: int) -> int:
        """Return the round that keys the streams of the index-th client."""
        return self.settings.round if self.launches is None else int(self.launches[index])

    def model(self, index: int) -> Arrays:
        """Return the model from which the index-th client starts."""
        return self.models[0 if self.model_of is None else int(self.model_of[index])]

    def factor(self, index: int) -> float:
        """Return what the update of the index-th client is multiplied by in the sum."""
        return 1.0 if self.factors is None else float(self.factors[index])

    def site(self, index: int) -> Site:
        """Return where the index-th client's data come from, as in `umbel simulate`'s sessions."""
        return Site(
            partition=int(self.clients[index]),
            partitions=self.partitions,
            seed=self.settings.seed,
            round=self.round_of(index),
            settings=self.config,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What is known of every client of a work beside its update; simulation only."""

    verdicts: NDArray[np.uint8]
    """A `Verdict` each, shape (clients,)."""
    weights: NDArray[np.int64]
    """min(examples, weight_cap); 0 where the task failed."""
    examples: NDArray[np.int64]
    losses: NDArray[np.float64]
    """Loss while training, summed over every example of every epoch."""
    metrics: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)
    """Of the received model on a client's own examples, as sums under the task's names, where the
    work asked for it; or what a Flower app answered."""
    causes: Mapping[int, str] = field(default_factory=dict)
    """By index: what the task raised, in one line."""

    @property
    def counted(self) -> NDArray[np.bool_]:
        """Whose update is in the sum."""
        found: NDArray[np.bool_] = self.verdicts == Verdict.COUNTED
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Reduced:
    """The sum of a cohort's updates."""

    total: NDArray[np.int64] = field(repr=False)
    """Shape (values,), the flat order of this page."""
    exponent: int
    weight: int
    """Sum of the weights that are in it."""
    report: Report


class Tier(Protocol):
    """One way to train a cohort."""

    @property
    def name(self) -> str:
        """`T0` to `T3`."""

    def reduce(self, work: Work) -> Reduced:
        """Train and return the sum; the same bits for any number of workers."""

    def rows(self, work: Work, out: NDArray[Any]) -> Report:
        """Train and write each client's update into its row.

        Args:
            work: At most as many clients as `out` has rows: the caller cuts a cohort into windows.
            out: Shape (clients, values), C order, float32 (float64 where any array of the model
                is float64); it may be mapped from a file. The row of a client that does not count
                is zeros.
        """

    def close(self) -> None:
        """End what was started."""


def exponent_for(weight: int) -> int:
    """Return the exponent for a round whose weights add up to at most `weight`.

    `EXPONENT` while values up to `REACH` fit beside it, fewer bits for heavier rounds: weight is
    below 2^b, and so weight * REACH * 2^exponent at most 2^(b + 10 + 62 - 10 - b) = 2^62.
    """
    reach = REACH.bit_length() - 1
    return min(EXPONENT, ROOM - reach - max(1, weight).bit_length())
