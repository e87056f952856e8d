"""What a sum in the ring says, taken apart by the functions that the core and the attempt call.

The core reads section 64, checks section 32 and decodes it shard by shard; a test of a message
wants all of it at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from umbel.protocol.codec import check_sum

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from umbel.protocol.codec import Codec
    from umbel.protocol.layout import MessageLayout


class Opened(NamedTuple):
    """An unmasked total."""

    weight: int
    saturated: int
    metrics: dict[str, float | int]
    words: NDArray[np.uint32]


def opened(
    layout: MessageLayout, total: bytes | bytearray | memoryview, survivors: int, codec: Codec
) -> Opened:
    """Read a total of this layout, or say that the round is void."""
    sums = layout.read(memoryview(total)[layout.split :], survivors, codec)
    words = np.frombuffer(total, "<u4", layout.words32)
    check_sum(words, codec.bound(survivors))
    return Opened(*sums, words)


def mean(layout: MessageLayout, sums: Opened, codec: Codec) -> dict[str, NDArray[Any]]:
    """Return the weighted mean delta of each averaged array, in its shape and dtype."""
    means = {}
    for entry in layout.manifest.averaged if layout.places else ():
        flat = np.empty(entry.size, entry.numpy)
        codec.decode(sums.words[layout.places[entry.name]], sums.weight, flat)
        means[entry.name] = flat.reshape(entry.shape)
    return means
