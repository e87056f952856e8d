"""The robust rules' kernels compiled for this machine's processor: the extra `[fast]`, numba.

What numpy_tiles.py does with one call a comparator over 64 KiB, this does over tiles of 1 KiB a
row that stay in the first-level cache: no call, no pass over memory but the first. One thread, no
lock of the interpreter held. The functions below are plain Python that numba compiles at their
first call (about a second each, once a process; nothing is written to the disk).

Three things make the inner loops vector code, and each is worth a factor of about two: indices
into tiles are unsigned, which spares the check for negative ones; no view of a row is made, which
would count references; and a comparator writes to two spare rows, because a minimum that
overwrites one of its own operands becomes a store under a mask. Which rows are spare is known
beforehand, as the network is. `a < b` alone decides, so that two equal values stay two values.
A tile is a short piece of many rows, which no core foresees: each row's next piece is asked for
while this one is worked on, and that is worth a third for the median of 16.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import numba
import numpy as np
from llvmlite import ir
from numba.extending import intrinsic
from numpy.lib.stride_tricks import as_strided

from .numpy_tiles import NumpyTiles
from ..protocol.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from .selection_network import Network

    Floats = NDArray[np.float32]
    Places = NDArray[np.int64]
    Sum = NDArray[np.float32] | NDArray[np.float64]

TILE = 256
"""Columns of a tile; n = 32 clients fill 34 KiB."""
STREAM_TILE = 512
STREAM_ROWS = 8
"""Rows that pass down a list together: each tile of the list is then read and written once."""
_WIDE = 2048
_INFINITY = np.float32(np.inf)
_ZERO = np.float32(0.0)
_HALF = np.float32(0.5)
_BOTH, _LOW = np.uint64(3), np.uint64(1)
_COLUMNS = np.uint64(TILE)
_SPARE = 2
_LINE = 16
"""Values of a cache line."""
_STREAM_ROWS, _STREAM_COLUMNS = np.uint64(STREAM_ROWS), np.uint64(STREAM_TILE)


class NumbaTiles(NumpyTiles):
    """As `NumpyTiles`, with the same results: equal medians, sums in the same order."""

    name = "numba"

    def __init__(self, clients: int) -> None:
        """Allocate once: the numpy buffers, and a tile of 1 KiB a client.

        Raises:
            SettingsError: `clients` is below 1.
        """
        super().__init__(clients)
        self._wires = np.zeros((clients + _SPARE) * TILE, np.float32)
        self._values = np.zeros((2, STREAM_ROWS * STREAM_TILE), np.float32)

    def _select(self, network: Network, rows: Floats, divisor: int, out: Floats) -> None:
        self.check(rows, out)
        steps, outputs = _steps(network)
        _SELECT(*_flat(rows), steps, outputs, np.float32(divisor), out, self._wires)

    def nearest(self, rows: Floats, picks: Sequence[int], keep: int, out: Floats) -> None:
        """Write the mean of the `keep` values nearest to the median of the picked rows.

        Raises:
            SettingsError: `keep` is not 1 to the number of picks.
        """
        self.check(rows, out)
        if not 1 <= keep <= len(picks):
            raise SettingsError("bulyan", f"1 to {len(picks)} values to keep", keep)
        base, starts = _flat(rows)
        _NEAREST(base, starts[list(picks)], keep, out, self._wires)

    def insert(self, rows: Floats, seen: int, state: tuple[Floats, Floats, Sum]) -> None:
        """Pass rows through a streaming trimmed mean; all rows of a call move the state once."""
        self.check(rows, state[2])
        bottom, top, middle = state
        lists = bottom.reshape(-1), top.reshape(-1)
        _INSERT(*_flat(rows), seen, *lists, middle, *self._values)

    def combine(
        self,
        rows: Floats,
        coefficients: NDArray[np.float64],
        centre: Floats | None,
        out: Floats,
    ) -> None:
        """Write (1 - sum(a)) c + sum_i a_i x_i; c = 0 where there is no centre."""
        self.check(rows, out)
        chosen = np.flatnonzero(coefficients)
        rest = np.float32(1.0 - coefficients.sum())
        if centre is None or not rest:
            out.fill(0.0)
        else:
            np.multiply(centre, rest, out=out)
        base, starts = _flat(rows)
        _COMBINE(base, starts[chosen], coefficients[chosen].astype(np.float32), out)


def _flat(rows: Floats) -> tuple[Floats, Places]:
    """Return the memory from the first row to the end of the last, and where each row starts.

    Raises:
        SettingsError: The rows lie in descending order.
    """
    step = rows.strides[0] // rows.itemsize
    if step < 0:
        raise SettingsError("robust rule", "rows in ascending order of memory", rows.strides)
    length = (len(rows) - 1) * step + rows.shape[1]
    base = as_strided(rows, (length,), (rows.itemsize,), writeable=False)
    return base, np.arange(len(rows), dtype=np.int64) * step


@cache
def _steps(network: Network) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """Return a network as (from, from, smaller to, larger to, what is kept) and its outputs.

    All but the fourth count floats of the buffer: a row of it is a tile of one wire.
    """
    row = list(range(network.wires))
    spare = [network.wires, network.wires + 1]
    steps = []
    for low, high, keep_low, keep_high in network.comparators:
        used = [row[low], row[high]]
        steps.append([*(TILE * place for place in used + spare), keep_low + 2 * keep_high])
        (row[low], row[high]), spare = spare, used
    outputs = [TILE * row[place] for place in network.outputs]
    return np.array(steps, np.uint64).reshape(-1, 5), np.array(outputs, np.uint64)


@intrinsic  # type: ignore[untyped-decorator]
def _fetch(context: Any, values: Any, place: Any) -> Any:
    """Ask for the cache line of a value, and do not wait for it."""
    signature = numba.types.void(values, place)

    def emit(target: Any, builder: Any, given: Any, arguments: Any) -> Any:
        data = target.make_array(given.args[0])(target, builder, arguments[0]).data
        byte, word = ir.IntType(8).as_pointer(), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [byte, word, word, word])
        fetch = builder.module.declare_intrinsic("llvm.prefetch", (byte,), kind)
        line = builder.bitcast(builder.gep(data, [arguments[1]]), byte)
        builder.call(fetch, [line, word(0), word(3), word(1)])  # to read, first level, data
        return target.get_dummy_value()

    return signature, emit


def _ahead(values: Any, start: int, width: int) -> None:
    """Ask for a tile of a row before its turn: so many rows at once no core foresees by itself."""
    for line in range(0, width, _LINE):
        _fetch(values, np.uint64(start + line))


def _load(base: Any, start: int, width: int, value: Any) -> None:
    """Copy a part of a row, NaN as +inf."""
    source, target = base[start : start + width], value[:width]
    for column in range(width):
        x = source[column]
        target[column] = x if x == x else _INFINITY  # noqa: PLR0124 - NaN


def _run(steps: Any, wires: Any) -> None:
    """Run a network over a tile."""
    for step in range(len(steps)):
        a, b, small, large, keep = steps[step]
        if keep == _BOTH:
            for column in range(_COLUMNS):
                x, y = wires[a + column], wires[b + column]
                wires[small + column] = x if x < y else y
                wires[large + column] = y if x < y else x
        elif keep == _LOW:
            for column in range(_COLUMNS):
                x, y = wires[a + column], wires[b + column]
                wires[small + column] = x if x < y else y
        else:
            for column in range(_COLUMNS):
                x, y = wires[a + column], wires[b + column]
                wires[large + column] = y if x < y else x


def _select(
    base: Any, starts: Any, steps: Any, outputs: Any, divisor: Any, out: Any, wires: Any
) -> None:
    """Run a network tile by tile and write the sum of its outputs over `divisor`."""
    for first in range(0, len(out), TILE):
        width = min(TILE, len(out) - first)
        after = first + TILE if first + 2 * TILE <= len(out) else first
        for place in range(len(starts)):
            _AHEAD(base, starts[place] + after, TILE)
            _LOAD(base, starts[place] + first, width, wires[place * TILE :])
        _RUN(steps, wires)
        total = outputs[0]
        for other in outputs[1:]:
            for column in range(_COLUMNS):
                wires[total + column] += wires[other + column]
        part, sums = out[first : first + width], wires[total : total + _COLUMNS]
        for column in range(width):
            part[column] = sums[column] / divisor


def _nearest(base: Any, starts: Any, keep: int, out: Any, wires: Any) -> None:
    """Sort each column and average the window around its median."""
    chosen = len(starts)
    tile = wires[: chosen * TILE].reshape(chosen, TILE)
    for first in range(0, len(out), TILE):
        width = min(TILE, len(out) - first)
        for place in range(chosen):
            _LOAD(base, starts[place] + first, width, tile[place])
        for column in range(width):
            values = np.sort(tile[:, column])
            middle = (values[(chosen - 1) // 2] + values[chosen // 2]) * _HALF
            low, high = 0, chosen - 1
            while high - low >= keep:
                if middle - values[low] > values[high] - middle:
                    low += 1
                else:
                    high -= 1
            total = _ZERO
            for place in range(low, high + 1):
                total += values[place]
            out[first + column] = total / np.float32(keep)


def _insert(
    base: Any, starts: Any, seen: int, bottom: Any, top: Any, middle: Any, value: Any, spare: Any
) -> None:
    """Pass rows down both lists and add what is left to the sum, eight at a time where it can."""
    together = len(starts) // STREAM_ROWS * STREAM_ROWS
    for first in range(0, len(middle), STREAM_TILE):
        for row in range(0, together, STREAM_ROWS):
            some = starts[row : row + STREAM_ROWS]
            _INSERT_ROWS(base, some, first, seen + row, bottom, top, middle, value, spare)
        for row in range(together, len(starts)):
            _INSERT_ONE(base, starts[row], first, seen + row, bottom, top, middle, value)


def _insert_one(
    base: Any, start: int, first: int, place: int, bottom: Any, top: Any, middle: Any, value: Any
) -> None:
    """Pass a row's tile down both lists, as far as they are filled, and add what is left."""
    shard = len(middle)
    cut, width = len(bottom) // shard, min(STREAM_TILE, shard - first)
    _LOAD(base, start + first, width, value)
    for level in range(min(cut, place + 1)):
        _SIFT_LOW(bottom, np.uint64(level * shard + first), np.uint64(width), value)
    for level in range(max(0, min(cut, place - cut + 1))):
        _SIFT_HIGH(top, np.uint64(level * shard + first), np.uint64(width), value)
    if place >= 2 * cut:
        part = middle[first : first + width]
        for column in range(width):
            part[column] += value[column]


