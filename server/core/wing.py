"""A wing: the process of another host, which keeps and works on its part of every sum.

It does what process 0 asks (spread_world.py), one thing after another, by a world of its own: in
this process or by ranks under its own supervisor, which starts a killed one anew as ever. A part of
a sum is words [low, high) of section 32, in a world that knows the number of its first word.

    open · fold · load · unmask · check · result · close        a part of a sum
    model · step · forget                                       a part of a model (part_model.py)
    beat                                                        nothing: process 0 is there

What a command may raise is answered, and the wing goes on; that process 0 is gone is not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .part_model import PartModel
from .rank import LOST
from .. import stepping
from ...protocol.entropy import wipe
from ...protocol.errors import StateError, UmbelError, VoidRound
from ...protocol.manifest import Manifest
from ...protocol.masks import KEY_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .ranked_world import RankedSum, RankedWorld
    from .torch_hosts import Link
    from .world import Sum, World

    Answer = tuple[dict[str, Any], Sequence[memoryview]]

_WHO = "host 0"


class Wing:
    """The sums and models of one host."""

    def __init__(self, world: World | RankedWorld, link: Link) -> None:
        """Serve process 0, to which `link` leads, by this world."""
        self._world, self._link = world, link
        self._sums: dict[int, Sum | RankedSum] = {}
        self._models: dict[int, PartModel] = {}

    def serve(self) -> None:
        """Do what is asked until process 0 says that it ends.

        Raises:
            StateError: It is gone without a word.
        """
        while (head := self._link.hear())["op"] != "bye":
            try:
                with self._link.working():
                    about, parts = self._done(head)
                answer = {"op": "done", **about}
            except LOST as error:
                kind = "void" if isinstance(error, VoidRound) else "lost"
                known = isinstance(error, UmbelError)
                why = str(error) if known else f"{type(error).__name__} {error}"
                answer, parts = {"op": kind, "why": why[:1000]}, ()
            self._link.say(answer, parts)

    def _done(self, head: dict[str, Any]) -> Answer:
        """Take what comes with a command, whatever becomes of it, and do it."""
        where, work = COMMANDS[head["op"]]
        try:
            into = where(self, head)
        except LOST:
            self._link.take(head, [memoryview(bytearray(size)) for size in head["sizes"]])
            raise
        self._link.take(head, into)
        return work(self, head, into)

    # -- where the bytes of a command go -------------------------------------------------------

    def aside(self, head: dict[str, Any]) -> list[memoryview]:
        """Take them in memory of their own."""
        return [memoryview(bytearray(size)) for size in head["sizes"]]

    def slot(self, head: dict[str, Any]) -> list[memoryview]:
        """Take a message's part in a slot."""
        slot = self._sums[head["sum"]].slot(head["node"])
        if slot is None:
            raise StateError("core", "a free slot", "none")
        return [slot]

    def state(self, head: dict[str, Any]) -> list[memoryview]:
        """Take what the step needs and is not here."""
        model = self._models[head["model"]]
        if head["turn"]:
            model.turn()
        model.moment(head["moments"])
        current = [] if head["kept"] else [model.current]
        return model.bytes_of([*current, *model.moment(head["restored"])])

    # -- what is done --------------------------------------------------------------------------

    def open(self, head: dict[str, Any], _into: list[memoryview]) -> Answer:
        """Start a part of a sum."""
        size = 4 * (head["high"] - head["low"])
        self._sums[head["sum"]] = self._world.open(size, size, first=head["low"])
        return {}, ()

    def fold(self, head: dict[str, Any], _into: list[memoryview]) -> Answer:
        """Add the slot of a node."""
        self._sums[head["sum"]].fold(head["node"])
        return {}, ()

    def load(self, head: dict[str, Any], into: list[memoryview]) -> Answer:
        """Take a part that was folded before."""
        self._sums[head["sum"]].load(into[0], [])
        return {}, ()

    def unmask(self, head: dict[str, Any], into: list[memoryview]) -> Answer:
        """Take the streams of keys off."""
        keys = [bytearray(into[0][at : at + KEY_BYTES]) for at in range(0, len(into[0]), KEY_BYTES)]
        try:
            self._sums[head["sum"]].unmask(list(zip(keys, head["signs"], strict=True)))
        finally:
            into[0][:] = bytes(len(into[0]))
            wipe(*keys)
        return {}, ()

    def check(self, head: dict[str, Any], _into: list[memoryview]) -> Answer:
        """Say whether the part lies within the bound."""
        self._sums[head["sum"]].check(head["bound"])
        return {}, ()

    def result(self, head: dict[str, Any], _into: list[memoryview]) -> Answer:
        """Return the part."""
        return {}, [self._sums[head["sum"]].result()]

    def close(self, head: dict[str, Any], _into: list[memoryview]) -> Answer:
        """Give the part up."""
        if (found := self._sums.pop(head["sum"], None)) is not None:
            found.close()
        return {}, ()

    def model(self, head: dict[str, Any], into: list[memoryview]) -> Answer:
        """Make room for a part of a model, in place of what it had."""
        self.forget(head, [])
        manifest = Manifest.from_json(bytes(into[0]), _WHO)
        part = head["low"], head["high"]
        self._models[head["model"]] = PartModel(manifest, part, self._world.make)
        return {}, ()

    def step(self, head: dict[str, Any], _into: list[memoryview]) -> Answer:
        """Move the part, and return it with its moments; or that a rank died in it."""
        model, names = self._models[head["model"]], head["moments"]
        order = stepping.order_of(head["order"], model.manifest, _WHO)
        if not self._sums[head["sum"]].move(model, order):
            return {"moved": False}, ()
        return {"moved": True}, model.bytes_of([model.made, *model.moment(names)])

    def forget(self, head: dict[str, Any], _into: list[memoryview]) -> Answer:
        """Give a model up."""
        if (found := self._models.pop(head["model"], None)) is not None:
            found.close()
        self._world.rest()
        return {}, ()

    def beat(self, _head: dict[str, Any], _into: list[memoryview]) -> Answer:
        """Answer."""
        return {}, ()


COMMANDS: dict[
    str,
    tuple[
        Callable[[Wing, dict[str, Any]], list[memoryview]],
        Callable[[Wing, dict[str, Any], list[memoryview]], Answer],
    ],
] = {
    "open": (Wing.aside, Wing.open),
    "fold": (Wing.slot, Wing.fold),
    "load": (Wing.aside, Wing.load),
    "unmask": (Wing.aside, Wing.unmask),
    "check": (Wing.aside, Wing.check),
    "result": (Wing.aside, Wing.result),
    "close": (Wing.aside, Wing.close),
    "model": (Wing.aside, Wing.model),
    "step": (Wing.state, Wing.step),
    "forget": (Wing.aside, Wing.forget),
    "beat": (Wing.aside, Wing.beat),
}
