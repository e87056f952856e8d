"""The folds: how K updates enter a shard's accumulator, in every encoding an update may have.

    fold           total += X^T w           rows of floats, torch.addmv over batches of K
    fold_cast      the same                 rows of bfloat16, float16 or int8, widened in tiles
    fold_ring      total += sum of rows     integers mod 2^32 (int32) or mod 2^64 (int64)
    fold_sparse    total[i] += w * v        top-k updates, indices and values
    fold_each, ring_each                    the eager reference of both, one update at a time

A fold is bound by memory traffic. One update at a time moves 12 bytes an element (accumulator in,
update in, accumulator out); K at once move 4 + 8/K. The other folds go tile by tile: one tile of
the accumulator stays in the core's cache while the rows are added to it, and moves once.

Every buffer is the caller's. Rows may be views of a wider ring, as a shard's columns are: only a
row's own elements must be adjacent. Nothing is allocated by the length of a shard. With
`other` the result goes into the second accumulator of a pair and `total` stays as it was, so that a
rank killed in the middle repeats the batch. Integers in torch wrap around; uint32 data is viewed as
int32, for torch has no sum of unsigned words.

Not here: weights' meaning and the last division (the caller's), exact sums (torch_exact.py), the
compiled form of the first two (numba_folds.py), the world of one that serves today (world.py).
"""

from __future__ import annotations

import torch

from ...protocol.errors import BadUpdate, SettingsError

BATCH = 4
"""Rows of one addmv (docs/decisions/0053-folds-are-compiled.md)."""
TILE = 1 << 16
"""Columns that are widened at once: 1 MiB for a batch of rows, which stays in the cache."""
RING_TILE = 1 << 18
"""Columns of a ring sum that are added at once: 1 MiB of int32."""


def fold(
    total: torch.Tensor,
    rows: torch.Tensor,
    weights: torch.Tensor,
    other: torch.Tensor | None = None,
) -> None:
    """Add `rows` times `weights` to `total`, or write that sum into `other`.

    Args:
        total: Accumulator, float32 or float64, shape (m,).
        rows: Updates of the same dtype, shape (k, m).
        weights: One for each row, the same dtype, shape (k,).
        other: The other accumulator of a pair; None folds in place.

    Raises:
        SettingsError: Shapes or dtypes do not fit.
    """
    fits(total, rows, weights, other, {total.dtype})
    source, target = total, total if other is None else other
    for first in range(0, len(rows), BATCH):
        batch = rows[first : first + BATCH]
        torch.addmv(source, batch.t(), weights[first : first + BATCH], out=target)
        source = target
    if source is not target:
        target.copy_(source)


def fold_each(
    total: torch.Tensor,
    rows: torch.Tensor,
    weights: torch.Tensor,
    other: torch.Tensor | None = None,
) -> None:
    """Do what `fold` does one row at a time: the reference, and the fall-back."""
    fits(total, rows, weights, other, {total.dtype})
    target = total if other is None else other.copy_(total)
    for row, weight in zip(rows, weights.tolist(), strict=True):
        target.add_(row, alpha=weight)


def fold_cast(
    total: torch.Tensor,
    rows: torch.Tensor,
    weights: torch.Tensor,
    tile: torch.Tensor,
    other: torch.Tensor | None = None,
) -> None:
    """Do what `fold` does for rows of a narrower dtype; never a whole row is widened.

    Args:
        total: Accumulator, float32, shape (m,).
        rows: Updates in bfloat16, float16 or int8, shape (k, m).
        weights: One for each row, float32; a row's int8 scale is a factor of its weight.
        tile: What the rows are widened in, float32, contiguous, `tile_shape(k)` or larger.
        other: The other accumulator of a pair; None folds in place.

    Raises:
        SettingsError: Shapes or dtypes do not fit.
    """
    fits(total, rows, weights, other, {torch.bfloat16, torch.float16, torch.int8})
    if tile.dtype != total.dtype or tile.stride()[1:] != (1,) or not tile.numel():
        raise SettingsError("fold tile", f"(rows, columns) of {total.dtype}", _said(tile))
    target = total if other is None else other
    depth, width = tile.shape
    for low in range(0, len(total), width):
        source, part = total[low : low + width], target[low : low + width]
        for first in range(0, len(rows), depth):
            narrow = rows[first : first + depth, low : low + width]
            wide = tile[: len(narrow), : len(part)]
            wide.copy_(narrow)
            torch.addmv(source, wide.t(), weights[first : first + depth], out=part)
            source = part
    if not len(rows):
        target.copy_(total)


def tile_shape(rows: int) -> tuple[int, int]:
    """Return the shape of the tile in which `fold_cast` is fastest for `rows` at a time."""
    return min(max(rows, 1), BATCH), TILE


def fold_ring(total: torch.Tensor, rows: torch.Tensor, other: torch.Tensor | None = None) -> None:
    """Add integer `rows` to `total` modulo 2^32 or 2^64, or write that sum into `other`.

    Args:
        total: Accumulator, int32 or int64, shape (m,).
        rows: Messages, or a shard's columns of them, the same dtype, shape (k, m).
        other: The other accumulator of a pair; None folds in place.

    Raises:
        SettingsError: Shapes or dtypes do not fit.
    """
    fits(total, rows, None, other, {torch.int32, torch.int64})
    target = total if other is None else other
    # A GPU has no such cache, and each operation on it is a launch.
    width = RING_TILE if total.device.type == "cpu" else max(len(total), 1)
    for low in range(0, len(total), width):
        part = target[low : low + width]
        rest = rows[:, low : low + width].unbind()
        if other is not None:
            source = total[low : low + width]
            if not rest:
                part.copy_(source)
                continue
            torch.add(source, rest[0], out=part)
            rest = rest[1:]
        for row in rest:
            part.add_(row)


