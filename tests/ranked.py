"""Sums in worlds of ranks, beside those of the world of one."""

from __future__ import annotations

from umbel.server.core.ranked_world import RankedSum, RankedWorld
from umbel.server.core.world import World

BLOCKS = 2600
"""64-byte blocks of section 32: three shards of 1024 words' multiples, the last one short."""
SPLIT, SIZE = 64 * BLOCKS, 64 * BLOCKS + 40


class Lines(list[str]):
    """What was said."""

    def say(self, _kind: str, line: str) -> None:
        """Take a line."""
        self.append(line)


def opened(world: RankedWorld) -> RankedSum:
    total = world.open(SIZE, SPLIT)
    assert isinstance(total, RankedSum)
    return total


def fill(total: RankedSum, node: str, message: bytes) -> None:
    slot = total.slot(node)
    assert slot is not None
    slot[:] = message


def embedded(messages: list[bytes], streams: list[tuple[bytes, int]]) -> bytes:
    total = World().open(SIZE, SPLIT)
    for index, message in enumerate(messages):
        slot = total.slot(str(index))
        assert slot is not None
        slot[:] = message
        total.fold(str(index))
    total.unmask(streams)
    return bytes(total.result())
