"""The vectors of one attempt where the core is a service: the same interface as ingest.py's.

Nothing of a vector is here. What an attempt asks of its intake becomes a command of `core.sock`, in
the order of asking; the core compares the hashes, and says `whole` or `bad` as events.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .deadlines import LEASE_S
from ..protocol.entropy import wipe
from ..protocol.errors import Malformed, PeerError, VoidRound
from ..protocol.keys import KEY_BYTES as KEY

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from .core_client import CoreClient
    from .stepping import StepOrder, Stepped
    from ..protocol.codec import Codec
    from ..protocol.layout import MessageLayout, Sums


class RemoteIntake:
    """The vectors of one attempt, which land in the core service (server/ingest.py, Intake)."""

    patient_until = float("inf")
    alive_until = float("-inf")

    def __init__(self, core: CoreClient, ctx: bytes) -> None:
        """Speak through the run's connection about the sum of this context."""
        self._core, self.ctx = core, ctx
        self._expected: dict[str, bytes] = {}
        self._folded: dict[str, None] = {}

    @property
    def folded(self) -> tuple[str, ...]:
        """The nodes whose vectors are in the sum."""
        return tuple(self._folded)

    def stalled(self, now: float) -> list[str]:
        """Return nobody: the core reports a slot that rests as `bad`."""
        return []

    def progress(self, left: object, now: float) -> None:
        """Note for how many seconds an upload keeps pace if nothing more comes.

        Raises:
            Malformed: It is no time that a round may have.
        """
        if not isinstance(left, int | float) or not 0 <= left <= LEASE_S:
            raise Malformed("core", "progress.left", f"0..{LEASE_S} s", left)
        self.alive_until = now + left

    def expect(self, node: str, y_hash: bytes) -> None:
        """Let the node upload; the core compares the hash before it says `whole`."""
        self._expected[node] = y_hash
        self._core.command("expect", node=node, y_hash=y_hash.hex())

    def expected(self, node: str) -> bytes:
        """Return the hash that the core has compared."""
        return self._expected.get(node, b"")

    def wants(self, node: str, now: float) -> int | None:
        """Return None: the gateway itself asks for frames."""
        return None

    def accept(self, node: str, frame: bytes | memoryview, now: float) -> bool:
        """Refuse: frames go to the gateway."""
        raise PeerError(node, "sent a frame to the coordinator instead of the gateway")

    def digest(self, node: str) -> bytes:
        """Return the hash that the core has compared."""
        return self.expected(node)

    def check(self, node: str) -> None:
        """Do nothing: the core's firewall has looked before it said `whole`."""

    def fold(self, node: str) -> None:
        """Let the core add the node's vector."""
        self._core.command("fold", node=node)
        self._folded[node] = None

    def discard(self, node: str) -> None:
        """Let the core forget the node's vector, unless it is folded."""
        if node not in self._folded:
            self._expected.pop(node, None)
            self._core.command("discard", node=node)

    def unmask(self, streams: Sequence[tuple[bytes | bytearray, int]]) -> None:
        """Let the core take the streams off its sum."""
        keys = bytearray(KEY * len(streams))  # of its size at once: no copy is left behind
        for place, (key, _) in enumerate(streams):
            keys[KEY * place : KEY * (place + 1)] = key
        try:
            self._core.command("unmask", keys, signs=[sign for _, sign in streams])
        finally:
            wipe(keys)

    def read(self, layout: MessageLayout, survivors: int, codec: Codec) -> Sums:
        """Return what the core's sum says beside the update; VoidRound if it is none."""
        numbers, void = self._core.read(codec.bound(survivors))
        size = layout.total_bytes - layout.split
        if len(numbers) != size:
            raise Malformed("core", "numbers", f"{size} bytes", len(numbers))
        sums = layout.read(numbers, survivors, codec)
        if void:
            raise VoidRound(void)
        return sums

    def step(self, order: StepOrder) -> Stepped:
        """Let the core make the next model out of its sum."""
        return self._core.step(order)

    def save(self, path: Path) -> bytes:
        """Let the core write the sum to a new file; return its SHA-256."""
        return self._core.save(path)

    def load(self, path: Path, digest: bytes, nodes: Sequence[str]) -> None:
        """Let the core go on with the sum of `nodes` that it, or another, wrote."""
        self._core.load(path, digest, nodes)
        self._folded = dict.fromkeys(nodes)

    def close(self) -> None:
        """Give the sum back."""
        if self._core.open_sum is self:
            self._core.open_sum = None
        self._core.command("close_sum")
