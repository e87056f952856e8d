"""Whole models that come as pieces of .npy files: landed in slots, and folded as they come.

    slots    K rows of bytes: the float arrays, by dtype, each from a multiple of 64 bytes
    total    float64, one value for each of a row
    fold     total <- total + w^T rows      in tiles that are widened, K rows at a time
    mean     total / sum(w), rounded once into each array's dtype

With numba (the extra `[fast]`) float32 arrays are looked at, folded and divided by the compiled
passes of numba_landing.py, from the first batch after they are compiled on.

A piece is copied once, to its place; no array is built. Nothing of an update is added before all
of it has come and passed: names, dtype, shape, length and finiteness of every array. Integer and
bool arrays are buffers: they are compared with the model's and left out.

**Memory** is the total and K rows for any number of clients: 8 + 4K bytes a float32 parameter.
K is `SLOTS`, or as many rows as `ROOM` holds, at least one: a large model folds one at a time.

**Order.** With whole weights the float64 sum of a float32 coordinate is exact, and so the same in
any order and any batches, where sum(w) * max|x| / min|x| over the clients, zeros left out, is at
most 2^29: each product has at most 24 + log2(w) digits. Elsewhere the order may move the last digit
of the float64 sum, and with it the rounded float32 in about n of 2^29 coordinates.
"""

from __future__ import annotations

import math
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from . import npy
from .compiled import Compiled
from .fedavg import TILE, is_float, tiles
from ..protocol.errors import BadUpdate, RoundFailed

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from numpy.typing import NDArray

SLOTS = 8
"""Most updates of a batch."""
ROOM = 1 << 28
"""Bytes that slots beyond the first may take."""
NUMPY = "numpy.ndarray"
"""What Flower says of an array that is a .npy file."""
WORTH = 1 << 24
"""Bytes of a model from which on the fold is worth a compiler, which takes 150 MB itself."""
COMPILED = Compiled(".numba_landing", __package__)
_ALIGN = 64
_NARROW = 4
_LOOK = 1 << 18
"""Bytes that are copied at once, and looked at while they are still in the cache."""


class Incoming(NamedTuple):
    """One array on its way."""

    dtype: str
    stype: str
    pieces: Iterable[bytes | memoryview]
    """The file, in order; the head of the file is in the first piece."""


