"""`exact`: a weighted sum whose bits depend on nothing but the updates.

    q_i = round(x_i * w * 2^bits)     each product once in float64, rounded half to even
    total += q_i                      int64

Addition of integers is associative, which that of floats is not: the same bits for any order of
arrival, any batches, any shards, and any device. The price is one float64 product an element and
an accumulator of 8 bytes; values below 2^-bits of weight 1 are rounded away.

`bits` is chosen so that no sum can overflow: bits_for(bound) with bound >= sum of w * max|x|. An
update that breaks the bound is refused before the accumulator is touched.
"""

from __future__ import annotations

import math

import torch

from ...protocol.errors import BadUpdate, SettingsError

TILE = 1 << 16
_CAPACITY = 62
"""A sum stays within 2^62: a bit of an int64 is left for the halves that rounding adds."""
_MOST = 256


def bits_for(bound: float) -> int:
    """Return the most fractional bits at which sums up to `bound` in magnitude fit.

    Raises:
        SettingsError: The bound is not a finite number above zero, or beyond 2^62.
    """
    if not (math.isfinite(bound) and 0 < bound <= 2.0**_CAPACITY):
        raise SettingsError("exact bound", "a number above 0 and up to 2^62", bound)
    _, exponent = math.frexp(math.nextafter(bound, 0.0))  # the least with bound <= 2^exponent
    return min(_CAPACITY - exponent, _MOST)


def tiles() -> tuple[torch.Tensor, torch.Tensor]:
    """Return the two tile buffers that a fold works in: 1 MiB, allocated once a rank."""
    return torch.empty(TILE, dtype=torch.float64), torch.empty(TILE, dtype=torch.int64)


def check_exact(peer: str, row: torch.Tensor, weight: float, limit: float) -> None:
    """Refuse an update that is not finite, or larger than its share of the bound.

    Args:
        peer: Whose update it is.
        row: The whole update, or a shard of it, in any float dtype.
        weight: Its weight.
        limit: What weight * max|x| may reach; the limits of all updates sum to the bound.

    Raises:
        BadUpdate: It is larger, or holds a NaN.
    """
    if not row.numel():
        return
    low, high = (float(value) for value in torch.aminmax(row))
    largest = abs(weight) * max(abs(low), abs(high))
    if not largest <= limit:  # a NaN is not
        raise BadUpdate(peer, "magnitude times weight", f"at most {limit:g}", f"{largest:g}")


def fold_exact(
    total: torch.Tensor,
    row: torch.Tensor,
    weight: float,
    bits: int,
    work: tuple[torch.Tensor, torch.Tensor],
) -> None:
    """Add round(row * weight * 2^bits) to an integer accumulator, in place.

    Args:
        total: The shard's accumulator, int64, shape (m,).
        row: A checked update's columns, float32, float64 or narrower, shape (m,).
        weight: The update's weight.
        bits: Fractional bits, the same for every update of the sum.
        work: What `tiles` gives.

    Raises:
        SettingsError: Shapes or dtypes do not fit.
    """
    if total.dtype != torch.int64 or row.shape != total.shape or not row.dtype.is_floating_point:
        raise SettingsError("exact fold", "int64 sums and as many floats", (total.dtype, row.dtype))
    scale = math.ldexp(1.0, bits)
    for low in range(0, len(total), TILE):
        part = total[low : low + TILE]
        wide, whole = work[0][: len(part)], work[1][: len(part)]
        wide.copy_(row[low : low + TILE])
        # Two products: the first rounds, the second is by a power of two and does not.
        wide.mul_(weight).mul_(scale).round_()
        part.add_(whole.copy_(wide))


def mean_exact(
    total: torch.Tensor,
    weight: float,
    bits: int,
    mean: torch.Tensor,
    work: tuple[torch.Tensor, torch.Tensor],
) -> None:
    """Write total / (weight * 2^bits) into `mean`, a float tensor of the same length.

    Raises:
        SettingsError: The weight is not above zero, or the lengths differ.
    """
    if not weight > 0 or mean.shape != total.shape:
        raise SettingsError("exact mean", f"weight above 0, {len(total)} values", weight)
    scale = math.ldexp(1.0, -bits)
    for low in range(0, len(total), TILE):
        part = total[low : low + TILE]
        wide = work[0][: len(part)].copy_(part)
        mean[low : low + TILE].copy_(wide.mul_(scale).div_(weight))
