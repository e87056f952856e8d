"""The aggregate of a robust rule over messages that are kept: the clients' own rows, not a sum.

    delta_i = signed(words_i) / (s w_i)      decoded as a sum of one client is, rounded to float32

A row is section 32 of one message, its weight w_i comes out of the same message's section 64. The
rows stay ring words; columns are decoded a tile at a time, so that memory is n messages and n
tiles of 64 KiB. The rows are deltas, so c is 0. Rows are to come in an order that follows from
who took part, not from who came first: then the bits of the result do, too.

How exact. A device rounds each value to its code: what the rules see of client i lies within
    value_range * weight_cap / (Q w_i),   Q = 2^(31 - ceil(log2 n)) - 1
of its delta, and so does a median or a trimmed mean lie within the largest of these. float32, in
which the kernels work, adds 2^-24 of the value; arrays of float64 get no more.

Parts of one model. A coordinate's result depends on its column alone. The inner products of the
distance rules are made in `parts` cut by the vector's length, never by who computes: ranks make
some of them each, and their sum, taken in the order of the parts, has the same bits in any world.

The trimmed mean is the streaming one (`TrimmedRows`), also where all rows are kept. Its values are
brought to a grid on which sums in float64 are exact, u = 2^-53 n c w_cap to the next power of two:
finer than a code while weight_cap is below 2^22. So rows and stream, in any order, have equal bits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ...protocol.errors import SettingsError, TooFewMembers
from ...strategies.numpy_tiles import GRAM_TILE, TILE
from ...strategies.robust_rules import RULES, decide, write
from ...strategies.trimmed_stream import TrimmedStream

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from ...protocol.codec import Codec
    from ...strategies.robust_rules import Decided, Robust, Tiles
    from ...strategies.trimmed_stream import Passes

    Words = NDArray[np.uint32]
    Floats = NDArray[np.float32]
    Matrix = NDArray[np.float64]

PARTS = 32
"""Most parts of the inner products; a number of the result's bits, hence fixed."""
_PRODUCTS = 1 << 22
"""Most numbers of all parts: 32 MiB."""


