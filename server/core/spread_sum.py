"""One sum whose parts lie on several hosts; spread_world.py says how, wing.py what others do."""

from __future__ import annotations

import threading
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from .pages import zeros
from .part_model import cut
from .rank import LOST
from .supervisor import Supervisor
from .. import stepping
from ...protocol import masks
from ...protocol.errors import PeerError, SettingsError, StateError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .ranked_world import RankedSum
    from .run_model import RunModel
    from .spread_world import Part, SpreadWorld
    from .world import Sum
    from ..stepping import StepOrder


class SpreadSum:
    """One sum over a ring of this process, open until it is read."""

    def __init__(
        self,
        world: SpreadWorld,
        number: int,
        sizes: tuple[int, int],
        part: Sum | RankedSum,
        wings: Sequence[Part],
    ) -> None:
        """Made by `SpreadWorld.open`: `part` is this host's."""
        self._world, self._part, self._wings = world, part, wings
        self._number = number
        self._total, self._split = sizes
        self._numbers = bytearray(self._total - self._split)
        self._free = [zeros(self._total) for _ in range(world.slots)]
        self._used: list[memoryview] = []
        self._filling: dict[str, memoryview] = {}
        self._folded: dict[str, None] = {}
        self._pending = 0
        self._frozen = self._closed = False
        self._failed: Exception | None = None
        self._change = threading.Condition()
        self._later(self._open)

    @property
    def survivors(self) -> tuple[str, ...]:
        """The nodes in the sum, in the order of arrival."""
        return tuple(self._folded)

    @property
    def memory(self) -> dict[str, int]:
        """Bytes that the sum takes on this host at the most, by name."""
        slots = self._total * self._world.slots
        here = self._part.memory
        return {"accumulators": here["accumulators"], "slots": here["slots"] + slots}

    def slot(self, node: str) -> memoryview | None:
        """Return the slot that `node` fills, the same one until it is folded or discarded.

        Returns:
            A writable view of the message's bytes, or None when every slot is taken.

        Raises:
            PeerError: The node is in the sum already, or the sum is frozen.
        """
        with self._change:
            self._refuse_late(node)
            if node not in self._filling:
                if self._world.freed is None:
                    self._change.wait_for(lambda: self._free or self._used or not self._pending)
                if not (slots := self._used or self._free):  # one that was used before a new one
                    return None
                self._filling[node] = slots.pop()
            return memoryview(self._filling[node])

    def fold(self, node: str) -> None:
        """Let the slot of `node` be added to the sum; it is free when every host has its words.

        Raises:
            PeerError: The node is in the sum already, holds no slot, or the sum is frozen.
            StateError: A host is lost, or could not do it.
        """
        with self._change:
            self._refuse_late(node)
            if self._failed is not None:
                raise self._failed
            if node not in self._filling:
                raise PeerError(node, "fold without a slot", "an upload", "nothing")
            slot = self._filling.pop(node)
            total = np.frombuffer(self._numbers, "<u8")
            np.add(total, np.frombuffer(slot[self._split :], "<u8"), out=total)
            self._folded[node] = None
        self._later(partial(self._fold, node, slot), slot)

    def load(self, data: bytes | bytearray | memoryview, nodes: Sequence[str]) -> None:
        """Take the sum that an earlier process had folded from `nodes`, and freeze it.

        Raises:
            SettingsError: It has another size than this sum.
            StateError: A host is lost.
        """
        if len(data) != self._total:
            raise SettingsError("core.sum", f"{self._total} bytes", len(data))
        self._freeze()
        view = memoryview(data)
        self._part.load(self._here(view), nodes)
        for wing in self._wings:
            self._ask(wing, "load", [view[4 * wing.low : 4 * wing.high]])
        self._numbers[:] = view[self._split :]
        self._folded = dict.fromkeys(nodes)

    def discard(self, node: str) -> None:
        """Free the slot of `node`, if it holds one; its bytes never reach the sum.

        Raises:
            PeerError: The node is in the sum: that cannot be undone.
        """
        with self._change:
            if node in self._folded:
                raise PeerError(node, "cannot be taken out of the sum again")
            if node in self._filling:
                self._used.append(self._filling.pop(node))

    def unmask(self, streams: Sequence[tuple[bytes | bytearray, int]]) -> None:
        """Freeze the sum and add (+1) or subtract (-1) the ChaCha20 stream of each key."""
        self._freeze()
        masks.check(self._total, self._split, streams)
        keys, signs = bytearray().join(key for key, _ in streams), [sign for _, sign in streams]
        try:
            self._all(
                partial(self._part.unmask, streams),
                lambda wing: self._ask(wing, "unmask", [keys], signs=signs),
            )
        finally:
            keys[:] = bytes(len(keys))
        masks.apply(self._numbers, 0, streams, start=self._split)

    def numbers(self) -> memoryview:
        """Freeze the sum and return its uint64 words, no copy; valid until `close`."""
        self._freeze()
        return memoryview(self._numbers)

    def check(self, bound: int) -> None:
        """Freeze the sum and refuse one with a uint32 word beyond `bound`, as a signed number.

        Raises:
            VoidRound: Masks are left in it.
            StateError: A host is lost, or could not do it.
        """
        self._freeze()
        self._all(
            partial(self._part.check, bound), lambda wing: self._ask(wing, "check", bound=bound)
        )

    def step(self, model: RunModel, order: StepOrder) -> bytes:
        """Freeze the sum and make the next model out of it; return its digest.

        The sum is kept: a step may be done again. So it is when a rank of any host dies in it.

        Raises:
            VoidRound: A value would not be finite; the model in force is what it was.
            StateError: The moments cannot be restored, or a host is lost.
        """
        self._freeze()
        try:
            tries = 1
            while not self._moved(model, order):
                Supervisor.bear(tries)
                tries += 1
            digest = self._world.digest(model)
            self._world.held(model).stepped(model.digest, digest)
            return model.stepped(digest)
        except BaseException:
            model.drop_next()
            raise

    def result(self) -> memoryview:
        """Freeze the sum and return it, put together out of its parts."""
        self._freeze()
        whole = zeros(self._total)
        self._here(whole)[:] = self._part.result()
        for wing in self._wings:
            self._ask(wing, "result", into=[whole[4 * wing.low : 4 * wing.high]])
        whole[self._split :] = self._numbers
        return whole

    def close(self) -> None:
        """Zero the slots and give everything up, as soon as nothing is on its way."""
        with self._change:
            if self._closed:
                return
            self._closed = self._frozen = True
        self._later(self._give_up)

    # -- the hosts -----------------------------------------------------------------------------

    def _open(self) -> None:
        for wing in self._wings:
            self._ask(wing, "open", low=wing.low, high=wing.high)

    def _fold(self, node: str, slot: memoryview) -> None:
        mine = self._part.slot(node)
        if mine is None:
            raise StateError("core", "memory for a slot", "none")
        mine[:] = self._here(slot)
        self._part.fold(node)
        for wing in self._wings:
            self._ask(wing, "fold", [slot[4 * wing.low : 4 * wing.high]], node=node)

    def _give_up(self) -> None:
        self._wipe()
        self._part.close()
        for wing in self._wings:
            wing.link.try_ask({"op": "close", "sum": self._number})

    def _moved(self, model: RunModel, order: StepOrder) -> bool:
        """Let every host move its part, and say whether all of their ranks have lived so long."""
        held = self._world.held(model)
        turn, stay = model.digest == held.made, model.digest == held.current
        clean = model.clean and turn
        buffers = model.begin(order)
        stepping.keep_rest(model.manifest, buffers.old, buffers.new)
        names = list(order.rule.moments)
        head = {
            "model": held.number,
            "order": order._replace(state=None).described(),
            "turn": turn,
            "kept": turn or stay,
            "moments": names,
            "restored": [] if clean else names,
        }
        known = held.known
        held.clear()
        return all(
            self._all(
                lambda: self._part.move(model, order),
                lambda wing: self._step(wing, model, order, head, known=known),
            )
        )

    def _step(
        self, wing: Part, model: RunModel, order: StepOrder, head: dict[str, Any], *, known: bool
    ) -> bool:
        """Let a wing move its part; whether it could."""
        bounds = wing.low, wing.high
        if not known:
            manifest = bytearray(model.manifest.to_json().encode())
            about = {"model": head["model"], "low": wing.low, "high": wing.high}
            self._ask(wing, "model", [manifest], **about)
        moments = {name: model.moments[name].view for name in head["moments"]}
        sent = [] if head["kept"] else [model.current.view]
        sent += [moments[name] for name in head["restored"]]

        def parts(views: Sequence[memoryview]) -> list[memoryview]:
            return [part for view in views for part in cut(order.layout, bounds, view)]

        into = parts([model.made.view, *moments.values()])
        return bool(self._ask(wing, "step", parts(sent), into, **head)["moved"])

    def _ask(
        self,
        wing: Part,
        op: str,
        parts: Sequence[memoryview | bytearray] = (),
        into: Sequence[memoryview] = (),
        **fields: Any,
    ) -> dict[str, Any]:
        return wing.link.ask({"op": op, "sum": self._number, **fields}, parts, into)

    def _all(self, here: Callable[[], Any], there: Callable[[Part], Any]) -> list[Any]:
        """Do something with every part at once; of several errors the first host's is raised."""
        calls: list[Callable[[], Any]] = [here, *(partial(there, wing) for wing in self._wings)]
        found: list[Any] = [None] * len(calls)
        # Whoever ends without a word has done nothing.
        silent = StateError("core.hosts", "an answer of every host", "none")
        errors: list[Exception | None] = [silent] * len(calls)

        def call(place: int) -> None:
            try:
                found[place] = calls[place]()
                errors[place] = None
            except LOST as error:
                errors[place] = error

        threads = [
            threading.Thread(target=call, args=(place,), daemon=True)
            for place in range(1, len(calls))
        ]
        for thread in threads:
            thread.start()
        call(0)
        for thread in threads:
            thread.join()
        for error in errors:
            if error is not None:
                raise error
        return found

    # -- one thing after another ---------------------------------------------------------------

    def _later(self, work: Callable[[], None], slot: memoryview | None = None) -> None:
        """Let something be done beside the caller; the slot is free then."""
        with self._change:
            self._pending += 1
        self._world.later(partial(self._do, work, slot))

    def _do(self, work: Callable[[], None], slot: memoryview | None) -> None:
        try:
            if self._failed is None or self._closed:
                work()
        except LOST as error:
            self._failed = error
        with self._change:
            self._pending -= 1
            if slot is not None:
                self._used.append(slot)
            self._change.notify_all()
        if slot is not None and self._world.freed is not None:
            self._world.freed()

    def _freeze(self) -> None:
        """Let nothing in any more, wait for what is on its way, and give the slots up.

        Zeroed first: no masked vector outlives its round.
        """
        with self._change:
            self._frozen = True
            self._change.wait_for(lambda: not self._pending)
            if self._failed is not None:
                raise self._failed
        self._wipe()

    def _wipe(self) -> None:
        for slot in (*self._used, *self._filling.values()) if self._closed else self._used:
            np.frombuffer(slot, np.uint8)[:] = 0
        self._used, self._free = [], []

    def _here(self, view: memoryview) -> memoryview:
        """Return this host's bytes of a message."""
        return view[: 4 * self._wings[0].low] if self._wings else view[: self._split]

    def _refuse_late(self, node: str) -> None:
        if node in self._folded:
            raise PeerError(node, "sent a second message for this sum")
        if self._frozen:
            raise PeerError(node, "came after the survivors were frozen")
