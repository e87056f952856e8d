"""Robust aggregation rules by name: what each needs, and one round of any of them on a shard.

    rule                bears f of n         what decides            on a shard
    median              n > 2f               a coordinate            selection network
    trimmed-mean        n > 2k, k >= f       a coordinate            selection network, or a stream
    krum, multi-krum    n >= 2f + 3          distances               inner products, weighted fold
    bulyan              n >= 4f + 3          distances, coordinate   the same, then the nearest
    geometric-median    n > 2f               distances               inner products, weighted fold
    centred-clipping    n > 2f               distances from c        the same
    norm-bounding       limits, bears none   the row's own norm      the same
    fltrust             any f, trusts row 0  cosine with row 0       the same

All are exact: no sampling, no sketch. Coordinate rules need nothing from another shard; for the
others the inner products of the shards are added (n^2 numbers of float64), and every rank derives
the same coefficients from the same sum.

What is not a number. The firewall refuses an update with NaN or infinity before any rule sees it.
Should one come through, then in a coordinate's order NaN is the largest value, infinities are
numbers, and a row with either is at an infinite distance: never picked, coefficient 0. Equal
values are interchangeable; equal scores go to the client that comes first; of two values as far
from a median the smaller is kept. A round for which nothing finite is left fails.

Weights by examples: median, trimmed mean and the Krums count every client once, since a weight is
the client's own claim; geometric median and norm bounding take them.

Every rule compares the clients' own updates, which secure aggregation is there to hide: asked for
together they are refused (`refuse_secure`).
"""

from __future__ import annotations

import importlib
import itertools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

from . import gram as rules
from .numpy_tiles import NumpyTiles
from .trimmed_stream import Passes
from ..protocol.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import ArrayLike, NDArray

    Floats = NDArray[np.float32]
    Matrix = NDArray[np.float64]


class Tiles(Passes, Protocol):
    """The kernels over rows; numpy_tiles.py says what each does."""

    name: str

    def median(self, rows: Floats, out: Floats) -> None:
        """Write the median of every column."""

    def trimmed(self, rows: Floats, cut: int, out: Floats) -> None:
        """Write the trimmed mean of every column."""

    def nearest(self, rows: Floats, picks: Sequence[int], keep: int, out: Floats) -> None:
        """Write the mean of the values nearest to the median of the picked rows."""

    def gram(self, rows: Floats, centre: Floats | None, total: Matrix) -> None:
        """Add the inner products of the centred rows to `total`."""

    def combine(
        self, rows: Floats, coefficients: Matrix, centre: Floats | None, out: Floats
    ) -> None:
        """Write the centre and the rows by their coefficients."""


class Needs(NamedTuple):
    """What a rule asks of a round."""

    each: int
    """Clients that must take part for each byzantine one,"""
    more: int
    """and beside these."""
    inner_products: bool
    """Is the sum of all shards' inner products needed?"""