def ring_each(total: torch.Tensor, rows: torch.Tensor, other: torch.Tensor | None = None) -> None:
    """Do what `fold_ring` does one message at a time: the reference, and the fall-back."""
    fits(total, rows, None, other, {torch.int32, torch.int64})
    target = total if other is None else other.copy_(total)
    for row in rows:
        target.add_(row)


def check_sparse(peer: str, indices: torch.Tensor, values: torch.Tensor, numel: int) -> None:
    """Refuse a top-k update that could not be folded shard by shard, at the door and once.

    Raises:
        BadUpdate: Not int32 or int64 indices with as many values, an index outside
            [0, numel), or indices that do not rise: out of order, or one twice.
    """
    if indices.dtype not in {torch.int32, torch.int64} or indices.dim() != 1:
        raise BadUpdate(peer, "sparse indices", "one row of int32 or int64", _said(indices))
    if values.shape != indices.shape:
        raise BadUpdate(peer, "sparse values", f"{len(indices)} of them", tuple(values.shape))
    if not len(indices):
        return
    if not bool((indices[1:] > indices[:-1]).all()):
        raise BadUpdate(peer, "sparse indices", "each above the one before", "no such order")
    first, last = int(indices[0]), int(indices[-1])
    if first < 0 or last >= numel:
        raise BadUpdate(peer, "sparse indices", f"0 to {numel - 1}", f"{first} to {last}")


def cut_sparse(indices: torch.Tensor, bounds: list[tuple[int, int]]) -> list[slice]:
    """Return which of the rising `indices` belong to each shard of `bounds`."""
    ends = torch.tensor([bound for pair in bounds for bound in pair], dtype=indices.dtype)
    places = torch.searchsorted(indices, ends).tolist()
    return [slice(*pair) for pair in zip(places[::2], places[1::2], strict=True)]


def fold_sparse(
    total: torch.Tensor,
    low: int,
    indices: torch.Tensor,
    values: torch.Tensor,
    weight: float,
    scratch: torch.Tensor,
) -> None:
    """Add `weight` times a shard's part of a checked top-k update to its accumulator, in place.

    A pair of accumulators is no gain here: a sparse batch costs less than copying one.

    Args:
        total: The shard's accumulator, shape (m,), whose first word is word `low` of the vector.
        low: First word of the shard.
        indices: The part of the update's indices that `cut_sparse` gives, so in [low, low + m).
        values: As many values, in the dtype of `total`.
        weight: The update's weight.
        scratch: Of the dtype of the indices, at least as many.

    Raises:
        SettingsError: A buffer does not fit.
    """
    if values.dtype != total.dtype or len(values) != len(indices):
        raise SettingsError("fold values", f"{len(indices)} of {total.dtype}", _said(values))
    if scratch.dtype != indices.dtype or len(scratch) < len(indices):
        raise SettingsError(
            "fold scratch", f"{len(indices)} or more of {indices.dtype}", _said(scratch)
        )
    local = torch.sub(indices, low, out=scratch[: len(indices)])
    total.index_add_(0, local, values, alpha=weight)


def words(buffer: bytearray | memoryview, split: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a message's two sections as tensors over its own bytes: int32 and int64 words.

    `split` is where the second section begins, a multiple of 64 (docs/protocol.md, section 8.2).
    """
    view = memoryview(buffer).cast("B")
    empty = torch.empty(0, dtype=torch.int32), torch.empty(0, dtype=torch.int64)
    low = torch.frombuffer(view[:split], dtype=torch.int32) if split else empty[0]
    rest = len(view) > split
    return low, torch.frombuffer(view[split:], dtype=torch.int64) if rest else empty[1]


def fits(
    total: torch.Tensor,
    rows: torch.Tensor,
    weights: torch.Tensor | None,
    other: torch.Tensor | None,
    dtypes: set[torch.dtype],
) -> None:
    """Refuse buffers that do not belong together, before any is written.

    Raises:
        SettingsError: A shape or dtype is another than that of the rows or the accumulator.
    """
    if rows.dtype not in dtypes or rows.shape != (len(rows), len(total)):
        names = " or ".join(sorted(map(str, dtypes)))
        raise SettingsError("fold rows", f"(k, {len(total)}) of {names}", _said(rows))
    if weights is None and total.dtype != rows.dtype:
        raise SettingsError("fold total", f"{rows.dtype}", _said(total))
    if weights is not None and (weights.dtype != total.dtype or weights.shape != rows.shape[:1]):
        raise SettingsError("fold weights", f"{len(rows)} of {total.dtype}", _said(weights))
    if other is not None and (other.dtype != total.dtype or other.shape != total.shape):
        raise SettingsError("fold other", f"{len(total)} of {total.dtype}", _said(other))


def _said(tensor: torch.Tensor) -> str:
    return f"{tuple(tensor.shape)} of {tensor.dtype}"
