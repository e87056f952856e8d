"""The vectors of one attempt on their way into the core: frames, slots, folds.

A member's frames go straight into a slot of the aggregation core, at their offsets; the
slot is folded when the attempt says that the whole is what its sender signed, and given
back unfolded when the member is gone. Without a free slot the member is not wanted yet.
"""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING

from ..protocol.errors import PeerError
from ..protocol.frames import Assembly, Kind

if TYPE_CHECKING:
    from .core.world import World


class Ingest:
    """The open uploads and the sum of one attempt."""

    def __init__(self, core: World, ctx: bytes, total: int, split: int) -> None:
        """Open a sum of messages of `total` bytes, the first `split` in 32-bit words."""
        self.sum = core.open(total, split)
        self._ctx = ctx
        self._total = total
        self._uploads: dict[str, Assembly] = {}
        self._folded: dict[str, None] = {}

    @property
    def folded(self) -> tuple[str, ...]:
        """The nodes whose vectors are in the sum."""
        return tuple(self._folded)

    def wants(self, node: str) -> int | None:
        """Return the offset from which the node's frames are wanted; None for not now."""
        if node in self._folded:
            return None
        upload = self._upload(node)
        return None if upload is None else upload.received

    def accept(self, node: str, frame: bytes) -> bool:
        """Take a frame and say whether the vector is whole and not folded yet.

        Raises:
            PeerError: No slot was given to the node, or the frame is wrong.
        """
        if node in self._folded:
            return False
        upload = self._upload(node)
        if upload is None:
            raise PeerError(node, "sent frames without having been given a slot")
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
        self._uploads.pop(node, None)
        self._folded[node] = None

    def discard(self, node: str) -> None:
        """Free the slot of a node that is gone; a folded vector stays in the sum."""
        if node not in self._folded:
            self._uploads.pop(node, None)
            self.sum.discard(node)

    def close(self) -> None:
        """Zero the slots and give the buffers back."""
        self._uploads.clear()
        self.sum.close()

    def _upload(self, node: str) -> Assembly | None:
        if node not in self._uploads:
            slot = self.sum.slot(node)
            if slot is None:
                return None
            self._uploads[node] = Assembly(Kind.UPLOAD, self._ctx, self._total, node, slot)
        return self._uploads[node]
