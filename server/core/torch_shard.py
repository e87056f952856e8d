"""What a rank does with its shard of a sum: fold a batch, take masks off, make the server step.

    fold     accumulator b = accumulator b-1 + the rows of the batch's slots     mod 2^32
    wipe     zeros into the slots of a frozen sum, and into the accumulator that does not count
    unmask   accumulator b = accumulator b-1 +- key streams
    check    refuse a word that, as int32, lies beyond +-bound
    products of a robust rule's messages, the inner products over some parts   ranked_rows.py
    step     the next model and its moments, moved in place, from the words         stepping.py
    leaves   SHA-256 of the next model's leaves

`fold` and `unmask` are done by `_once`: into the accumulator that does not count yet, and then the
commit word is set (shared_sum.py). A command that comes again, because a rank was killed before it
could answer, finds its commit word set and is answered; or it is done anew from the accumulator
that counts. Kernels are those of torch_kernels.py, with one OpenMP thread. Where there is a GPU,
rank r takes number r for what is made there, key streams: the shard's sum goes there and back.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from . import ranked_rows, torch_kernels
from .shards import shards
from .shared_sum import SharedSum
from .. import stepping
from ...protocol.codec import check_sum
from ...protocol.digest import LEAF, leaf_hashes
from ...protocol.entropy import wipe
from ...protocol.errors import StateError
from ...protocol.manifest import Manifest
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


def wipe_slots(desk: Desk, head: dict[str, Any], _payload: bytearray) -> Answer:
    """Zero the rank's columns of what the batches have left behind."""
    about = SharedSum(**head["sum"])
    rows = about.rows(desk.segment(about.ring, about.ring_bytes), desk.rank)
    for place in head["slots"]:
        rows[place] = 0
    pair = desk.segment(about.pair, about.pair_bytes)
    about.mine(pair, head["batch"] + 1, desk.rank)[:] = 0
    return {}, b""


def unmask(desk: Desk, head: dict[str, Any], payload: bytearray) -> Answer:
    """Add or subtract the stream of each key in the payload, by its sign."""
    about = SharedSum(**head["sum"])
    low, _ = about.numbered(desk.rank)

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
    check_sum(words_of(desk, head), head["bound"])
    return {}, b""


def products(desk: Desk, head: dict[str, Any], payload: bytearray) -> Answer:
    """Return what a robust rule needs of this rank's parts of the messages."""
    manifest = Manifest.from_json(bytes(payload), "supervisor")
    order = stepping.order_of(head["order"], manifest, "supervisor")
    return {}, ranked_rows.products(desk, head, order)


def step(desk: Desk, head: dict[str, Any], payload: bytearray) -> Answer:
    """Move the shard of the model, and of its moments, by the shard of the mean; not twice."""
    manifest = Manifest.from_json(bytes(payload), "supervisor")
    order = stepping.order_of(head["order"], manifest, "supervisor")

    def whole(path: str) -> memoryview:
        return desk.segment(path, head["nbytes"]).view[: manifest.total_bytes]

    moments = {name: whole(path) for name, path in head["moments"].items()}
    mean: stepping.Mean
    if "rows" in head:
        low, high = shards(order.layout.words32, desk.ranks)[desk.rank]
        mean = ranked_rows.mean_of(desk, head, order)
    else:
        low, high = SharedSum(**head["sum"]).numbered(desk.rank)
        mean = stepping.SumMean(words_of(desk, head), low, order)
    stepping.move_by(mean, low, high, order, whole(head["old"]), whole(head["new"]), moments)
    return {}, b""


def leaves(desk: Desk, head: dict[str, Any], _payload: bytearray) -> Answer:
    """Return the hashes of this rank's leaves of a model: of n leaves as many as another's."""
    model = desk.segment(head["path"], head["nbytes"]).view[: head["total"]]
    count = -(-head["total"] // LEAF)
    first, end = (count * rank // desk.ranks * LEAF for rank in (desk.rank, desk.rank + 1))
    return {}, b"".join(leaf_hashes(model[first:end]))


def words_of(desk: Desk, head: dict[str, Any]) -> NDArray[np.uint32]:
    """Return the words of the shard in the sum that counts."""
    about = SharedSum(**head["sum"])
    pair = desk.segment(about.pair, about.pair_bytes)
    return about.mine(pair, head["batch"], desk.rank).view("<u4")


def unmask_on(device: torch.device, shard: torch.Tensor, streams: Streams, first_word: int) -> None:
    """Take masks off a shard in memory, on any device: 4 bytes a word go there and back."""
    there = shard.to(device)
    torch_kernels.unmask(there, streams, first_word)
    if there is not shard:
        shard.copy_(there)


def device_of(rank: int) -> torch.device:
    """Return the GPU of a rank, or the CPU where there is none, or no Triton to use it."""
    count = torch.cuda.device_count() if find_spec("triton") else 0
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
    "wipe": wipe_slots,
    "unmask": unmask,
    "check": check,
    "products": products,
    "step": step,
    "leaves": leaves,
}
