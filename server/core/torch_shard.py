"""What a rank does with its shard of a sum: fold a batch, take masks off, look at its range.

    fold     accumulator b = accumulator b-1 + the rows of the batch's slots     mod 2^32
    unmask   accumulator b = accumulator b-1 +- key streams
    check    say whether every word, as int32, lies within +-bound

Both that write are done by `_once`: into the accumulator that does not count yet, and then the
commit word is set (shared_sum.py). A command that comes again, because a rank was killed before it
could answer, finds its commit word set and is answered; or it is done anew from the accumulator
that counts. Kernels are those of torch_kernels.py, with one OpenMP thread. Where there is a GPU,
rank r takes number r for what is made there, key streams: the shard's sum goes there and back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from . import torch_kernels
from .shared_sum import SharedSum
from ...protocol.entropy import wipe
from ...protocol.errors import StateError
from ...protocol.masks import KEY_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from numpy.typing import NDArray

    from .rank import Desk
    from .torch_kernels import Streams

    Answer = tuple[dict[str, Any], bytes]

torch.set_num_threads(1)


def fold(desk: Desk, head: dict[str, Any], _payload: bytearray) -> Answer:
    """Add the rows of the slots that the batch names."""
    about = SharedSum(**head["sum"])

    def work(old: NDArray[Any], new: NDArray[Any]) -> None:
        rows = about.rows(desk.segment(about.ring, about.ring_bytes), desk.rank)
        source, target = torch.from_numpy(old), torch.from_numpy(new)
        for first, end in _runs(head["slots"]):
            into = target if source is not target else None
            torch_kernels.fold_ring(source, torch.from_numpy(rows[first:end]), into)
            source = target

    _once(desk, about, head["batch"], work)
    return {}, b""


def unmask(desk: Desk, head: dict[str, Any], payload: bytearray) -> Answer:
    """Add or subtract the stream of each key in the payload, by its sign."""
    about = SharedSum(**head["sum"])
    low, _ = about.shard(desk.rank)

    def work(old: NDArray[Any], new: NDArray[Any]) -> None:
        new[:] = old
        keys = [payload[at : at + KEY_BYTES] for at in range(0, len(payload), KEY_BYTES)]
        streams = list(zip(keys, head["signs"], strict=True))
        try:
            unmask_on(device_of(desk.rank), torch.from_numpy(new), streams, low)
        finally:
            wipe(*keys)

    try:
        _once(desk, about, head["batch"], work)
    finally:
        wipe(payload)
    return {}, b""


def check(desk: Desk, head: dict[str, Any], _payload: bytearray) -> Answer:
    """Say whether the shard lies within the bound."""
    about, bound = SharedSum(**head["sum"]), head["bound"]
    words = about.mine(desk.segment(about.pair, about.pair_bytes), head["batch"], desk.rank)
    fits = not len(words) or (-bound <= int(words.min()) and int(words.max()) <= bound)
    return {"fits": fits}, b""


def unmask_on(device: torch.device, shard: torch.Tensor, streams: Streams, first_word: int) -> None:
    """Take masks off a shard in memory, on any device: 4 bytes a word go there and back."""
    there = shard.to(device)
    torch_kernels.unmask(there, streams, first_word)
    if there is not shard:
        shard.copy_(there)


def device_of(rank: int) -> torch.device:
    """Return the GPU of a rank, or the CPU where there is none."""
    count = torch.cuda.device_count()
    return torch.device("cuda", rank % count) if count else torch.device("cpu")


def _once(
    desk: Desk,
    about: SharedSum,
    batch: int,
    work: Callable[[NDArray[Any], NDArray[Any]], None],
) -> None:
    """Do a batch's work on this rank's shard unless it is committed, and commit it."""
    pair = desk.segment(about.pair, about.pair_bytes)
    commits = about.commits(pair)
    done = int(commits[desk.rank])
    if done == batch:
        return
    if done != batch - 1:
        raise StateError(f"rank {desk.rank}", f"batch {batch - 1} committed", done)
    old, new = (about.mine(pair, number, desk.rank) for number in (batch - 1, batch))
    if len(new):
        work(old, new)
    commits[desk.rank] = np.uint64(batch)


def _runs(slots: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Return (first, end) of each run of neighbours: integer sums have no order."""
    first = end = -1
    for slot in sorted(slots):
        if slot != end and end >= 0:
            yield first, end
        if slot != end:
            first = slot
        end = slot + 1
    if end >= 0:
        yield first, end


COMMANDS: dict[str, Callable[[Desk, dict[str, Any], bytearray], Answer]] = {
    "fold": fold,
    "unmask": unmask,
    "check": check,
}
