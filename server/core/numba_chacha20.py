"""Key streams made and added in one pass, compiled for this machine's processor: numba.

masks.py writes a key's stream into a tile and then adds the tile. Here sixteen blocks are computed
side by side in vector registers, twice over so that the processor always has work that waits for
nothing, and every word is added where it is made: no key stream ever lies in memory, only its sum
over all keys, a tile of 16 KiB that stays in the first-level cache. Word w of a tile's block b lies
at [w, b] there; the words are put in their order when they meet the message, once for all keys.

It is written in LLVM's own terms because a loop that is left to the compiler runs at two thirds of
this speed and takes it twenty times as long to compile. Where the processor lacks vectors of
512 bits it would be slower than the cipher's library (`fits`); the bits are equal anywhere.

No branch, no address and no shift depends on a key: the time is the same for all. Compiled when
this module is imported (about a second); nothing is written to the disk.

Not here: checks of keys and lengths, what is left of a message after whole tiles (unmask.py).
RFC 8439, 2.1 to 2.3, with nonce 0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import llvmlite.binding
import numba
import numpy as np
from llvmlite import ir
from numba.core import cgutils
from numba.extending import intrinsic

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

WORDS = 16
"""Words of a block."""
LANES, STATES = 16, 2
"""Blocks of a vector, and vectors that are computed in turn."""
BLOCKS = 256
"""Blocks of a tile."""
TILE = 64 * BLOCKS
"""Bytes of a tile."""
_CONSTANTS = (0x61707865, 0x3320646E, 0x79622D32, 0x6B206574)
_COLUMNS = ((0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15))
_DIAGONALS = ((0, 5, 10, 15), (1, 6, 11, 12), (2, 7, 8, 13), (3, 4, 9, 14))
_STEPS = ((0, 1, 3, 16), (2, 3, 1, 12), (0, 1, 3, 8), (2, 3, 1, 7))
"""A quarter round: a += b, d ^= a, d <<<= n, as places of (a, b, d) and n."""
_WORD = ir.IntType(32)
_VECTOR = ir.VectorType(_WORD, LANES)


def fits() -> bool:
    """Say whether this processor has the vectors that make it worth while."""
    return bool(llvmlite.binding.get_host_cpu_features().get("avx512f"))


def add_streams(
    words: NDArray[np.uint32], streams: Sequence[tuple[bytes | bytearray, int]], first: int
) -> None:
    """Add (+1) or subtract (-1) every key's stream to or from whole tiles, in place.

    Args:
        words: The message's words, whole tiles.
        streams: (32-byte key, +1 or -1) for each mask.
        first: Block of the stream that the first word meets.
    """
    ordered = sorted(streams, key=lambda stream: stream[1])
    keys = np.empty((len(ordered), 8), np.uint32)
    for row, (key, _) in zip(keys, ordered, strict=True):
        row[:] = np.frombuffer(key, "<u4")
    noise = np.empty(TILE // 4, np.uint32)
    _ADD(words, keys, sum(sign < 0 for _, sign in ordered), first, noise)
    keys.fill(0)
    noise.fill(0)


def _double_round(builder: Any, states: list[list[Any]]) -> None:
    """RFC 8439, 2.3: the columns, then the diagonals, of all states in step."""
    for quarters in (_COLUMNS, _DIAGONALS):
        for a, b, d, bits in _STEPS:
            left = ir.Constant(_VECTOR, [bits] * LANES)
            right = ir.Constant(_VECTOR, [32 - bits] * LANES)
            turns = [(x, q[a], q[b], q[d]) for q in quarters for x in states]
            for x, to, other, _ in turns:
                x[to] = builder.add(x[to], x[other])
            for x, to, _, turned in turns:
                x[turned] = builder.xor(x[turned], x[to])
            for x, _, _, turned in turns:
                high, low = builder.shl(x[turned], left), builder.lshr(x[turned], right)
                x[turned] = builder.or_(high, low)


def _start(builder: Any, keys: Any, counter: Any) -> list[list[Any]]:
    """RFC 8439, 2.3: constants, the key, counters that rise from `counter`, a nonce of zeros."""

    def splat(word: Any) -> Any:
        undefined = ir.Constant(_VECTOR, ir.Undefined)
        one = builder.insert_element(undefined, word, _WORD(0))
        return builder.shuffle_vector(one, undefined, ir.Constant(_VECTOR, [0] * LANES))

    head = [ir.Constant(_VECTOR, [word] * LANES) for word in _CONSTANTS]
    head += [splat(builder.load(builder.gep(keys, [_WORD(place)]))) for place in range(8)]
    nonce = [ir.Constant(_VECTOR, [0] * LANES)] * 3
    counters = [
        builder.add(splat(counter), ir.Constant(_VECTOR, list(range(low, low + LANES))))
        for low in range(0, STATES * LANES, LANES)
    ]
    return [[*head, rising, *nonce] for rising in counters]


@intrinsic  # type: ignore[untyped-decorator]
def _blocks(context: Any, noise: Any, place: Any, keys: Any, key: Any, counter: Any) -> Any:
    """Add STATES * LANES blocks of a key's stream to [:, place:] of a tile."""
    signature = numba.types.void(noise, place, keys, key, counter)

    def emit(target: Any, builder: Any, given: Any, values: Any) -> Any:
        tile = target.make_array(given.args[0])(target, builder, values[0]).data
        rows = target.make_array(given.args[2])(target, builder, values[2]).data
        row = builder.gep(rows, [builder.mul(values[3], values[3].type(8))])
        initial = _start(builder, row, values[4])
        slots = [[cgutils.alloca_once_value(builder, x) for x in state] for state in initial]
        with cgutils.for_range(builder, target.get_constant(numba.types.intp, 10)):
            states = [[builder.load(slot) for slot in state] for state in slots]
            _double_round(builder, states)
            for state, kept in zip(states, slots, strict=True):
                for x, slot in zip(state, kept, strict=True):
                    builder.store(x, slot)
        for number, (state, kept) in enumerate(zip(initial, slots, strict=True)):
            for word, (x, slot) in enumerate(zip(state, kept, strict=True)):
                offset = values[1].type(word * BLOCKS + number * LANES)
                there = builder.gep(tile, [builder.add(values[1], offset)])
                there = builder.bitcast(there, _VECTOR.as_pointer())
                made = builder.add(builder.load(slot), x)
                builder.store(builder.add(builder.load(there, align=4), made), there, align=4)
        return target.get_dummy_value()

    return signature, emit


def _sum(noise: Any, keys: Any, block: int) -> None:
    """Add every key's stream to a tile that begins at a block."""
    for key in range(len(keys)):
        for place in range(0, BLOCKS, STATES * LANES):
            _blocks(noise, place, keys, key, np.uint32(block + place))


def _add(words: Any, keys: Any, minus: int, first: int, noise: Any) -> None:
    """Add the streams of all keys, the first `minus` of them negated, tile by tile."""
    for low in range(0, len(words), TILE // 4):
        block = first + low // WORDS
        noise[:] = 0
        _SUM(noise, keys[:minus], block)
        for place in range(TILE // 4):
            noise[place] = -noise[place]
        _SUM(noise, keys[minus:], block)
        for place in range(BLOCKS):
            for word in range(WORDS):
                words[low + WORDS * place + word] += noise[word * BLOCKS + place]


_SUM: Any = numba.njit(nogil=True)(_sum)
_ADD: Any = numba.njit("void(uint32[::1], uint32[:, ::1], int64, int64, uint32[::1])", nogil=True)(
    _add
)
