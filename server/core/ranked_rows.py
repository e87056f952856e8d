"""Kept messages in a world of ranks: a robust rule whose work is shared like the step's.

    products   each rank, of every W-th part, the inner products of all rows: n^2 numbers
    decide     their sum, here: which rows count and how much, the same for every rank
    step       each rank, of its shard, the aggregate and the move

Messages lie in segments that the ranks map; nothing is folded. The parts depend on the vector's
length alone (rows.py), so that the sum has the same bits for any number of ranks, and a part that
a killed rank owed is made again by its successor. Rules a coordinate at a time need no products.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from . import ranked_step
from .kept import Keeping, rows_of
from .supervisor import Job
from .world import Sum
from ...protocol.errors import RoundFailed
from ...strategies.robust_rules import Decided

if TYPE_CHECKING:
    from .kept import Kept, Slot
    from .rank import Desk
    from .rows import KeptRows
    from .run_model import RunModel
    from .supervisor import Supervisor
    from .world import World
    from ..stepping import StepOrder

    Answer = tuple[dict[str, Any], bytes]
    Matrix = np.ndarray[Any, np.dtype[np.float64]]


def opened(
    world: World, supervisor: Supervisor, total_bytes: int, split: int, keeping: Keeping
) -> RankedRows:
    """Start a sum whose messages are kept in memory that the ranks can map, as `world` makes it."""
    return world.open_kept(total_bytes, split, keeping, partial(RankedRows, supervisor))


class RankedRows(Sum):
    """A sum that keeps its messages, and whose step is the ranks'."""

    def __init__(
        self,
        supervisor: Supervisor,
        world: World,
        split: int,
        total: memoryview,
        slots: list[Slot],
        kept: Kept,
    ) -> None:
        """Made by `opened`."""
        super().__init__(world, split, total, slots, kept)
        self._supervisor, self._kept = supervisor, kept

    def step(self, model: RunModel, order: StepOrder) -> bytes:
        """Freeze the sum and make the next model out of its messages; return its digest."""
        self._freeze()
        rows = self._kept.rows()
        mean: dict[str, Any] = {"rows": self._kept.named, "decided": None}
        if rows.parts:
            rows.decide(self._products(order, mean, len(rows.parts)))
        if (decided := rows.decided) is not None:
            coefficients = decided.coefficients.tolist()
            mean["decided"] = [list(decided.rows), coefficients, decided.clients]
        return ranked_step.step(self._supervisor, model, order, mean)

    def _products(self, order: StepOrder, mean: dict[str, Any], parts: int) -> list[Matrix]:
        """Return the inner products of every part, in their order."""
        manifest = order.layout.manifest.to_json().encode()
        head = {"op": "products", **mean, "order": order.described()}
        ranks, clients = self._supervisor.ranks, len(self.survivors)
        answers = self._supervisor.submit(Job(ranks, head, manifest)).wait()
        found = [np.frombuffer(body).reshape(-1, clients, clients) for _, body in answers]
        return [found[part % ranks][part // ranks] for part in range(parts)]


# -- in a rank ------------------------------------------------------------------------------


def products(desk: Desk, head: dict[str, Any], order: StepOrder) -> bytes:
    """Return the inner products of every W-th part, from this rank's number on."""
    rows = _rows(desk, head, order)
    mine = rows.parts[desk.rank :: desk.ranks]
    return b"".join(rows.products(part).tobytes() for part in mine)


def mean_of(desk: Desk, head: dict[str, Any], order: StepOrder) -> KeptRows:
    """Return the aggregate that the supervisor has decided on."""
    rows = _rows(desk, head, order)
    if (decided := head["decided"]) is not None:
        chosen, coefficients, clients = decided
        rows.decided = Decided(tuple(chosen), np.array(coefficients, np.float64), clients)
    return rows


def _rows(desk: Desk, head: dict[str, Any], order: StepOrder) -> KeptRows:
    named, robust = head["rows"], order.rule.robust
    if robust is None:
        raise RoundFailed("kept messages, and no rule for them")
    messages = [desk.segment(path, named["nbytes"]).view for path in named["paths"]]
    return rows_of(Keeping(robust, order.codec), messages, named["split"])
