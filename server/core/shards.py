"""Who owns which words of a flat vector: the bounds of the shards of W ranks.

    shard r = [r * per, (r + 1) * per) clipped to d,   per = ceil(d / (W * A)) * A,   A = 1024 words

Bounds at multiples of 1024 words are multiples of a ChaCha20 block (16 words) and of a vector
register, so a float fold has the same bits in any world: a column is computed by the same kernel
wherever the vector was cut. With many ranks and a small vector the last shards are empty.

Not here: what is done with a shard (torch_folds.py, torch_step.py, unmask.py).
"""

from __future__ import annotations

from ...protocol.errors import SettingsError

ALIGNMENT = 1024
"""Words; with 4 bytes a word a page of memory."""


def shards(numel: int, world: int) -> list[tuple[int, int]]:
    """Return (first word, end word) of the shard of each of `world` ranks.

    The shards lie one after another and together are [0, numel).

    Raises:
        SettingsError: A negative length or a world of none.
    """
    if numel < 0 or world < 1:
        raise SettingsError("core.shards", "0 or more words, 1 or more ranks", (numel, world))
    per = -(-numel // (world * ALIGNMENT)) * ALIGNMENT
    return [(min(rank * per, numel), min((rank + 1) * per, numel)) for rank in range(world)]
