"""How many processes, or accelerators, a run's server needs so that its rounds do not wait for it.

    work     = b used / fold + 4 d streams / unmask          seconds of one process in a round
    streams  = n + k lost                                    masks off: n self, k pair each
    ranks    = ceil(work / (SHARE * p50 of a round))

`b` are the bytes of a message, `d` the numbers of the model. The rates are bytes a second of one
core, the least that `umbel bench` has recorded for it on a quiet machine (benchmarks/results); a
pool's own `fold` stands above them. What a GPU adds up comes over PCIe, at 50e9 (the fifth
generation's 16 lanes, less a tenth): no faster than a few cores. It expands masks at 1e12, which is
an estimate.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from ...strategies.robust_rules import RULES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..fleet.declared import Pool
    from ...protocol.graph import Parameters
    from ...strategies.robust_rules import Robust

SHARE = 0.1
"""Of a round's time that the server's arithmetic may take."""
FOLD, UNMASK = 7.7e9, 2.1e9
"""Bench `fold`, ring/ranks=1, and bench `ranks`, unmask/ranks=1."""
BY_COLUMN, BY_DISTANCE, STREAMED = 7.5e9, 4.0e9, 2.7e9
"""Bench `robust`: median and trimmed mean, multi-krum, trimmed mean of a stream, n = 32."""
GPU_FOLD, GPU_UNMASK = 50e9, 1e12


class Arithmetic(NamedTuple):
    """What the server does in a round."""

    folded: float
    """Bytes of the updates."""
    masks: float
    """Bytes of the streams that come off."""
    robust: Robust | None
    members: int

    def seconds(self, pool: Pool | None) -> float:
        """Return how long one core, or one of a pool, is at it."""
        gpu = pool is not None and pool.kind == "gpu"
        fold, unmask = (GPU_FOLD, GPU_UNMASK) if gpu else (self._core_rate(), UNMASK)
        if pool is not None and pool.fold is not None:
            fold = pool.fold
        return self.folded / fold + self.masks / unmask

    def _core_rate(self) -> float:
        if self.robust is None:
            return FOLD
        if RULES[self.robust.rule].inner_products:
            return BY_DISTANCE
        return STREAMED if self.robust.streams(self.members) else BY_COLUMN


class Ranks(NamedTuple):
    """How many are needed, of which pool, and what that costs an hour."""

    needed: int
    pool: str | None
    hourly: float
    lines: tuple[str, ...] = ()
    """A warning where a pool has too few."""


def masks_bytes(parameters: int, graph: Parameters | None, lost: float) -> float:
    """Return the bytes of the masks that come off one sum of a roster that loses some members."""
    if graph is None:
        return 0.0
    return 4.0 * parameters * (graph.n + graph.k * lost)


def ranks(work: Arithmetic, seconds: float, pools: Mapping[str, Pool]) -> Ranks:
    """Return what is needed for rounds of so many seconds: of the cheapest pool that has enough."""
    allowed = SHARE * seconds
    if not math.isfinite(seconds):
        return Ranks(1, None, 0.0)
    if not pools:
        return Ranks(_needed(work.seconds(None), allowed), None, 0.0)
    found = []
    for name, pool in pools.items():
        needed = _needed(work.seconds(pool), allowed)
        free = math.floor(pool.count * (1 - pool.reserve) + 1e-9)
        found.append((needed > free, needed * pool.hourly, needed, name, free))
    short, hourly, needed, name, free = min(found)
    lines: tuple[str, ...] = ()
    if short:
        lines = (
            f"pool {name}: {needed} would keep the server's arithmetic below {SHARE:.0%} of a "
            f"round, and {free} are free",
        )
        needed, hourly = max(free, 1), max(free, 1) * pools[name].hourly
    return Ranks(needed, name, hourly, lines)


def _needed(work: float, allowed: float) -> int:
    return max(1, math.ceil(work / allowed)) if allowed > 0 else 1