def _insert_rows(  # noqa: PLR0913, PLR0917
    base: Any,
    starts: Any,
    first: int,
    place: int,
    bottom: Any,
    top: Any,
    middle: Any,
    value: Any,
    spare: Any,
) -> None:
    """Do it for eight rows; what falls out of a list that is not full is infinite, and harmless."""
    shard = len(middle)
    cut, width = len(bottom) // shard, min(STREAM_TILE, shard - first)
    after = first + STREAM_TILE if first + 2 * STREAM_TILE <= shard else first
    for row in range(STREAM_ROWS):
        _AHEAD(base, starts[row] + after, STREAM_TILE)
        _LOAD(base, starts[row] + first, width, value[row * STREAM_TILE :])
    for level in range(cut):
        _AHEAD(bottom, level * shard + after, STREAM_TILE)
        _ROWS_LOW(bottom, np.uint64(level * shard + first), np.uint64(width), value, spare)
        value, spare = spare, value
    for level in range(cut):
        start = np.uint64(level * shard + first)
        _AHEAD(top, level * shard + after, STREAM_TILE)
        if place >= cut:
            _ROWS_HIGH(top, start, np.uint64(width), value, spare)
            value, spare = spare, value
            continue
        for row in range(cut - place + level, STREAM_ROWS):
            _SIFT_HIGH(top, start, np.uint64(width), value[row * STREAM_TILE :])
    part = middle[first : first + width]
    for row in range(max(0, 2 * cut - place), STREAM_ROWS):
        left = value[row * STREAM_TILE : row * STREAM_TILE + width]
        for column in range(width):
            part[column] += left[column]


