"""The vectors of one attempt on their way into the core: frames, slots, folds.

A member's frames go straight into a slot of the aggregation core, at their offsets; the
slot is folded when the attempt says that the whole is what its sender signed, and given
back unfolded when the member is gone. Without a free slot the member is not wanted yet; while
one waits, nobody keeps a slot that no frame comes for, or that fills at a pace at which the whole
would take more than its turn: the trip, or the round's time for uploads divided by the turns that
the slots need. An upload that is alone with its slot keeps pace if it fits that time.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from hashlib import sha256
from typing import TYPE_CHECKING, NamedTuple, Protocol

from .open_round import read_sum, write_sum
from ..protocol.errors import PeerError
from ..protocol.frames import Assembly, Kind

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from .core.kept import Keeping
    from .core.worlds import AnyWorld
    from .invitation import Plan
    from .stepping import StepOrder, Stepped
    from ..protocol.codec import Codec
    from ..protocol.layout import MessageLayout, Sums
    from ..protocol.manifest import Manifest


class Intake(Protocol):
    """What an attempt needs of the aggregation core: here, or in the core service."""

    @property
    def folded(self) -> tuple[str, ...]:
        """The nodes whose vectors are in the sum."""

    @property
    def patient_until(self) -> float:
        """When a slot that others wait for has rested too long; infinity if none has."""

    @property
    def alive_until(self) -> float:
        """Until when an upload keeps pace if nothing more comes; -infinity if none does."""

    def stalled(self, now: float) -> list[str]:
        """Return the nodes whose slots have rested too long."""

    def expect(self, node: str, y_hash: bytes) -> None:
        """Let a node upload the vector with this SHA-256: its header was accepted."""

    def wants(self, node: str, now: float) -> int | None:
        """Return the offset from which the node's frames are wanted; None for not now."""

    def accept(self, node: str, frame: bytes | memoryview, now: float) -> bool:
        """Take a frame and say whether the vector is whole and not folded yet."""

    def digest(self, node: str) -> bytes:
        """Return SHA-256 of what the node has sent."""

    def check(self, node: str) -> None:
        """Refuse an unmasked update that may not touch the sum (BadUpdate)."""

    def fold(self, node: str) -> None:
        """Add the node's vector to the sum, once."""

    def discard(self, node: str) -> None:
        """Forget what a node that is gone has sent; a folded vector stays in the sum."""

    def unmask(self, streams: Sequence[tuple[bytes | bytearray, int]]) -> None:
        """Freeze the sum and take the streams off it."""

    def read(self, layout: MessageLayout, survivors: int, codec: Codec) -> Sums:
        """Freeze the sum and return what it says beside the update; VoidRound if it is none."""

    def step(self, order: StepOrder) -> Stepped:
        """Make the next model out of the frozen sum (VoidRound); it may be published then."""

    def save(self, path: Path) -> bytes:
        """Freeze the sum, write it as it is to a new file, fsync, and return its SHA-256."""

    def load(self, path: Path, digest: bytes, nodes: Sequence[str]) -> None:
        """Take the sum of `nodes` that `save` wrote, of this SHA-256, and freeze it."""

    def close(self) -> None:
        """Give everything back."""


OpenIntake = Callable[[bytes, "Plan", "Codec"], Intake]
"""Opens the sum of an attempt: its context, its plan, the code of its roster."""


class AggregationCore(Protocol):
    """Sums and model of one run: in this process (embedded.py), or in the core service."""

    @property
    def clean(self) -> bool:
        """Whether its moments are known to be those of the model in force: none is restored."""

    def intake(self, ctx: bytes, plan: Plan, codec: Codec, /) -> Intake:
        """Open the sum of an attempt."""

    def put(self, manifest: Manifest, digest: bytes, packed: bytearray, /) -> None:
        """Put a model in force that no step made, and let members fetch it."""

    def publish(self, digest: bytes, /) -> None:
        """Put the model that was stepped last in force, and let members fetch it."""


STALLS_A_TRIP = 4
"""`Shape.stall` is this part of the seconds that all uploads of a round have."""


class Shape(NamedTuple):
    """What the core must know of a sum's messages."""

    total: int
    """Bytes of one message."""
    split: int
    """Where its 64-bit section begins."""
    stall: float
    """Seconds for which a slot may rest while others wait for it: a quarter of the trip."""
    budget: float = 0.0
    """Seconds that all uploads have at the most; no less than the trip."""
    members: int = 1
    """How many will upload."""
    keeping: Keeping | None = None
    """Why messages are kept; None where they are only added up."""


