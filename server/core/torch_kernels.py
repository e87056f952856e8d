"""The kernels of a rank by name, each beside the eager one that it must equal.

    fold      total += X^T w               compiled, or torch.addmv     one update at a time
    ringsum   total += rows mod 2^32/2^64  compiled, or tile by tile    one message at a time
    unmask    total +- key streams         threads; on a GPU Triton     a whole stream at a time

Compiled where numba is installed, the extra `[fast]`; torch does the same at three quarters of the
speed, and the first large ring sums of a process, until the compiler beside them is done. Device is
a choice per operation. Plain sums stay where their bytes arrive: a GPU behind PCIe gets them slower
than a core adds them, so only what is made on the device, a key stream, has a kernel of its own
there. torch's own operations run on either.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from . import torch_folds
from .unmask import unmask as unmask_cpu
from ...protocol import masks
from ...strategies.compiled import Compiled

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Streams = Sequence[tuple[bytes | bytearray, int]]


FOLDS = Compiled(".numba_folds", __package__)
LARGE = 1 << 18
"""Words from which on a ring sum is worth a compiler."""


class Kernel(NamedTuple):
    """One operation."""

    run: Callable[..., None]
    """The one to use; it looks at the device of its accumulator."""
    eager: Callable[..., None]
    """The reference: the same arguments, the same result, on the CPU."""


def compiled() -> Any:
    """Return numba_folds, or None where numba is not installed."""
    return FOLDS.module if FOLDS.load() else None


def fold(
    total: torch.Tensor,
    rows: torch.Tensor,
    weights: torch.Tensor,
    other: torch.Tensor | None = None,
) -> None:
    """Do what torch_folds.fold does, with its arguments."""
    fast = compiled() if total.device.type == "cpu" else None
    if fast is None:
        torch_folds.fold(total, rows, weights, other)
        return
    torch_folds.fits(total, rows, weights, other, {total.dtype})
    fast.fold(
        total.numpy(), rows.numpy(), weights.numpy(), None if other is None else other.numpy()
    )


def fold_ring(total: torch.Tensor, rows: torch.Tensor, other: torch.Tensor | None = None) -> None:
    """Do what torch_folds.fold_ring does, with its arguments."""
    fast = None
    if total.device.type == "cpu" and len(total) >= LARGE:
        FOLDS.load_beside()
        fast = FOLDS.module
    if fast is None:
        torch_folds.fold_ring(total, rows, other)
        return
    torch_folds.fits(total, rows, None, other, {torch.int32, torch.int64})
    fast.fold_ring(total.numpy(), rows.numpy(), None if other is None else other.numpy())


def unmask(total: torch.Tensor, streams: Streams, first_word: int = 0) -> None:
    """Add (+1) or subtract (-1) every key's stream to or from a shard of a ring sum, in place.

    Args:
        total: int32 words, contiguous.
        streams: (32-byte key, +1 or -1) for each mask.
        first_word: Where the shard begins in the message, a multiple of 16.
    """
    if not len(total):
        return
    if total.device.type == "cpu":
        shard = total.numpy().view(np.uint8).data
        # Its own words may end inside a block or a pair of words: the cipher does not care.
        whole = len(shard) - len(shard) % masks.BLOCK_BYTES
        unmask_cpu(shard[:whole], whole, streams, start=4 * first_word)
        rest = total[whole // 4 :]
        unmask_each(rest, streams, first_word + whole // 4)
        return
    kernel = importlib.import_module(".triton_chacha20", __package__)
    kernel.unmask(total, streams, first_word)


def unmask_each(total: torch.Tensor, streams: Streams, first_word: int = 0) -> None:
    """Do what `unmask` does with each key's stream as one array: the reference."""
    words = total.numpy()
    for key, sign in streams:
        noise: Any = np.frombuffer(masks.stream(key, 4 * len(words), 4 * first_word), "<i4")
        (np.add if sign > 0 else np.subtract)(words, noise, out=words)


KERNELS = {
    "fold": Kernel(fold, torch_folds.fold_each),
    "ringsum": Kernel(fold_ring, torch_folds.ring_each),
    "unmask": Kernel(unmask, unmask_each),
}