def _sift_low(level: Any, start: Any, width: Any, value: Any) -> None:
    """Leave the smaller in the list and carry the larger on."""
    for column in range(width):
        x, y = level[start + column], value[column]
        level[start + column] = x if x < y else y
        value[column] = y if x < y else x


def _sift_high(level: Any, start: Any, width: Any, value: Any) -> None:
    """Leave the larger in the list and carry the smaller on."""
    for column in range(width):
        x, y = level[start + column], value[column]
        level[start + column] = y if x < y else x
        value[column] = x if x < y else y


def _rows_low(level: Any, start: Any, width: Any, value: Any, carried: Any) -> None:
    """Do what `_sift_low` does for eight rows in turn; the compiler writes the inner loop out."""
    for column in range(width):
        x = level[start + column]
        for row in range(_STREAM_ROWS):
            y = value[row * _STREAM_COLUMNS + column]
            carried[row * _STREAM_COLUMNS + column] = y if x < y else x
            x = x if x < y else y
        level[start + column] = x


def _rows_high(level: Any, start: Any, width: Any, value: Any, carried: Any) -> None:
    """Do what `_sift_high` does for eight rows in turn."""
    for column in range(width):
        x = level[start + column]
        for row in range(_STREAM_ROWS):
            y = value[row * _STREAM_COLUMNS + column]
            carried[row * _STREAM_COLUMNS + column] = x if x < y else y
            x = y if x < y else x
        level[start + column] = x


def _combine(base: Any, starts: Any, factors: Any, out: Any) -> None:
    """Add every row times its factor, tile by tile."""
    for first in range(0, len(out), _WIDE):
        part = out[first : first + _WIDE]
        width = len(part)
        for row in range(len(starts)):
            start = starts[row] + first
            source = base[start : start + width]
            factor = factors[row]
            for column in range(width):
                part[column] += factor * source[column]


_njit: Any = numba.njit(nogil=True)
_LOAD, _RUN, _SIFT_LOW, _SIFT_HIGH = map(_njit, (_load, _run, _sift_low, _sift_high))
_AHEAD = _njit(_ahead)
_ROWS_LOW, _ROWS_HIGH = map(_njit, (_rows_low, _rows_high))
_INSERT_ONE, _INSERT_ROWS = map(_njit, (_insert_one, _insert_rows))
_SELECT, _NEAREST, _INSERT, _COMBINE = map(_njit, (_select, _nearest, _insert, _combine))
