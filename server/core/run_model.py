"""One run's model in the aggregation core: the one in force, the next one, and the moments.

    in force --begin--> next being written --stepped--> next --adopt--> in force

Each is one flat buffer in the layout of the model's manifest, and there is one buffer a moment.
The next model is made for its step, and the one before it given up when the next is adopted: a
reader that still holds a view of it keeps its memory, whole, for as long as it does.

Moments are moved in place. So they are clean, which is to say those of the model in force, only
between `adopt` and the next `begin`; a step that failed, or whose model was not adopted, leaves
them worth nothing, as a new process does. The next `begin` then restores them from the checkpoint
that its order names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

from .pages import zeros
from .. import stepping
from ..leaf_hashes import digest_of
from ..moment_file import read_moments
from ...protocol.errors import RoundFailed
from ...protocol.manifest import ALIGN

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from ..stepping import Mean, StepOrder
    from ...protocol.manifest import Manifest


class Block(Protocol):
    """Memory of one model: this process's own, or a segment that others map."""

    @property
    def view(self) -> memoryview:
        """The bytes, writable."""

    @property
    def path(self) -> Path | None:
        """Where others find it; None where nobody does."""

    def close(self) -> None:
        """Let go of it."""

    def unlink(self) -> None:
        """Let nobody find it any more."""


class Moving(Protocol):
    """A model, or a part of one, that a step moves."""

    manifest: Manifest
    current: Block
    moments: dict[str, Block]

    @property
    def nbytes(self) -> int:
        """Bytes of each block."""

    @property
    def made(self) -> Block:
        """Where the next model lies."""


class Own:
    """Memory that only this process sees."""

    path = None

    def __init__(self, nbytes: int, _kind: str) -> None:
        """Take zeros."""
        self.view = zeros(nbytes)

    def close(self) -> None:
        """Let it go when the last view of it goes."""
        self.view = memoryview(b"")

    def unlink(self) -> None:
        """Do nothing: nobody finds it."""


class Buffers(NamedTuple):
    """What one step works on."""

    old: memoryview
    new: memoryview
    moments: dict[str, memoryview]


class RunModel:
    """The model of one run; its step is done by one thread at a time."""

    def __init__(
        self,
        manifest: Manifest,
        digest: bytes,
        packed: bytes | bytearray | memoryview,
        make: Callable[[int, str], Block] = Own,
    ) -> None:
        """Put a model in force.

        Args:
            manifest: Its layout.
            digest: Its digest, 32 bytes; the caller has compared it.
            packed: Its bytes; they are copied.
            make: Takes a size and a word for it, and gives zeroed memory.
        """
        self.manifest, self.digest = manifest, digest
        self._make = make
        self.current = self._block("model")
        self.current.view[: manifest.total_bytes] = packed
        self.next: Block | None = None
        self.next_digest = b""
        self.moments: dict[str, Block] = {}
        self._clean = False

    @property
    def nbytes(self) -> int:
        """Bytes of each block."""
        return block_bytes(self.manifest)

    @property
    def clean(self) -> bool:
        """Whether the moments are those of the model in force."""
        return self._clean

    @property
    def packed(self) -> memoryview:
        """The model in force, read-only."""
        return self._whole(self.current).toreadonly()

    @property
    def made(self) -> Block:
        """Where the next model lies.

        Raises:
            RoundFailed: There is none.
        """
        if self.next is None:
            raise RoundFailed("publish: no model was stepped")
        return self.next

    @property
    def stepped_packed(self) -> memoryview:
        """The next model, read-only."""
        return self._whole(self.made).toreadonly()

    @property
    def moments_packed(self) -> dict[str, memoryview]:
        """The moments, read-only, by name."""
        return {name: self._whole(block).toreadonly() for name, block in self.moments.items()}

    @property
    def memory(self) -> dict[str, int]:
        """Bytes that this model takes at the most, by name: the next one while it is stepped."""
        names = ("model", "next model", *(f"moment {name}" for name in self.moments))
        return dict.fromkeys(names, self.nbytes)

    def step(self, order: StepOrder, mean: Mean) -> bytes:
        """Make the next model out of a mean, all of it here; return its digest.

        Raises:
            VoidRound: A value would not be finite; the model in force is what it was.
            StateError: The moments cannot be restored.
        """
        try:
            old, new, moments = self.begin(order)
            stepping.move_by(mean, 0, order.layout.words32, order, old, new, moments)
            stepping.keep_rest(self.manifest, old, new)
            return self.stepped(digest_of(new))
        except BaseException:
            self.drop_next()
            raise

    def begin(self, order: StepOrder) -> Buffers:
        """Return what a step works on, the moments as they belong to the model in force.

        Raises:
            StateError: The moments cannot be restored.
        """
        self.drop_next()
        for name in order.rule.moments:
            if name not in self.moments:
                self.moments[name] = self._block("moment")
        moments = {name: self._whole(self.moments[name]) for name in order.rule.moments}
        if moments and not self._clean:
            self._restore(order, moments)
        self._clean = False
        self.next = self._block("model")
        return Buffers(self.packed, self._whole(self.next), moments)

    def stepped(self, digest: bytes) -> bytes:
        """Note that the next model is whole; return its digest."""
        self.next_digest = digest
        return digest

    def adopt(self, digest: bytes) -> None:
        """Put the next model in force, and give up the one before.

        Raises:
            RoundFailed: No model of this digest was stepped.
        """
        made = self.made
        if digest != self.next_digest:
            raise RoundFailed(
                f"publish: no stepped model {digest[:4].hex()}, but {self.next_digest[:4].hex()}"
            )
        before, self.current, self.digest = self.current, made, digest
        self.next, self.next_digest, self._clean = None, b"", True
        _give_up(before)

    def drop_next(self) -> None:
        """Give the next model up: its step failed, or it is not wanted."""
        if self.next is not None:
            _give_up(self.next)
        self.next, self.next_digest = None, b""

    def close(self) -> None:
        """Give everything up."""
        self.drop_next()
        for block in (self.current, *self.moments.values()):
            _give_up(block)
        self.moments = {}

    def _restore(self, order: StepOrder, moments: dict[str, memoryview]) -> None:
        if order.state is not None:
            read_moments(order.state, self.manifest, moments)
            return
        for name, buffer in moments.items():
            first = order.rule.initial(name)
            for entry in self.manifest.averaged:
                np.ndarray((entry.size,), entry.numpy, buffer, entry.offset)[:] = first

    def _block(self, kind: str) -> Block:
        return self._make(self.nbytes, kind)

    def _whole(self, block: Block) -> memoryview:
        return block.view[: self.manifest.total_bytes]


def block_bytes(manifest: Manifest) -> int:
    """Return the bytes of a block for models of this manifest; never none."""
    return max(manifest.total_bytes, ALIGN)


def _give_up(block: Block) -> None:
    block.unlink()
    block.close()
