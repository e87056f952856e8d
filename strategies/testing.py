"""How the server's own examples are split, and how what was found on the parts becomes one result.

    part length  = 512 * ceil(examples / (512 * 64))     so at most 64 parts, the last may be short
    count        = sum of the parts' counts              (integers)
    sum          = math.fsum of the parts' sums          (exact, then rounded once)
    mean         = sum / examples; `correct` becomes `accuracy`

The parts depend on the number of examples alone, and an exact sum on no order: so the result has
the same bits for any number of processes, and in one process (trainer.py) too. 512 rows are what
torch_task.py takes in one batch.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ROWS = 512
MOST = 64


def parts(examples: int) -> list[range]:
    """Return the rows of each part, in order; one part at least."""
    length = ROWS * max(1, -(-examples // (ROWS * MOST)))
    starts = range(0, max(1, examples), length)
    return [range(start, min(start + length, examples)) for start in starts]


def shares(count: int, hands: int) -> list[range]:
    """Return which of `count` parts each of `hands` takes: runs that differ by one part at most."""
    return [range(i * count // hands, (i + 1) * count // hands) for i in range(hands)]


def total(found: Sequence[Mapping[str, int | float]]) -> dict[str, int | float]:
    """Return the sums and counts over all parts, each of which has the same names."""
    added: dict[str, int | float] = {}
    for name in found[0]:
        values = [of[name] for of in found]
        counts = all(isinstance(value, int) for value in values)
        added[name] = sum(values) if counts else math.fsum(values)
    return added


def means(sums: Mapping[str, int | float]) -> dict[str, float]:
    """Return every sum divided by `examples`, which must not be 0."""
    return {
        "accuracy" if name == "correct" else name: value / sums["examples"]
        for name, value in sums.items()
        if name != "examples"
    }