class Landing:
    """The slots and the weighted sum of the models of a round."""

    def __init__(self, model: Mapping[str, NDArray[Any]]) -> None:
        """Allocate for models like this one."""
        floats = [(name, array) for name, array in model.items() if is_float(array)]
        floats.sort(key=lambda item: item[1].dtype.str)
        self.model = dict(model)
        self._places: dict[str, slice] = {}
        sections: dict[np.dtype[Any], tuple[int, int]] = {}
        end = 0
        for name, array in floats:
            self._places[name] = slice(end, end + array.nbytes)
            start, _ = sections.get(array.dtype, (end, end))
            end = -(-(end + array.nbytes) // _ALIGN) * _ALIGN
            sections[array.dtype] = (start, end)
        rows = min(SLOTS, max(1, ROOM // max(end, 1)))
        self._rows = np.zeros((rows, end), np.uint8)
        self._total: dict[np.dtype[Any], NDArray[np.float64]] = {}
        self._sections = []
        for dtype, (start, stop) in sections.items():
            values = self._rows[:, start:stop].view(dtype)
            self._total[dtype] = np.zeros(values.shape[1], np.float64)
            self._sections.append((start, values, self._total[dtype]))
        self._wide = np.empty((rows, TILE), np.float64)
        self._weights: list[float] = []
        self._weight = 0.0
        if end >= WORTH:
            COMPILED.load_beside()

    def again(self, model: Mapping[str, NDArray[Any]]) -> Landing:
        """Return a landing for the next round: this one, emptied, where the arrays are alike."""
        if not self.fits(model):
            return Landing(model)
        self.model = dict(model)
        self._weights.clear()
        self._weight = 0.0
        return self

    def fits(self, model: Mapping[str, NDArray[Any]]) -> bool:
        """Return whether a model has the arrays that this landing was made for."""
        mine, other = (
            {n: (a.dtype, a.shape) for n, a in arrays.items()} for arrays in (self.model, model)
        )
        return mine == other

    def take(self, node: str, arrays: Mapping[str, Incoming], weight: float) -> None:
        """Land one model and count it with its weight, which the caller has checked.

        The arrays' pieces are read in the order of `arrays`.

        Raises:
            BadUpdate: Something of it is not as the model's; the sum is as it was.
        """
        if set(arrays) != set(self.model):
            names = sorted(set(arrays).symmetric_difference(self.model))
            expected, got = "the names of the global model", f"a difference in {names}"
            raise BadUpdate(node, "arrays", expected, got)
        row = self._rows[len(self._weights)]
        for name, incoming in arrays.items():
            self._land(node, name, incoming, row)
        self._weights.append(float(weight))
        if len(self._weights) == len(self._rows):
            self.fold()

    def fold(self) -> None:
        """Add what is in the slots to the sum; a round's last batch may be small."""
        count = len(self._weights)
        if count == 0:
            return
        weights, kernels = np.array(self._weights), COMPILED.module
        for _, rows, total in self._sections:
            if kernels is not None and rows.dtype == np.float32:
                kernels.fold(total, rows[:count], weights, begins=self._weight == 0.0)
            else:
                self._fold(total, rows[:count], weights)
        self._weight += math.fsum(self._weights)
        self._weights.clear()

    def _fold(
        self, total: NDArray[np.float64], rows: NDArray[Any], weights: NDArray[np.float64]
    ) -> None:
        """Do it tile by tile in numpy."""
        for tile in tiles(total.size):
            wide = self._wide[: len(rows), : tile.stop - tile.start]
            np.copyto(wide, rows[:, tile])
            if self._weight == 0.0:  # what the round before left is written over
                np.matmul(weights, wide, out=total[tile])
            else:
                total[tile] += weights @ wide

    def mean(self) -> dict[str, NDArray[Any]]:
        """Return the weighted mean of the float arrays, each in its own dtype.

        They lie in a slot: what is taken next overwrites them.

        Raises:
            RoundFailed: No model was taken.
        """
        self.fold()
        if self._weight == 0.0:
            raise RoundFailed("no update reached the sum of this round")
        means = {}
        starts = {rows.dtype: start for start, rows, _ in self._sections}
        for name, place in self._places.items():
            like = self.model[name]
            first = (place.start - starts[like.dtype]) // like.dtype.itemsize
            total = self._total[like.dtype][first : first + like.size]
            mean = self._rows[0, place].view(like.dtype)
            if COMPILED.module is not None and like.dtype == np.float32:
                COMPILED.module.divide(total, self._weight, mean)
            else:
                for tile in tiles(like.size):
                    mean[tile] = total[tile] / self._weight
            means[name] = mean.reshape(like.shape)
        return means

    def _land(self, node: str, name: str, incoming: Incoming, row: NDArray[np.uint8]) -> None:
        want, what = self.model[name], f"array {name!r}"
        pieces = iter(incoming.pieces)
        first = memoryview(next(pieces, b""))
        try:
            if incoming.stype != NUMPY:
                raise ValueError(f"serialisation {incoming.stype!r}")  # noqa: TRY301 - as the reader
            head = npy.read_head(first, incoming.dtype)
        except ValueError as error:
            raise BadUpdate(node, what, "a numpy array", error) from error
        if (want.shape, want.dtype) != (head.shape, head.dtype):
            expected, got = f"{want.dtype} {want.shape}", f"{head.dtype} {head.shape}"
            raise BadUpdate(node, what, expected, got)
        place = self._places.get(name)
        numbers = chain([first[head.start :]], pieces)
        if place is None:
            _pass_over(node, what, numbers, want.nbytes)
            return
        values = row[place].view(want.dtype)
        _copy(node, what, numbers, values)
        if head.fortran and want.ndim > 1:
            values[:] = values.reshape(want.shape, order="F").ravel()


def _copy(node: str, what: str, pieces: Iterable[bytes | memoryview], values: NDArray[Any]) -> None:
    """Copy pieces one after another and look at the numbers; they must fill `values`."""
    out, at, seen = values.view(np.uint8), 0, 0
    for piece in pieces:
        if at + len(piece) > out.size:
            raise BadUpdate(node, what, f"{out.size} bytes", "more")
        data = np.frombuffer(piece, np.uint8)
        for start in range(0, data.size, _LOOK):
            part = data[start : start + _LOOK]
            out[at : at + part.size] = part
            at += part.size
            whole = at // values.itemsize
            _check_finite(node, what, values[seen:whole])
            seen = whole
    if at != out.size:
        raise BadUpdate(node, what, f"{out.size} bytes", at)


def _pass_over(node: str, what: str, pieces: Iterable[bytes | memoryview], nbytes: int) -> None:
    """Take the pieces of an array that is left out, `nbytes` long together."""
    got = 0
    for piece in pieces:
        got += len(piece)
        if got > nbytes:
            raise BadUpdate(node, what, f"{nbytes} bytes", "more")
    if got != nbytes:
        raise BadUpdate(node, what, f"{nbytes} bytes", got)


def _check_finite(node: str, what: str, values: NDArray[Any]) -> None:
    kernels = COMPILED.module
    if kernels is not None and values.dtype == np.float32 and kernels.finite(values):
        return
    if values.dtype.itemsize < _NARROW:
        values = values.astype(np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        square = float(values @ values)
    # NaN and infinity survive the sum of squares: one look is enough.
    if not math.isfinite(square) and not np.isfinite(values).all():
        got = values[~np.isfinite(values)][0]
        raise BadUpdate(node, what, "finite values", got)
