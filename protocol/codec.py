"""The numbers of the ring: a signed fixed-point code with the weight inside.

For n members, a value range c and a weight cap w_cap (docs/protocol.md, section 8.1):

    b = 32 - ceil(log2 n)      bits of a value
    Q = 2^(b-1) - 1            largest code
    s = Q / (c * w_cap)        scale
    y = s * w * v              in float64, as (s * w) * v
    q = floor(y) + (u < y - floor(y)),  u a 32-bit word times 2^-32, then clamped to +-Q
    mean = sum(q) / (s * sum(w))

So E[q] = y, zero encodes to zero, and n * Q < 2^31: a sum of n codes never wraps. Sums are
modulo 2^32, two's complement. Nothing here is float32: adding an offset there biases the
rounding by several per cent. The weight multiplies before the rounding, so the server learns
the sum of the weighted values and not one weight.

The rounding is done in integers, exactly. Let R = ceil(y * 2^32). Then u < frac(y) says
U < R - floor(y) * 2^32 for the word U = u * 2^32, hence

    q = (R + 2^32 - 1 - U) >> 32

with no difference of floats and no branch. R fits 64 bits because |y| <= Q < 2^31.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from . import messages_pb2 as pb
from .errors import Refused, SettingsError, VoidRound

if TYPE_CHECKING:
    from numpy.typing import NDArray

RING_BITS = 32
MAX_MEMBERS = 1 << 20
MAX_WEIGHT_CAP = 1 << 32
"""With `MAX_MEMBERS` this keeps a sum of weights below 2^53, exact in float64."""

TILE = 1 << 15
"""Values at a time: two scratch arrays of 256 KiB stay in a core's second-level cache."""

_STEP = 4294967296.0  # 2^32, what one code is worth in R.
_ROUND_UP = (1 << 32) - 1


def headroom(members: int, q_max: int) -> None:
    """Refuse a code whose sum over all members could wrap.

    Raises:
        SettingsError: `members * q_max` is above 2^31 - 1.
    """
    if members * q_max > 2 ** (RING_BITS - 1) - 1:
        raise SettingsError("codec", "members * q_max of at most 2^31 - 1", members * q_max)