def parts(words: int, clients: int) -> list[slice]:
    """Return the columns of each part of the inner products, whole tiles of the kernel.

    They depend on the vector's length and the number of clients only.
    """
    count = max(1, min(PARTS, _PRODUCTS // clients**2))
    width = max(1, -(-words // (count * GRAM_TILE))) * GRAM_TILE
    return [slice(low, min(low + width, words)) for low in range(0, words, width)]


class KeptRows:
    """The rows of one round, frozen."""

    def __init__(
        self,
        robust: Robust,
        codec: Codec,
        rows: Sequence[Words],
        weights: Sequence[int],
        tiles: Tiles,
    ) -> None:
        """Take section 32 and weight of each survivor, in an order that all ranks have.

        There are `enough` of them.
        """
        self._robust, self._codec, self._tiles = robust, codec, tiles
        self._rows, self._weights = list(rows), list(weights)
        self.decided: Decided | None = None
        """What `decide` found; a rank takes it from elsewhere."""
        self._buffer = np.empty((len(rows), TILE), np.float32)
        self._wide = np.empty(TILE, np.float64)

    @property
    def parts(self) -> list[slice]:
        """What `products` may be asked for; none where the rule looks at no distance."""
        if not RULES[self._robust.rule].inner_products:
            return []
        return parts(len(self._rows[0]), len(self._rows))

    def products(self, part: slice) -> Matrix:
        """Return the inner products of all rows over the columns of one part."""
        total = np.zeros((len(self._rows), len(self._rows)))
        everyone = range(len(self._rows))
        for tile in _cuts(part.start, part.stop):
            self._tiles.gram(self._load(everyone, tile), None, total)
        return total

    def decide(self, products: Sequence[Matrix]) -> None:
        """Take the products of all parts, in their order.

        Raises:
            RoundFailed: The rule finds nothing to stand on.
        """
        total = np.zeros((len(self._rows), len(self._rows)))
        for one in products:
            total += one
        self.decided = decide(self._robust, total, self._weights)

    def decode(self, start: int, stop: int, out: NDArray[Any]) -> None:
        """Write the aggregate of the words `start` to `stop`, rounded to out's dtype."""
        decided = self.decided
        chosen = range(len(self._rows)) if decided is None else decided.rows
        narrow = np.zeros(TILE, np.float32)
        for tile in _cuts(start, stop):
            part = narrow[: tile.stop - tile.start]
            if self._robust.rule == "trimmed-mean":
                self._trim(tile, part)
            elif chosen:
                write(self._robust, decided, self._load(chosen, tile), part, self._tiles)
            np.copyto(out[tile.start - start : tile.stop - start], part, casting="unsafe")

    def _trim(self, tile: slice, out: Floats) -> None:
        clients = len(self._rows)
        stream = TrimmedStream(out.size, self._robust.cut_of(clients), self._tiles, np.float64)
        stream.update(self._load(range(clients), tile, unit(self._codec)))
        stream.result(out)

    def _load(self, which: Sequence[int], tile: slice, grid: float = 0.0) -> Floats:
        """Return a tile of some rows, decoded."""
        loaded = self._buffer[: len(which), : tile.stop - tile.start]
        for row, client in zip(loaded, which, strict=True):
            words = self._rows[client][tile]
            decode(self._codec, words, self._weights[client], row, self._wide, grid)
        return loaded


class TrimmedRows:
    """The trimmed mean of messages that are taken one by one and not kept: 2k + 2 words each."""

    def __init__(self, robust: Robust, codec: Codec, words: int, passes: Passes) -> None:
        """Allocate for at most the codec's members; k is cut for all of them."""
        self._robust, self._codec, self._words, self._seen = robust, codec, words, 0
        cut = robust.cut_of(codec.members)
        self._blocks = [
            TrimmedStream(tile.stop - tile.start, cut, passes, np.float64)
            for tile in _cuts(0, words)
        ]
        self._grid = unit(codec)
        self._narrow, self._wide = np.empty(TILE, np.float32), np.empty(TILE, np.float64)

    @property
    def nbytes(self) -> int:
        """Bytes of the state."""
        return sum(block.nbytes for block in self._blocks)

    def add(self, words: Words, weight: int) -> None:
        """Take the next message."""
        for block, tile in zip(self._blocks, _cuts(0, len(words)), strict=True):
            row = self._narrow[: tile.stop - tile.start]
            decode(self._codec, words[tile], weight, row, self._wide, self._grid)
            block.update(row)
        self._seen += 1

    def freeze(self) -> None:
        """Cut for those who came, as if nobody else had been asked.

        Raises:
            TooFewMembers: The rule needs more clients.
        """
        enough(self._robust, self._seen)
        for block in self._blocks:
            block.shrink(self._robust.cut_of(self._seen))

    def decode(self, start: int, stop: int, out: NDArray[Any]) -> None:
        """Write the aggregate of the words `start` to `stop`, rounded to out's dtype."""
        for place in range(start // TILE, -(-stop // TILE)):
            block, base = self._blocks[place], place * TILE
            part = self._narrow[: min(TILE, self._words - base)]
            block.result(part)
            low, high = max(start, base), min(stop, base + part.size)
            target = out[low - start : high - start]
            np.copyto(target, part[low - base : high - base], casting="unsafe")


def decode(
    codec: Codec, words: Words, weight: int, out: Floats, wide: NDArray[np.float64], grid: float
) -> None:
    """Write one client's delta; `grid` above 0 rounds it to multiples of that first."""
    if not grid:
        codec.decode(words, weight, out)
        return
    exact = wide[: words.size]
    codec.decode(words, weight, exact)
    shift = 1.5 * 2.0**52 * grid
    exact += shift  # what is below one unit falls off here
    exact -= shift
    np.copyto(out, exact, casting="unsafe")


def unit(codec: Codec) -> float:
    """Return the grid on which the sum of all members' values is exact in float64."""
    exponent = int(np.frexp(codec.value_range * codec.weight_cap)[1])
    return float(np.ldexp(1.0, exponent + max(2, codec.log_members) - 53))


def enough(robust: Robust, clients: int) -> None:
    """Refuse a round that too few clients reached.

    Raises:
        TooFewMembers: With the number that would do.
    """
    try:
        robust.check(clients)
    except SettingsError as error:
        raise TooFewMembers(str(error)) from error


def _cuts(start: int, stop: int) -> Iterator[slice]:
    """Cut columns at multiples of `TILE`."""
    while start < stop:
        end = min(stop, (start // TILE + 1) * TILE)
        yield slice(start, end)
        start = end
