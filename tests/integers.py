"""What a sum must be: members' updates coded with Python integers, and nothing of the package.

The numbers are those of docs/protocol.md, section 8, with the value range 0.5 and the weight cap
40 that rounds.py plays with; the stream of rounding words is pycryptodome's.
"""

from __future__ import annotations

import hashlib
import math
import struct
from fractions import Fraction
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from Crypto.Cipher import ChaCha20

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

KEPT = 4096
"""Updates and codes that are kept: a long run has more."""


def weight(index: int) -> int:
    """Return a member's weight, below the cap: 11, 13, 15, ..., 33 of the twelfth, then again."""
    return 11 + 2 * (index % 12)


@lru_cache(KEPT)
def update(index: int, number: int, shape: tuple[int, ...]) -> dict[str, NDArray[Any]]:
    """Return a member's deltas in a round, within the value range 0.5."""
    rng = np.random.default_rng([index, number])
    return {
        "w": rng.uniform(-0.49, 0.49, shape),
        "b": rng.uniform(-0.49, 0.49, 4).astype(np.float32),
        "frozen": np.zeros(3),
    }


class Sums(NamedTuple):
    """What members' messages add up to, as Python integers."""

    codes: dict[str, list[int]]
    weight: int
    examples: int
    loss: int
    scale: Fraction

    def mean(self, name: str) -> list[float]:
        """Return the mean of an array: each sum over (scale * weight), in float64."""
        denominator = float(self.scale) * self.weight
        return [code / denominator for code in self.codes[name]]


@lru_cache(KEPT)
def message(index: int, members: int, number: int = 1, shape: tuple[int, ...] = (3, 5)) -> Sums:
    """Return the codes of one member's update in a roster of `members`.

    b = 32 - ceil(log2 n), Q = 2^(b-1) - 1, s = Q / (c w_cap) in float64, y = (s w) v,
    q = floor(y) + (u < y - floor(y)) clamped to Q, u a ChaCha20 word over 2^32.
    """
    q_max = 2 ** (32 - math.ceil(math.log2(members)) - 1) - 1
    scale = q_max / (0.5 * 40)
    label = (b"umbel/rounding/1", b"0", b"%d" % number, b"%d" % index, b"train")
    key = hashlib.sha256(b"".join(struct.pack("<Q", len(f)) + f for f in label)).digest()
    deltas, place, codes = update(index, number, shape), 0, {}
    words = 16 * sum(-(-a.size // 16) for a in deltas.values())
    stream = ChaCha20.new(key=key, nonce=bytes(12)).encrypt(bytes(4 * words))
    for name in ("w", "b", "frozen"):
        values = deltas[name].reshape(-1).tolist()
        rounding = struct.unpack_from(f"<{len(values)}I", stream, 4 * place)
        codes[name] = [
            _code((scale * weight(index)) * v, u, q_max)
            for v, u in zip(values, rounding, strict=True)
        ]
        place += 16 * -(-len(values) // 16)
    loss = int(((index + 1) / 8 + number) * 2**24)
    return Sums(codes, weight(index), weight(index), loss, Fraction(scale))


def _code(y: float, word: int, q_max: int) -> int:
    low = math.floor(y)
    up = Fraction(word, 2**32) < Fraction(y) - low
    return max(-q_max, min(q_max, low + up))


def summed(
    indices: Sequence[int], members: int, number: int = 1, shape: tuple[int, ...] = (3, 5)
) -> Sums:
    """Return the exact sum over these members."""
    parts = [message(i, members, number, shape) for i in indices]
    return Sums(
        {name: [sum(c) for c in zip(*(p.codes[name] for p in parts), strict=True)]
         for name in parts[0].codes},
        sum(p.weight for p in parts),
        sum(p.examples for p in parts),
        sum(p.loss for p in parts),
        parts[0].scale,
    )  # fmt: skip
