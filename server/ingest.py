"""The vectors of one attempt on their way into the core: frames, slots, folds.

A member's frames go straight into a slot of the aggregation core, at their offsets; the
slot is folded when the attempt says that the whole is what its sender signed, and given
back unfolded when the member is gone. Without a free slot the member is not wanted yet; while
one waits, nobody keeps a slot that no frame comes for.
"""

from __future__ import annotations

import math
from hashlib import sha256
from typing import TYPE_CHECKING

from ..protocol.errors import PeerError
from ..protocol.frames import Assembly, Kind

if TYPE_CHECKING:
    from .core.world import World
    from .invitation import Plan


class Ingest:
    """The open uploads and the sum of one attempt."""

    def __init__(self, core: World, ctx: bytes, plan: Plan) -> None:
        """Open a sum of messages of the plan's layout; `plan.stall` is how long a slot may rest."""
        self._total = plan.layout.total_bytes
        self.sum = core.open(self._total, plan.layout.split)
        self._ctx = ctx
        self._patience = plan.stall
        self._uploads: dict[str, Assembly] = {}
        self._folded: dict[str, None] = {}
        self._heard: dict[str, float] = {}
        self._waiting: set[str] = set()

    @property
    def folded(self) -> tuple[str, ...]:
        """The nodes whose vectors are in the sum."""
        return tuple(self._folded)

    def wants(self, node: str, now: float) -> int | None:
        """Return the offset from which the node's frames are wanted; None for not now."""
        if node in self._folded:
            return None
        upload = self._upload(node, now)
        if upload is None:
            self._waiting.add(node)
            return None
        return upload.received

    @property
    def patient_until(self) -> float:
        """When the first slot has seen no frame for too long; infinity while nobody waits."""
        return min(self._heard.values(), default=math.inf) + (
            self._patience if self._waiting else math.inf
        )

    def stalled(self, now: float) -> list[str]:
        """Return the nodes whose slots have seen no frame for too long."""
        if now < self.patient_until:
            return []
        return [node for node, heard in self._heard.items() if now >= heard + self._patience]

    def accept(self, node: str, frame: bytes, now: float) -> bool:
        """Take a frame and say whether the vector is whole and not folded yet.

        Raises:
            PeerError: No slot was given to the node, or the frame is wrong.
        """
        if node in self._folded:
            return False
        upload = self._upload(node, now)
        if upload is None:
            raise PeerError(node, "sent frames without having been given a slot")
        self._heard[node] = now
        return upload.accept(frame)

    def slot(self, node: str) -> memoryview:
        """Return the bytes that the node has sent."""
        slot = self.sum.slot(node)
        if slot is None:
            raise PeerError(node, "holds no slot")
        return slot

    def digest(self, node: str) -> bytes:
        """Return SHA-256 of what lies in the node's slot."""
        return sha256(self.slot(node)).digest()

    def fold(self, node: str) -> None:
        """Add the node's vector to the sum, once, and free its slot."""
        self.sum.fold(node)
        self._forget(node)
        self._folded[node] = None

    def discard(self, node: str) -> None:
        """Free the slot of a node that is gone; a folded vector stays in the sum."""
        if node not in self._folded:
            self._forget(node)
            self.sum.discard(node)

    def close(self) -> None:
        """Zero the slots and give the buffers back."""
        self._uploads.clear()
        self._heard.clear()
        self.sum.close()

    def _forget(self, node: str) -> None:
        self._uploads.pop(node, None)
        self._heard.pop(node, None)
        self._waiting.discard(node)

    def _upload(self, node: str, now: float) -> Assembly | None:
        if node not in self._uploads:
            slot = self.sum.slot(node)
            if slot is None:
                return None
            self._uploads[node] = Assembly(Kind.UPLOAD, self._ctx, self._total, node, slot)
            self._heard[node] = now
            self._waiting.discard(node)
        return self._uploads[node]