class Codec:
    """Encoder and decoder that all members of one round share; holds numbers only."""

    __slots__ = ("bits", "log_members", "members", "q_max", "scale", "value_range", "weight_cap")

    def __init__(self, members: int, value_range: float, weight_cap: int) -> None:
        """Derive the code.

        Args:
            members: n, the length of the frozen roster.
            value_range: c, the largest magnitude of a delta that is not clamped.
            weight_cap: w_cap, the largest weight; near the typical one, since the error of
                the mean grows with `weight_cap / mean weight`.

        Raises:
            SettingsError: A number is outside its range.
        """
        for name, value, most in (
            ("members", members, MAX_MEMBERS),
            ("weight_cap", weight_cap, MAX_WEIGHT_CAP),
        ):
            # Both come from a table of the wire, where a float may stand.
            if type(value) is not int or not 1 <= value <= most:
                raise SettingsError(f"codec.{name}", f"an integer in 1..{most}", value)
        if not (math.isfinite(value_range) and value_range > 0.0):
            raise SettingsError("codec.value_range", "a finite number above 0", value_range)
        self.members = members
        self.value_range = float(value_range)
        self.weight_cap = weight_cap
        self.log_members = (members - 1).bit_length()
        self.bits = RING_BITS - self.log_members
        self.q_max = 2 ** (self.bits - 1) - 1
        headroom(members, self.q_max)
        self.scale = self.q_max / (self.value_range * weight_cap)
        if not (math.isfinite(self.scale) and self.scale > 0.0):
            raise SettingsError("codec.value_range", "a range with a finite scale", value_range)

    def capped(self, weight: int) -> int:
        """Return the weight that enters the sum: at most `weight_cap`.

        Raises:
            Refused: The weight is not a positive integer.
        """
        if isinstance(weight, bool) or not isinstance(weight, int) or weight < 1:
            raise Refused(pb.REASON_TASK_FAILED, "the task's weight is no positive integer")
        return min(weight, self.weight_cap)

    def encode(
        self,
        values: NDArray[Any],
        weight: int,
        words: NDArray[np.uint32],
        rounding: NDArray[np.uint32],
    ) -> int:
        """Write the code of each value and return how many were clamped.

        Args:
            values: Deltas, shape `(d,)`, float16, bfloat16, float32 or float64.
            weight: 1..weight_cap.
            words: Output, shape `(d,)`: q modulo 2^32.
            rounding: Uniform words, shape `(d,)`, used once. May be `words` itself: each is
                read before its place is written.

        Raises:
            Refused: A value is NaN or infinite. `words` is then partly written.
            ValueError: A shape, a dtype or the weight is not as above.
        """
        _check_encode(values, words, rounding)
        if not 1 <= weight <= self.weight_cap:
            raise ValueError(f"weight lies in 1..{self.weight_cap}")
        size = min(TILE, values.size)
        y, wide = np.empty(size, np.float64), np.empty(size, np.int64)
        factor = self.scale * weight
        saturated = 0
        try:
            for start in range(0, values.size, TILE):
                part = slice(start, min(start + TILE, values.size))
                count = part.stop - start
                saturated += self._tile(
                    values[part], factor, words[part], rounding[part], y[:count], wide[:count]
                )
        finally:
            y.fill(0.0)
            wide.fill(0)
        return saturated

    def _tile(
        self,
        values: NDArray[Any],
        factor: float,
        words: NDArray[np.uint32],
        rounding: NDArray[np.uint32],
        y: NDArray[np.float64],
        wide: NDArray[np.int64],
    ) -> int:
        """Encode one tile in the scratch arrays `y` and `wide`; return the clamped count."""
        np.copyto(y, values, casting="unsafe")
        with np.errstate(over="ignore"):
            np.multiply(y, factor, out=y)
        saturated = 0
        # A NaN fails both comparisons, so one look at the extremes clears a whole tile.
        if not (y.max() <= self.q_max and y.min() >= -self.q_max):
            _refuse_non_finite(values)
            saturated = self._clamp(y, rounding)
        y *= _STEP
        np.ceil(y, out=y)
        np.copyto(wide, y, casting="unsafe")
        wide -= rounding
        wide += _ROUND_UP
        wide >>= RING_BITS
        np.copyto(words, wide, casting="unsafe")
        return saturated

    def _clamp(self, y: NDArray[np.float64], rounding: NDArray[np.uint32]) -> int:
        """Bring `y` within +-Q, where the clamped q is, and count the q that were outside.

        A y between Q and Q + 1 may still round to Q, and one between -Q - 1 and -Q to -Q;
        these are not counted. The differences below are exact where they decide.
        """
        outside = np.flatnonzero(np.abs(y) > self.q_max)
        u = rounding[outside] / _STEP
        above, below = y[outside] - self.q_max, -self.q_max - y[outside]
        np.clip(y, -self.q_max, self.q_max, out=y)
        return int(np.count_nonzero(above > u) + np.count_nonzero(below >= 1.0 - u))

    def decode(self, words: NDArray[np.uint32], total_weight: int, out: NDArray[Any]) -> None:
        """Write the weighted mean of the values: `sum(q) / (s * total_weight)`.

        Args:
            words: The unmasked sum, shape `(d,)`, modulo 2^32.
            total_weight: Sum of the survivors' weights, 1 or more.
            out: Shape `(d,)`, any float dtype; rounded once, from float64.

        Raises:
            ValueError: A shape, a dtype or the total weight is not as above.
        """
        if total_weight < 1:
            raise ValueError(f"total_weight is 1 or more, got {total_weight}")
        if words.shape != out.shape or words.ndim != 1 or not _is_float(out):
            raise ValueError(f"out is a float array of shape {words.shape}, got {out.shape}")
        signed = _signed(words)
        denominator = self.scale * total_weight
        scratch = np.empty(min(TILE, words.size), np.float64)
        for start in range(0, words.size, TILE):
            part = slice(start, min(start + TILE, words.size))
            tile = scratch[: part.stop - start]
            np.divide(signed[part], denominator, out=tile)
            np.copyto(out[part], tile, casting="unsafe")

    def bound(self, survivors: int) -> int:
        """Return the largest magnitude of a sum of so many codes: `survivors * Q`."""
        return int(survivors * self.q_max)


def check_sum(words: NDArray[np.uint32], bound: int) -> None:
    """Refuse a sum that the survivors' codes cannot have.

    Args:
        words: Of the opened sum, or of a part of it.
        bound: `Codec.bound` of the survivors.

    Raises:
        VoidRound: A word lies beyond it: masks are left in the sum.
    """
    signed = _signed(words)
    if signed.size and not (-bound <= int(signed.min()) and int(signed.max()) <= bound):
        raise VoidRound(f"masks did not cancel: a sum lies beyond {bound}, the survivors' Q")


def _signed(words: NDArray[np.uint32]) -> NDArray[np.int32]:
    """View ring words as two's complement, in their own byte order."""
    if words.dtype.kind != "u" or words.dtype.itemsize != RING_BITS // 8:
        raise ValueError(f"words are uint32, got {words.dtype}")
    return words.view(np.dtype(np.int32).newbyteorder(words.dtype.byteorder))


def _is_float(array: NDArray[Any]) -> bool:
    """Say whether float64 holds every value of the array's dtype exactly."""
    dtype = array.dtype
    return dtype.name in {"float16", "bfloat16", "float32", "float64"}


def _check_encode(
    values: NDArray[Any], words: NDArray[np.uint32], rounding: NDArray[np.uint32]
) -> None:
    """Refuse arrays that do not belong together."""
    if values.ndim != 1 or not _is_float(values):
        raise ValueError(f"values are a flat float array, got {values.dtype} {values.shape}")
    for name, array in (("words", words), ("rounding", rounding)):
        if array.shape != values.shape or array.dtype.name != "uint32":
            raise ValueError(
                f"{name} are uint32 of shape {values.shape}, got {array.dtype} {array.shape}"
            )


def _refuse_non_finite(values: NDArray[Any]) -> None:
    """Refuse NaN and infinity; a finite value that is only too large is clamped."""
    if not np.isfinite(values.astype(np.float64)).all():
        raise Refused(pb.REASON_NOT_FINITE, "the update holds NaN or infinity")