RULES = {
    "median": Needs(2, 1, inner_products=False),
    "trimmed-mean": Needs(2, 1, inner_products=False),
    "krum": Needs(2, 3, inner_products=True),
    "multi-krum": Needs(2, 3, inner_products=True),
    "bulyan": Needs(4, 3, inner_products=True),
    "geometric-median": Needs(2, 1, inner_products=True),
    "centred-clipping": Needs(2, 1, inner_products=True),
    "norm-bounding": Needs(0, 1, inner_products=True),
    "fltrust": Needs(0, 2, inner_products=True),
}
_LEAST_CUT = 1e-3
_WITH_RADIUS = {"centred-clipping", "norm-bounding"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Robust:
    """A rule with its numbers."""

    rule: str
    byzantine: int = 0
    """f: clients that may send anything. Bulyan and the Krums use it; the others only check n."""
    keep: int | None = None
    """m of multi-krum; n - f without."""
    cut: float = 0.2
    """Share that trimmed-mean drops at either end: k = floor(cut * n), as Flower has it."""
    radius: float | None = None
    """Of centred-clipping and norm-bounding, in the norm of an update."""
    iterations: int = 1
    """Of centred-clipping."""

    def __post_init__(self) -> None:
        """Check each number where it is given.

        Raises:
            SettingsError: An unknown rule, or a number outside its range.
        """
        if self.rule not in RULES:
            raise SettingsError("robust rule", f"one of {', '.join(RULES)}", self.rule)
        if self.byzantine < 0:
            raise SettingsError(f"{self.rule}: byzantine", "0 or more", self.byzantine)
        if not 0.0 <= self.cut < 0.5:  # noqa: PLR2004 - half at either end is all
            raise SettingsError(f"{self.rule}: cut", "a share of 0 to below 0.5", self.cut)
        if self.rule == "trimmed-mean" and self.byzantine and self.cut < _LEAST_CUT:
            raise SettingsError("trimmed-mean: cut", f"{_LEAST_CUT} or more to bear f", self.cut)
        if self.keep is not None and self.keep < 1:
            raise SettingsError(f"{self.rule}: keep", "1 or more", self.keep)
        positive = self.radius is not None and 0.0 < self.radius < math.inf
        if self.rule in _WITH_RADIUS and not positive:
            raise SettingsError(f"{self.rule}: radius", "a finite number above 0", self.radius)
        if self.iterations < 1:
            raise SettingsError(f"{self.rule}: iterations", "1 or more", self.iterations)

    @property
    def least(self) -> tuple[int, str]:
        """The fewest clients for what the rule promises, and the arithmetic."""
        needs, f = RULES[self.rule], self.byzantine
        least, why = needs.each * f + needs.more, f"{needs.each} f + {needs.more} with f = {f}"
        if self.rule == "trimmed-mean" and f:
            first = max(least, int(f / self.cut))
            enough = next(n for n in itertools.count(first) if self.cut_of(n) >= f)
            if enough > least:
                least, why = enough, f"of which cut {self.cut:g} drops {f} at either end, all f"
        if self.keep is not None and self.keep > least:
            least, why = self.keep, "keep"
        return least, why

    def check(self, clients: int) -> None:
        """Check that so many clients are enough for what the rule promises.

        Raises:
            SettingsError: Too few; the number that would do is named.
        """
        least, why = self.least
        if clients < least:
            raise SettingsError(
                f"{self.rule} with {self.byzantine} byzantine clients",
                f"{least} or more clients ({why})",
                clients,
                "wait for more clients, or name fewer byzantine ones",
            )

    def cut_of(self, clients: int) -> int:
        """Return how many trimmed-mean drops at either end."""
        return int(self.cut * clients)

    def kept(self, clients: int) -> tuple[int, str]:
        """Return how many rows a round of so many clients keeps, and why; the mean keeps one."""
        if self.streams(clients):
            return 2 * self.cut_of(clients) + 2, f"2 k + 2 with k = {self.cut_of(clients)}"
        return clients, f"one a client for {self.rule}"

    def streams(self, clients: int) -> bool:
        """Say whether rows need not be kept: the trimmed mean of enough clients."""
        return self.rule == "trimmed-mean" and 2 * self.cut_of(clients) + 2 < clients

    def coefficients(self, gram: Matrix, weights: ArrayLike | None = None) -> Matrix:
        """Return a of `combine` from the whole model's inner products; not for bulyan.

        Raises:
            RoundFailed: The rule finds nothing to stand on.
            SettingsError: The rule looks at no distances.
        """
        clients, radius = len(gram), self.radius or 0.0
        if self.rule in {"krum", "multi-krum"}:
            several = clients - self.byzantine if self.keep is None else self.keep
            return rules.multi_krum(gram, self.byzantine, 1 if self.rule == "krum" else several)
        if self.rule == "geometric-median":
            return rules.geometric_median(gram, weights)
        if self.rule == "centred-clipping":
            return rules.centred_clipping(gram, radius, self.iterations)
        if self.rule == "norm-bounding":
            return rules.norm_bounding(gram, radius, weights)
        if self.rule == "fltrust":
            return rules.fltrust(gram)
        raise SettingsError("coefficients", "a rule that ends in a weighted fold", self.rule)


def aggregate(
    robust: Robust,
    rows: Floats,
    out: Floats,
    tiles: Tiles,
    *,
    centre: Floats | None = None,
    weights: ArrayLike | None = None,
    reduce: Callable[[Matrix], Matrix] | None = None,
) -> None:
    """Write one shard's aggregate.

    Args:
        robust: The rule.
        rows: Shape (n, shard) float32; for fltrust the server's own update is row 0.
        out: Shape (shard,).
        tiles: The kernels.
        centre: c, this shard of the global model, where rows are models; None for deltas.
        weights: One above 0 a client, for the rules that take them.
        reduce: Adds the inner products of all shards and returns the same sum to every rank;
            None where this shard is the whole model.

    Raises:
        SettingsError: Too few clients, or shapes that do not fit.
        RoundFailed: Nothing finite is left to choose from.
    """
    clients = len(rows)
    robust.check(clients)
    decided = None
    if RULES[robust.rule].inner_products:
        products = np.zeros((clients, clients))
        tiles.gram(rows, centre, products)
        decided = decide(robust, products if reduce is None else reduce(products), weights)
    write(robust, decided, rows, out, tiles, centre)


class Decided(NamedTuple):
    """What a rule made of the inner products: which rows count, and how much."""

    rows: tuple[int, ...]
    """Ascending; the others need not be looked at again."""
    coefficients: Matrix
    """One for each of `rows`; bulyan has none, for what is near counts the same."""
    clients: int
    """How many took part, n."""


def decide(robust: Robust, products: Matrix, weights: ArrayLike | None = None) -> Decided:
    """Return what follows from the whole model's inner products.

    Raises:
        RoundFailed: The rule finds nothing to stand on.
        SettingsError: The rule looks at no distances.
    """
    if robust.rule == "bulyan":
        picks = rules.bulyan_selection(products, robust.byzantine)
        return Decided(tuple(picks), np.zeros(0), len(products))
    coefficients = robust.coefficients(products, weights)
    chosen = np.flatnonzero(coefficients)
    return Decided(tuple(chosen.tolist()), coefficients[chosen], len(products))


def write(
    robust: Robust,
    decided: Decided | None,
    rows: Floats,
    out: Floats,
    tiles: Tiles,
    centre: Floats | None = None,
) -> None:
    """Write the aggregate of some columns.

    Args:
        robust: The rule.
        decided: Of the whole model; None for the rules a coordinate at a time.
        rows: All rows, or those that `decided` names and no others.
        out: Of the same columns.
        tiles: The kernels.
        centre: As in `aggregate`.
    """
    if decided is None:
        if robust.rule == "median":
            tiles.median(rows, out)
        else:
            tiles.trimmed(rows, robust.cut_of(len(rows)), out)
        return
    whole = len(rows) == decided.clients
    if robust.rule == "bulyan":
        picks = decided.rows if whole else range(len(rows))
        tiles.nearest(rows, picks, decided.clients - 4 * robust.byzantine, out)
        return
    coefficients = decided.coefficients
    if whole:
        coefficients = np.zeros(decided.clients)
        coefficients[list(decided.rows)] = decided.coefficients
    tiles.combine(rows, coefficients, centre, out)


def refuse_secure(robust: Robust) -> None:
    """Refuse a robust rule in a secure run; the caller asks only then.

    Raises:
        SettingsError: Always, with the reason.
    """
    raise SettingsError(
        "robust",
        "a rule that needs only the sum of the updates, because secure aggregation is on and "
        "shows the server nothing else",
        robust.rule,
        f"{robust.rule} compares single updates: leave it out, or run without secure aggregation "
        "where every device's policy allows it",
    )


def kernels(clients: int) -> tuple[Tiles, str]:
    """Return the fastest CPU kernels that are installed, and one line about them for the log."""
    try:
        compiled = importlib.import_module(f"{__package__}.numba_tiles")
    except ImportError:
        return NumpyTiles(clients), (
            "robust rules run in numpy, at a third of the speed: numba is not installed "
            "(pip install 'umbel[fast]')"
        )
    made: Tiles = compiled.NumbaTiles(clients)
    return made, "robust rules run compiled by numba"