class Ingest:
    """The open uploads and the sum of one attempt, in this process."""

    def __init__(
        self,
        core: AnyWorld,
        ctx: bytes,
        shape: Shape,
        check: Callable[[str, memoryview], None] = lambda _node, _slot: None,
    ) -> None:
        """Open a sum; `check` refuses an unmasked update, by BadUpdate."""
        self._total = shape.total
        self.sum = core.open(shape.total, shape.split, shape.keeping)
        self._ctx = ctx
        self._patience = shape.stall
        trip = STALLS_A_TRIP * shape.stall
        self._alone = max(trip, shape.budget)
        self._shared = max(trip, shape.budget / max(1, math.ceil(shape.members / core.slots)))
        self._check = check
        self._uploads: dict[str, Assembly] = {}
        self._folded: dict[str, None] = {}
        self._granted: dict[str, float] = {}
        self._until: dict[str, float] = {}  # read as a list: a fold in a thread changes it
        self._alive: dict[str, float] = {}
        self._waiting: set[str] = set()

    @property
    def folded(self) -> tuple[str, ...]:
        """The nodes whose vectors are in the sum."""
        return tuple(self._folded)

    def expect(self, node: str, y_hash: bytes) -> None:
        """Do nothing: the attempt itself compares the hash."""

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
        return min(list(self._until.values()), default=math.inf) if self._waiting else math.inf

    @property
    def alive_until(self) -> float:
        """Until when an upload keeps pace if nothing more comes; -infinity if none does."""
        return max(list(self._alive.values()), default=-math.inf)

    def stalled(self, now: float) -> list[str]:
        """Return the nodes whose slots have seen no frame for too long."""
        if now < self.patient_until:
            return []
        return [node for node, until in list(self._until.items()) if now >= until]

    def accept(self, node: str, frame: bytes | memoryview, now: float) -> bool:
        """Take a frame and say whether the vector is whole and not folded yet.

        Raises:
            PeerError: No slot was given to the node, or the frame is wrong.
        """
        if node in self._folded:
            return False
        upload = self._upload(node, now)
        if upload is None:
            raise PeerError(node, "sent frames without having been given a slot")
        whole = upload.accept(frame)
        if whole:
            self._until[node] = math.inf  # nothing more is awaited: its slot does not rest
            self._alive.pop(node, None)
        else:
            self._be_patient(node, upload.received, now)
        return whole

    def _be_patient(self, node: str, received: int, now: float) -> None:
        """Note until when the next frame must come: a drop at a time holds no slot for others.

        Who would be whole within the seconds that are left for it keeps pace.
        """
        share, start = received / self._total, self._granted[node] + self._patience
        self._until[node] = min(now + self._patience, start + share * self._shared)
        self._alive[node] = min(now + self._patience, start + share * self._alone)

    def unwait(self, node: str) -> None:
        """Note that a node without a slot does not wait for one any more."""
        self._waiting.discard(node)

    def slot(self, node: str) -> memoryview:
        """Return the bytes that the node has sent."""
        slot = self.sum.slot(node)
        if slot is None:
            raise PeerError(node, "holds no slot")
        return slot

    def digest(self, node: str) -> bytes:
        """Return SHA-256 of what lies in the node's slot."""
        return sha256(self.slot(node)).digest()

    def check(self, node: str) -> None:
        """Refuse an unmasked update that may not touch the sum."""
        self._check(node, self.slot(node))

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

    def unmask(self, streams: Sequence[tuple[bytes | bytearray, int]]) -> None:
        """Freeze the sum and take the streams off it."""
        self.sum.unmask(streams)

    def save(self, path: Path) -> bytes:
        """Freeze the sum and write it to a new file; return its SHA-256."""
        return write_sum(path, self.sum.result())

    def load(self, path: Path, digest: bytes, nodes: Sequence[str]) -> None:
        """Take the sum of `nodes` that `save` wrote, and freeze it."""
        self.sum.load(read_sum(path, self._total, digest), nodes)
        self._folded = dict.fromkeys(nodes)

    def close(self) -> None:
        """Zero the slots and give the buffers back."""
        self._uploads.clear()
        self._until.clear()
        self._alive.clear()
        self.sum.close()

    def _forget(self, node: str) -> None:
        self._uploads.pop(node, None)
        self._until.pop(node, None)
        self._alive.pop(node, None)
        self._waiting.discard(node)

    def _upload(self, node: str, now: float) -> Assembly | None:
        if node not in self._uploads:
            slot = self.sum.slot(node)
            if slot is None:
                return None
            self._uploads[node] = Assembly(Kind.UPLOAD, self._ctx, self._total, node, slot)
            self._granted[node] = now
            self._be_patient(node, 0, now)
            self._waiting.discard(node)
        return self._uploads[node]
