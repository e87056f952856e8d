"""The server step as an order to the aggregation core, and the part of it that each shard does.

    words of the sum -> mean update, in the array's dtype -> rule.move -> next model, moments

A `StepOrder` is a pure value: it goes to the core service as JSON and from there to its ranks.
`move` is a pure function of a shard's words; everything is element by element and tile by tile, so
that one process and many ranks write the same bits. Models and moments are flat buffers in the
layout of the model's manifest; of a moment the places of integer and bool arrays stay zero.

Not here: the buffers (core/run_model.py), what a rule does (strategies/server_rules.py).
"""

from __future__ import annotations

from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from ..protocol.codec import Codec
from ..protocol.errors import Malformed
from ..protocol.layout import MessageLayout
from ..strategies import one_pass
from ..strategies.fedavg import tiles
from ..strategies.server_rules import Rule, rule_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

    from ..protocol.manifest import Entry, Manifest

LARGE = 1 << 20
"""Words of a shard from which on a rule with moments had better be compiled: 10 ms."""
MOST_NAMES = 8
"""A rule keeps no more moments."""
_HASH = 32


class StateFile(NamedTuple):
    """Where the moments lie that belong to the model in force (moment_file.py)."""

    path: Path
    digest: bytes
    """SHA-256 of the file."""


class StepOrder(NamedTuple):
    """One server step."""

    rule: Rule
    t: int
    """The round, from 1."""
    layout: MessageLayout
    codec: Codec
    survivors: int
    weight: int
    """The survivors' weights, summed."""
    state: StateFile | None = None
    """What the moments are restored from where they are not those of the model in force; None is
    what the rule begins with."""

    def described(self) -> dict[str, Any]:
        """Return the order as JSON can hold it; `order_of` reads it."""
        codec, state = self.codec, self.state
        return {
            "rule": self.rule.described(),
            "t": self.t,
            "survivors": self.survivors,
            "weight": self.weight,
            "codec": [codec.members, codec.value_range, codec.weight_cap],
            "state": None if state is None else [str(state.path), state.digest.hex()],
        }


class Mean(Protocol):
    """What the survivors' updates come to: their weighted mean, or what a robust rule makes."""

    def decode(self, start: int, stop: int, out: NDArray[Any]) -> None:
        """Write the update of the words `start` to `stop` of section 32, in out's dtype."""


class SumMean(NamedTuple):
    """The weighted mean, out of a shard of the opened sum."""

    words: NDArray[np.uint32]
    low: int
    """The number of the first of them."""
    order: StepOrder

    def decode(self, start: int, stop: int, out: NDArray[Any]) -> None:
        """Write the mean, rounded once."""
        words = self.words[start - self.low : stop - self.low]
        self.order.codec.decode(words, self.order.weight, out)


class Stepped(NamedTuple):
    """What a step made; nothing of it counts before the core is told to publish it."""

    digest: bytes
    packed: memoryview
    """The next model, read-only, in the layout of its manifest."""
    moments: Mapping[str, memoryview]
    """Each moment in the same layout; written over by the next step."""
    memory: Mapping[str, int] = MappingProxyType({})
    """Bytes that the core takes for the run at the most, by name."""


def in_words(memory: Mapping[str, int]) -> str:
    """Return the terms of a run's memory, and what they add up to."""
    terms = {**memory, "in all": sum(memory.values())}
    return ", ".join(f"{name} {size / 2**20:.1f} MiB" for name, size in terms.items())


class Piece(NamedTuple):
    """A run of values that lies in one shard and in one array."""

    entry: Entry
    words: slice
    """Of the shard's words."""
    start: int
    """First byte in a flat buffer."""

    def of(self, buffer: memoryview) -> NDArray[Any]:
        """Return these values of a model or a moment."""
        count = self.words.stop - self.words.start
        return np.frombuffer(buffer, self.entry.numpy, count, self.start)


