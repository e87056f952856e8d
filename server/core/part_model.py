"""One host's part of a run's model, for the steps that a wing makes (wing.py).

    in force <--turn--> next          and one buffer a moment

Each buffer has the layout of the whole model, so that a step finds every value where it always is;
only the bytes of the part are read, written and sent. After a step the next model is in force as
soon as process 0 says so; what it does not find here it sends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .run_model import Own, block_bytes
from ..stepping import pieces
from ...protocol.layout import MessageLayout

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .run_model import Block
    from ...protocol.manifest import Manifest


def cut(layout: MessageLayout, part: tuple[int, int], buffer: memoryview) -> list[memoryview]:
    """Return the bytes of a part, words [low, high) of section 32, of a model or a moment."""
    found = pieces(layout, *part)
    sizes = ((p.start, (p.words.stop - p.words.start) * p.entry.numpy.itemsize) for p in found)
    return [buffer[start : start + size] for start, size in sizes]


class PartModel:
    """The part of one model; its step is done by one thread."""

    def __init__(
        self,
        manifest: Manifest,
        part: tuple[int, int],
        make: Callable[[int, str], Block] = Own,
    ) -> None:
        """Take memory, by `make`, which is given a size and a word for it."""
        self.manifest, self.nbytes = manifest, block_bytes(manifest)
        self._layout, self._part = MessageLayout(manifest, {}, "train"), part
        self._make = make
        self.current, self.made = self._block("model"), self._block("model")
        self.moments: dict[str, Block] = {}

    def turn(self) -> None:
        """Put the next model in force."""
        self.current, self.made = self.made, self.current

    def moment(self, names: Sequence[str]) -> list[Block]:
        """Return the buffers of these moments."""
        for name in names:
            if name not in self.moments:
                self.moments[name] = self._block("moment")
        return [self.moments[name] for name in names]

    def bytes_of(self, blocks: Sequence[Block]) -> list[memoryview]:
        """Return the part's bytes of each."""
        return [view for block in blocks for view in cut(self._layout, self._part, block.view)]

    def close(self) -> None:
        """Give everything up."""
        for block in (self.current, self.made, *self.moments.values()):
            block.unlink()
            block.close()

    def _block(self, kind: str) -> Block:
        return self._make(self.nbytes, kind)
