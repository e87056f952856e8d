"""What memory the server takes in a run, term by term, under the names by which the core tells it.

With m bytes of a message (the model in ring words, and a few numbers), b of a model, n members:

| term | bytes | |
|---|---|---|
| accumulators | m; with ranks 2 m | a plain or secure sum; a robust rule keeps the numbers only |
| slots | S m | S = 4, with ranks 8 (server/core_cli.py): uploads in flight |
| messages | n m | a robust rule that looks at every update, in place of slots |
| lists | (8 k + 8) b / 4 | a trimmed mean that streams: 2 k words and a float64 for each |
| model, next model | b each | the next one while it is stepped |
| moment NAME | b each | of the server step: one or two |
| shares | (81 + 3 * 32) n k | masks: what the members of n neighbourhoods of k send each other |

Slots are given up before the next model is made, so the peak of a server without ranks is the sum
less the smaller of the two. What the processes hold before a job is not in it, nor what gRPC has on
its way: up to 50 MiB each (tests/test_core_memory.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ...server.core.run_model import block_bytes
from ...server.core.shared_sum import SharedSum
from ...server.core_cli import RANKED_SLOTS, SLOTS

if TYPE_CHECKING:
    from ...protocol.graph import Parameters
    from ...protocol.layout import MessageLayout
    from ...strategies.robust_rules import Robust
    from ...strategies.server_rules import Rule

_SEALED = 81 + 3 * 32
"""Bytes of a blob, its two hashes and the share that opens it."""


class ServerMemory(NamedTuple):
    """Bytes by name, and the most that is there at once."""

    terms: dict[str, int]
    peak: int


def server_memory(
    layout: MessageLayout,
    rule: Rule,
    members: int,
    graph: Parameters | None = None,
    ranks: int = 0,
) -> ServerMemory:
    """Return what a round takes.

    Args:
        layout: Of a member's message.
        rule: The server step.
        members: The most that a round may have.
        graph: Of their masks; None in a plain run.
        ranks: Processes that add up beside the service; 0: none.
    """
    sums = _sums(layout, rule.robust, members, ranks)
    block = block_bytes(layout.manifest)
    models = {"model": block, "next model": block}
    models |= {f"moment {name}": block for name in rule.moments}
    shares = {} if graph is None else {"shares": _SEALED * graph.n * graph.k}
    terms = {**sums, **models, **shares}
    ended = 0 if ranks else min(terms.get("slots", 0), terms["next model"])
    return ServerMemory(terms, sum(terms.values()) - ended)


def _sums(layout: MessageLayout, robust: Robust | None, members: int, ranks: int) -> dict[str, int]:
    """Return what the sum itself takes, as `Sum.memory` tells it (server/core/world.py)."""
    total, split = layout.total_bytes, layout.split
    slots = RANKED_SLOTS if ranks else SLOTS
    if robust is None and not ranks:
        return {"accumulators": total, "slots": slots * total}
    if robust is None:
        shared = SharedSum(total, split, slots, ranks)
        return {"accumulators": shared.pair_bytes, "slots": shared.ring_bytes}
    numbers = {"accumulators": total - split}
    if robust.streams(members):
        lists = (2 * 4 * robust.cut_of(members) + 8) * (split // 4)
        return {**numbers, "lists": lists, "slots": slots * total}
    return {**numbers, "messages": members * total}
