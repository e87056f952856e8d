"""The aggregation core over several hosts: the same sums as world.py, a part of each a host.

    message at the gateway   | part of host 0 | part of host 1 | ... | section 64 |

Section 32 is cut into one run of words a host (shards.py). This process, number 0, has the gateway;
a message lies in a slot here, and when it is folded each *wing* (wing.py) is sent its words, once
for (sum, node), and adds them to its part as this process does to its own, by a world of its own.
Masks are taken off, bounds checked and the model moved part by part. Section 64, a few numbers, is
added up here. Bits do not depend on the number of hosts: no word is worked on by two.

The model and its moments are whole here, for devices and checkpoints. A wing keeps its part from
one step to the next, and returns what it has moved; what it does not have, after a start or a round
that was lost, it is sent. What a robust rule keeps is whole messages, and this host's alone.

A wing that is lost takes its parts along: `failure` is set, and everything open fails with it.
"""

from __future__ import annotations

import itertools
import threading
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary, finalize

from . import ranked_step
from .ranked_world import RankedWorld
from .shards import shards
from .spread_sum import SpreadSum
from .world import World, check_sizes
from ..leaf_hashes import digest_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from .kept import Keeping
    from .run_model import RunModel
    from .torch_hosts import Link
    from .worlds import AnySum
    from ...protocol.errors import StateError

BEAT_S = 10.0
"""Seconds between two words to a wing that has nothing to do: it ends when it hears none."""

_MOVE = "end torchrun and start it again on every host: runs go on from their last round"


class Part(NamedTuple):
    """Which words are a host's."""

    link: Link
    low: int
    high: int


class Held:
    """What the wings have of a model."""

    def __init__(self, number: int) -> None:
        """They have nothing of the model of this number."""
        self.number = number
        self.clear()

    def clear(self) -> None:
        """They have nothing that is of use."""
        self.known, self.current, self.made = False, b"", b""

    def stepped(self, current: bytes, made: bytes) -> None:
        """They have made the model of a digest out of that of another."""
        self.known, self.current, self.made = True, current, made


class SpreadWorld:
    """This host's world and those of the wings; several sums may be open at a time."""

    def __init__(self, local: World | RankedWorld, slots: int, peers: int) -> None:
        """Work with the wings, processes 1 to `peers` of the group.

        Args:
            local: Adds up this host's part.
            slots: Uploads of a sum that may be in flight at once.
            peers: How many wings there are.
        """
        from .torch_hosts import Link  # noqa: PLC0415 - torch is for several hosts only

        self.local, self.slots, self.make = local, slots, local.make
        self.failure: StateError | None = None
        self.freed: Callable[[], None] | None = None
        """Called in another thread when slots are free again, as of a world of ranks."""
        self._links = [Link(number, self._lose, _MOVE) for number in range(1, peers + 1)]
        self._numbers = itertools.count()
        self._held: WeakKeyDictionary[RunModel, Held] = WeakKeyDictionary()
        self._todo: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._closing = threading.Event()
        works: list[Callable[[], None]] = [
            self._work,
            *(partial(self._beat, link) for link in self._links),
        ]
        self._threads = [threading.Thread(target=work, name="hosts", daemon=True) for work in works]
        for thread in self._threads:
            thread.start()

    def open(self, total_bytes: int, split: int, keeping: Keeping | None = None) -> AnySum:
        """Start a sum of messages of `total_bytes`, the first `split` of them uint32 words.

        A few numbers, and messages that are kept, are this host's alone.

        Raises:
            SettingsError: The sizes fit no layout (multiples of 8 and 64 bytes).
            StateError: A wing is lost, or there is no memory for it.
        """
        check_sizes(total_bytes, split)
        if self.failure is not None:
            raise self.failure
        if not split or keeping is not None:
            return self.local.open(total_bytes, split, keeping)
        here, *there = shards(split // 4, len(self._links) + 1)
        parts = zip(self._links, there, strict=True)
        wings = [Part(link, *bounds) for link, bounds in parts if bounds[0] < bounds[1]]
        part = self.local.open(4 * here[1], 4 * here[1])
        return SpreadSum(self, next(self._numbers), (total_bytes, split), part, wings)

    def later(self, work: Callable[[], None]) -> None:
        """Let something be done beside the caller, after what was to be done before."""
        self._todo.put(work)

    def held(self, model: RunModel) -> Held:
        """Return what the wings have of a model; they forget it when it goes."""
        if model not in self._held:
            held = self._held[model] = Held(next(self._numbers))
            gone = partial(self._tell, op="forget", model=held.number)
            finalize(model, self.later, gone).atexit = False
        return self._held[model]

    def digest(self, model: RunModel) -> bytes:
        """Return the digest of a model's next one."""
        if isinstance(self.local, RankedWorld):
            return ranked_step.digest(self.local.supervisor, model)
        return digest_of(model.stepped_packed)

    def rest(self) -> None:
        """Give up what is kept for the next sum: a run is over. Wings do as they forget a model."""
        self.local.rest()

    def close(self) -> None:
        """Let the wings end; sums that are open are lost."""
        self._closing.set()
        self._todo.put(None)
        for thread in self._threads:
            thread.join()
        for link in self._links:
            link.end()

    def _lose(self, error: StateError) -> None:
        self.failure = self.failure or error

    def _tell(self, **head: Any) -> None:
        for link in self._links:
            link.try_ask(head)

    def _work(self) -> None:
        """Do one thing after another: what waits for other hosts is not the event loop's."""
        while (work := self._todo.get()) is not None:
            work()

    def _beat(self, link: Link) -> None:
        """Say to a wing that it is not forgotten, whatever the others are doing."""
        while not self._closing.wait(BEAT_S):
            link.try_ask({"op": "beat"})