def order_of(said: Mapping[str, Any], manifest: Manifest, peer: str) -> StepOrder:
    """Return the order that `described` said, for a model of this manifest.

    Raises:
        Malformed, SettingsError: It is none.
    """
    try:
        t, survivors, weight = (_whole(said[key]) for key in ("t", "survivors", "weight"))
        members, value_range, cap = said["codec"]
        rule, codec = rule_of(said["rule"]), Codec(members, float(value_range), cap)
        state = None if said["state"] is None else _state(*said["state"])
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise Malformed(peer, "step", "a whole order", type(error).__name__) from error
    if not 1 <= survivors <= members or not survivors <= weight <= survivors * cap:
        raise Malformed(peer, "step", f"1..{members} survivors, weights up to {cap}", "others")
    layout = MessageLayout(manifest, {}, "train")
    return StepOrder(rule, t, layout, codec, survivors, weight, state)


def _whole(value: object) -> int:
    if type(value) is not int or value < 1:
        raise ValueError("a whole number of 1 or more")
    return value


def _state(path: str, digest: str) -> StateFile:
    found = StateFile(Path(path), bytes.fromhex(digest))
    if not found.path.is_absolute() or len(found.digest) != _HASH:
        raise ValueError("an absolute path and a hash")
    return found


def pieces(layout: MessageLayout, low: int, high: int) -> Iterator[Piece]:
    """Cut words [low, high) of section 32 at the bounds of the arrays; gaps are left out."""
    for entry in layout.manifest.averaged if layout.places else ():
        place = layout.places[entry.name]
        first, last = max(place.start, low), min(place.stop, high)
        if first < last:
            start = entry.offset + (first - place.start) * entry.numpy.itemsize
            yield Piece(entry, slice(first - low, last - low), start)


def move(
    words: NDArray[np.uint32],
    low: int,
    order: StepOrder,
    old: memoryview,
    new: memoryview,
    moments: Mapping[str, memoryview],
) -> None:
    """Move one shard by the mean of the opened sum, as `move_by`.

    Args:
        words: The shard of section 32; it is kept.
        low: Its first word's number.
        order: As all that follow.
        old: As there.
        new: As there.
        moments: As there.

    Raises:
        VoidRound: As there.
    """
    move_by(SumMean(words, low, order), low, low + len(words), order, old, new, moments)


def move_by(
    mean: Mean,
    low: int,
    high: int,
    order: StepOrder,
    old: memoryview,
    new: memoryview,
    moments: Mapping[str, memoryview],
) -> None:
    """Write the averaged values of one shard into the next model, and move their moments.

    Args:
        mean: What the updates come to.
        low: The shard's first word, of section 32.
        high: Its end.
        order: What is to be done.
        old: The model in force, the whole of it.
        new: The next model, the whole of it, writable; the shard's places are written.
        moments: The rule's state, whole buffers by name, writable; moved in place.

    Raises:
        VoidRound: A value would not be finite; the array is named. `new` and `moments` are partly
            written, and worth nothing.
    """
    if high - low >= LARGE and order.rule.moments:
        one_pass.COMPILED.load_beside()
    for piece in pieces(order.layout, low, high):
        before, after, first = piece.of(old), piece.of(new), low + piece.words.start
        state = {name: piece.of(buffer) for name, buffer in moments.items()}
        scratch: NDArray[Any] | None = None
        for tile in tiles(len(before)):
            count = tile.stop - tile.start
            if scratch is None:
                scratch = np.empty(count, piece.entry.numpy)
            delta = scratch[:count]
            mean.decode(first + tile.start, first + tile.stop, delta)
            own = {name: array[tile] for name, array in state.items()}
            order.rule.move(piece.entry.name, before[tile], delta, after[tile], own, order.t)


def keep_rest(manifest: Manifest, old: memoryview, new: memoryview) -> None:
    """Copy what is not averaged, integer and bool arrays, into the next model."""
    for entry in manifest.entries:
        if entry.section != "32":
            end = entry.offset + entry.nbytes
            new[entry.offset : end] = old[entry.offset : end]
